"""Shows the progress of a run: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from azr.runs.metrics import Metrics
from azr.runs.progress import ProgressState

_LOG = logging.getLogger("azr.progress")


class Display(Protocol):
    """Where progress is seen."""

    def show(self, state: ProgressState) -> None:
        """Keeps showing this state, and no other, until closed."""
        ...

    def say(self, text: str) -> None:
        """Prints lines that stay."""
        ...

    def close(self) -> None: ...


class Progress:
    """What the experiment calls as it goes. Every line that stays is logged as well."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._state = ProgressState(0)

    def start(
        self, total_steps: int, first_step: int = 1, max_minutes: float | None = None, elapsed_s: float = 0.0
    ) -> None:
        """Begins to show a run that goes up to step ``total_steps`` or for so long, of which ``elapsed_s`` are gone."""
        left = None if max_minutes is None else max_minutes - elapsed_s / 60
        self._state = ProgressState(total_steps, first_step, left)
        self._display.show(self._state)

    def step_begun(self) -> None:
        """Forgets start-up or seeding phases, so that they do not count as part of the first step."""
        self._state.step_begun()

    def phase(self, name: str, total: int | None = None) -> None:
        """Begins a phase, or says how much there is to do in it."""
        phase = self._state.phase(name)
        if total is not None:
            phase.declared = total

    def enter(self, name: str) -> None:
        """One more thing is in a phase; without a declared total, what entered is the total."""
        self._state.phase(name).entered += 1

    def advance(self, name: str, n: int = 1) -> None:
        """So much more of a phase is done."""
        self._state.phase(name).done += n

    @contextmanager
    def busy(self, name: str) -> Iterator[None]:
        """One thing is in a phase until the context is left."""
        self.enter(name)
        yield
        self.advance(name)

    def step_done(self, step: int, metrics: Metrics) -> None:
        """Ends a step with its one summary line."""
        seconds = self._state.step_done()
        self.note(self._state.summary(step, metrics, seconds))

    def note(self, text: str) -> None:
        """A line, or several, for people to read."""
        _LOG.info(text)
        self._display.say(text)

    @contextmanager
    def showing_warnings(self) -> Iterator[None]:
        """What is logged below ``azr`` as a warning or worse is shown as well, until the context is left."""
        handler = _Warnings(self._display)
        logging.getLogger("azr").addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger("azr").removeHandler(handler)

    def close(self) -> None:
        """Stops showing anything; can be called twice."""
        self._display.close()


class _Warnings(logging.Handler):
    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.say(f"{record.levelname.lower()}: {record.getMessage()}")


def open_progress(stream: TextIO | None = None) -> Progress:
    """Progress on a stream, standard output by default."""
    stream = stream or sys.stdout
    console = Console(file=stream)
    return Progress(LiveDisplay(console) if console.is_terminal else PlainDisplay(stream))


class PlainDisplay:
    """A line every few seconds while something moves, and a sign of life now and then while nothing does."""

    def __init__(self, stream: TextIO, interval_s: float | None = 5.0, patience: int = 6) -> None:
        """``patience``: intervals without news after which the line is repeated."""
        self._stream = stream
        self._interval = interval_s
        self._patience = patience
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._state = ProgressState(0)

    def show(self, state: ProgressState) -> None:
        self._state = state
        if self._interval is not None and self._thread is None:
            self._thread = threading.Thread(target=self._tick, args=(self._interval,), daemon=True)
            self._thread.start()

    def say(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _tick(self, interval_s: float) -> None:
        seen: tuple[object, ...] = ()
        silent = 0
        while not self._closed.wait(interval_s):
            silent += 1
            state = self._state
            if state.counts() != seen or silent >= self._patience:
                seen, silent = state.counts(), 0
                self.say(state.line())


class LiveDisplay:
    """A table at the foot of the terminal: the run's bar, then one bar per phase of the step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state = ProgressState(0)
        self._live = Live(
            get_renderable=lambda: _table(self._state), console=console, refresh_per_second=4, transient=True
        )

    def show(self, state: ProgressState) -> None:
        self._state = state
        self._live.start(refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


def _table(state: ProgressState) -> Group:
    rows = Table.grid(padding=(0, 1))
    for phase in list(state.phases.values()):
        total = phase.total
        count = f"{phase.done}/{total}" if total is not None else str(phase.done)
        bar = ProgressBar(total=total, completed=phase.done, width=30, pulse=total is None)
        rows.add_row(Text(f"  {phase.name}"), bar, Text(count))
    return Group(Text(state.line(), no_wrap=True, overflow="ellipsis"), rows)
