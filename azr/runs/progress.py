"""What a run is doing, how far it is and how long it will take: bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import logging
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from azr.runs.metrics import Metrics, scalar, solve_rates, valid_rate

_LOG = logging.getLogger("azr.progress")


@dataclass(slots=True)
class Phase:
    """One kind of work inside a step; several go on at once."""

    name: str
    since: float
    """Clock reading when it began, seconds."""
    declared: int | None = None
    entered: int = 0
    done: int = 0

    @property
    def total(self) -> int | None:
        """How much there is to do, as far as it is known."""
        return self.declared if self.declared is not None else self.entered or None

    @property
    def finished(self) -> bool:
        return self.total is not None and self.done >= self.total

    def text(self, now: float) -> str:
        """``solve 4/36``, or the time it has taken where there is only one thing to count."""
        if self.total == 1:
            return f"{self.name} {duration(now - self.since)}"
        return f"{self.name} {self.done}" + (f"/{self.total}" if self.total is not None else "")


class ProgressState:
    """Where a run is."""

    def __init__(
        self,
        total_steps: int,
        first_step: int = 1,
        max_minutes: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_steps = total_steps
        self.step = first_step
        """The step that is going on, from 1; one more than `total_steps` at the end."""
        self.phases: dict[str, Phase] = {}
        self._clock = clock
        self._preparing = True
        self._since = clock()
        self._until = math.inf if max_minutes is None else self._since + 60 * max_minutes
        self._durations: list[float] = []

    def phase(self, name: str) -> Phase:
        """The phase of that name, begun now if it is new."""
        return self.phases.setdefault(name, Phase(name, self._clock()))

    def step_begun(self) -> None:
        """What came before, such as starting engines, is no part of this step."""
        self._preparing = False
        self.phases.clear()
        self._since = self._clock()

    def step_done(self) -> float:
        """Ends the step and says how many seconds it took."""
        self._durations.append(self._clock() - self._since)
        self.step += 1
        self.step_begun()
        return self._durations[-1]

    def elapsed_s(self) -> float:
        """Since the step began."""
        return self._clock() - self._since

    def remaining_s(self) -> float | None:
        """Median of past steps times what is left, or the time that the run still has; None before the first step is
        done."""
        if not self._durations:
            return None
        median = statistics.median(self._durations)
        left = self.total_steps - self.step + 1
        return max(min(median * left - min(self.elapsed_s(), median), self._until - self._clock()), 0.0)

    def line(self) -> str:
        """``step 3/24 · propose 12/36 · solve 4/36 · 12 s · about 7 min left``."""
        now = self._clock()
        # A copy, because another thread draws this while phases begin.
        open_phases = [phase.text(now) for phase in list(self.phases.values()) if not phase.finished]
        return " · ".join([self._stage(), *open_phases, duration(self.elapsed_s()), *self._left()])

    def _stage(self) -> str:
        if self._preparing:
            return "starting"
        return "ending" if self.step > self.total_steps else self._heading(self.step)

    def counts(self) -> tuple[object, ...]:
        """Changes exactly when something has begun or moved on."""
        return self.step, *((phase.name, phase.done, phase.total) for phase in list(self.phases.values()))

    def summary(self, step: int, metrics: Metrics, seconds: float) -> str:
        """``step 3/24 · valid 91% · solve ded .41 abd .38 · loss 0.0123 · 21 s · about 7 min left``."""
        parts = [self._heading(step)]
        valid = valid_rate(metrics)
        if valid is not None:
            parts.append(f"valid {valid:.0%}")
        rates = solve_rates(metrics)
        if rates:
            parts.append("solve " + " ".join(f"{kind[:3]} {share(rate)}" for kind, rate in rates.items()))
        if "policy/loss" in metrics:
            parts.append(f"loss {scalar(metrics, 'policy/loss'):.4f}")
        return " · ".join([*parts, duration(seconds), *self._left()])

    def _heading(self, step: int) -> str:
        return f"step {step}/{self.total_steps}"

    def _left(self) -> list[str]:
        left = self.remaining_s()
        if left is None:
            return [f"time left known after step {self.step}"]
        return [f"about {duration(left)} left"] if left else []


def duration(seconds: float) -> str:
    """``8 s``, ``7 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def share(rate: float) -> str:
    """A rate between 0 and 1 in three characters: ``.41``, ``1.0``."""
    return "1.0" if rate >= 0.995 else f"{rate:.2f}"[1:]


class Display(Protocol):
    """Where progress is shown."""

    def show(self, state: ProgressState) -> None:
        """Keeps showing this state, and no other, until closed."""
        ...

    def print(self, text: str) -> None:
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
        """Begins to show a run of so many steps or minutes, of which ``elapsed_s`` seconds have passed."""
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
        """``n`` more things of a phase are done."""
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
        self.log(self._state.summary(step, metrics, seconds))

    def log(self, text: str) -> None:
        """A line, or several, for people to read."""
        _LOG.info(text)
        self._display.print(text)

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
        self._display.print(f"{record.levelname.lower()}: {record.getMessage()}")


def open_progress(stream: TextIO | None = None) -> Progress:
    """Progress on a stream, standard output by default."""
    stream = stream or sys.stdout
    console = Console(file=stream)
    return Progress(LiveDisplay(console) if console.is_terminal else PlainDisplay(stream))


class PlainDisplay:
    """A line every few seconds while something moves, and one now and then while nothing does."""

    def __init__(self, stream: TextIO, interval_s: float = 5.0, patience: int = 6) -> None:
        """``patience``: intervals without news after which the line is repeated."""
        self._stream = stream
        self._interval_s = interval_s
        self._patience = patience
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._state = ProgressState(0)

    def show(self, state: ProgressState) -> None:
        self._state = state
        if self._thread is None:
            self._thread = threading.Thread(target=self._tick, daemon=True)
            self._thread.start()

    def print(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _tick(self) -> None:
        seen: tuple[object, ...] = ()
        silent = 0
        while not self._closed.wait(self._interval_s):
            silent += 1
            state = self._state
            if state.counts() != seen or silent >= self._patience:
                seen, silent = state.counts(), 0
                self.print(state.line())


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

    def print(self, text: str) -> None:
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
