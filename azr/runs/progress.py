"""Progress of a run and its remaining time: bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import logging
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from azr.runs.metrics import Metrics, duration, eval_shares, scalar, solve_rates, valid_rate
from azr.runs.run_dir import RunDirectory

_LOG = logging.getLogger("azr.progress")
WINDOW = 3
"""Steps whose means the final table shows."""


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
        return max(self.declared, self.entered) if self.declared is not None else self.entered or None

    @property
    def finished(self) -> bool:
        return self.total is not None and self.done >= self.total

    def text(self, now: float) -> str:
        """``solve 4/36``, or the time it has taken where there is only one thing to count."""
        if self.total == 1:
            return f"{self.name} {duration(now - self.since)}"
        return f"{self.name} {self.done}" + (f"/{self.total}" if self.total is not None else "")


class Progress:
    """Progress as the experiment reports it. Every line that stays is logged as well."""

    def __init__(self, display: PlainDisplay | LiveDisplay, clock: Callable[[], float] = time.monotonic) -> None:
        self._display, self._clock = display, clock
        self.phases: dict[str, Phase] = {}
        self.step = self._total_steps = 0
        self._preparing = True
        self._since = clock()
        self._until = math.inf
        self._durations: list[float] = []
        self._explained = False

    def start(
        self, total_steps: int, first_step: int = 1, max_minutes: float | None = None, elapsed_s: float = 0.0
    ) -> None:
        """Begins to show a run of so many steps or minutes, of which ``elapsed_s`` seconds have passed."""
        self.step, self._total_steps, self._preparing = first_step, total_steps, True
        self.phases.clear()
        self._durations.clear()
        self._since = self._clock()
        self._until = math.inf if max_minutes is None else self._since + 60 * max_minutes - elapsed_s
        self._display.show(self)

    def phase(self, name: str, total: int | None = None) -> Phase:
        """A phase, begun now if it is new, and how much there is to do in it where that is known."""
        phase = self.phases.setdefault(name, Phase(name, self._clock()))
        phase.declared = phase.declared if total is None else total
        return phase

    @contextmanager
    def busy(self, name: str) -> Iterator[None]:
        """One thing is in a phase until the context is left. Without a declared total, those that entered are it."""
        self.phase(name).entered += 1
        yield
        self.phase(name).done += 1

    def step_begun(self) -> None:
        """Begin a step: earlier work, such as starting engines and seeding, does not count."""
        self._preparing = False
        self.phases.clear()
        self._since = self._clock()

    def step_done(self, step: int, metrics: Metrics) -> None:
        """Ends a step with one line: ``step 3/24 · valid 91% · solve ded .41 abd .38 · loss 0.0123 · 21 s · …``. The
        first of a process follows one that explains it."""
        seconds = self._clock() - self._since
        self._durations.append(seconds)
        self.step = step + 1
        self.step_begun()
        parts = [f"step {step}/{self._total_steps}"]
        rates = solve_rates(metrics)
        if rates and not self._explained:
            self._explained = True
            shortened = ", ".join(f"{kind[:3]}: {kind}" for kind in rates)
            self.log(
                "in a step's line: valid, proposals that became tasks; solve, right answers by kind of task "
                f"({shortened}; .41 is 41%); loss, of the policy"
            )
        if (valid := valid_rate(metrics)) is not None:
            parts.append(f"valid {valid:.0%}")
        if rates:
            parts.append("solve " + " ".join(f"{kind[:3]} {share(rate)}" for kind, rate in rates.items()))
        if "policy/loss" in metrics:
            parts.append(f"loss {scalar(metrics, 'policy/loss'):.4f}")
        self.log(" · ".join([*parts, duration(seconds), *self._left()]))

    def log(self, text: str) -> None:
        _LOG.info(text)
        self._display.print(text)

    def showing_warnings(self) -> AbstractContextManager[None]:
        """Show warnings and errors that are logged below ``azr``, until the context is left."""
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self._display.print(f"{record.levelname.lower()}: {record.getMessage()}")  # type: ignore[method-assign]
        return logging_to(handler)

    def close(self) -> None:
        """Stops showing anything; can be called twice."""
        self._display.close()

    def line(self) -> str:
        """``step 3/24 · propose 12/36 · solve 4/36 · 12 s · about 7 min left``."""
        now = self._clock()
        if self._preparing:
            stage = "starting"
        else:
            stage = "ending" if self.step > self._total_steps else f"step {self.step}/{self._total_steps}"
        # A copy, because another thread draws this while phases begin.
        open_phases = [phase.text(now) for phase in list(self.phases.values()) if not phase.finished]
        return " · ".join([stage, *open_phases, duration(now - self._since), *self._left()])

    def counts(self) -> tuple[object, ...]:
        """Changes exactly when something has begun or moved on."""
        return self.step, *((phase.name, phase.done, phase.total) for phase in list(self.phases.values()))

    def remaining_s(self) -> float | None:
        """Median of past steps times what is left, or the time that the run still has; None before the first step is
        done."""
        if not self._durations:
            return None
        now, median = self._clock(), statistics.median(self._durations)
        left = self._total_steps - self.step + 1
        return max(min(median * left - min(now - self._since, median), self._until - now), 0.0)

    def _left(self) -> list[str]:
        left = self.remaining_s()
        if left is None:
            return [f"time left known after step {self.step}"]
        return [f"about {duration(left)} left"] if left else []


def share(rate: float) -> str:
    """A rate between 0 and 1 in three characters: ``.41``, ``1.0``."""
    return "1.0" if rate >= 0.995 else f"{rate:.2f}"[1:]


@contextmanager
def logging_to(handler: logging.Handler) -> Iterator[None]:
    """Give a handler what is logged below ``azr``, until the context is left."""
    logger = logging.getLogger("azr")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def open_progress(stream: TextIO | None = None) -> Progress:
    """Progress on a stream, standard output by default."""
    stream = stream or sys.stdout
    console = Console(file=stream)
    return Progress(LiveDisplay(console) if console.is_terminal else PlainDisplay(stream))


class PlainDisplay:
    """A line every few seconds while something moves, and one now and then while nothing does."""

    def __init__(self, stream: TextIO, interval_s: float = 5.0, patience: int = 6) -> None:
        """``patience``: intervals without news after which the line is repeated."""
        self._stream, self._interval_s, self._patience = stream, interval_s, patience
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, progress: Progress) -> None:
        """Keeps showing it until closed."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._tick, args=(progress,), daemon=True)
            self._thread.start()

    def print(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _tick(self, progress: Progress) -> None:
        seen: tuple[object, ...] = ()
        silent = 0
        while not self._closed.wait(self._interval_s):
            silent += 1
            if progress.counts() != seen or silent >= self._patience:
                seen, silent = progress.counts(), 0
                self.print(progress.line())


class LiveDisplay:
    """A table at the foot of the terminal: the run's bar, then one bar per phase of the step."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def show(self, progress: Progress) -> None:
        """Keeps showing it until closed."""
        if self._live is None:
            draw = partial(_table, progress)
            self._live = Live(get_renderable=draw, console=self._console, refresh_per_second=4, transient=True)
            self._live.start(refresh=True)

    def print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


def _table(progress: Progress) -> Group:
    rows = Table.grid(padding=(0, 1))
    for phase in list(progress.phases.values()):
        total = phase.total
        count = f"{phase.done}/{total}" if total is not None else str(phase.done)
        bar = ProgressBar(total=total, completed=phase.done, width=30, pulse=total is None)
        rows.add_row(Text(f"  {phase.name}"), bar, Text(count))
    return Group(Text(progress.line(), no_wrap=True, overflow="ellipsis"), rows)


def summary(
    steps: Sequence[Metrics], run: RunDirectory, evals: Sequence[Metrics], gains: Sequence[str], *, tensorboard: bool
) -> str:
    """The table at the end of a run: means over the first and the last `WINDOW` steps, or over half of them.

    ``steps`` holds at least one step's metrics, oldest first; ``evals`` the metrics that have evaluation results, of
    which the first and the last are shown; ``gains``: sentences below the table; ``tensorboard`` tells whether the
    run wrote for it.
    """
    window = max(1, min(WINDOW, len(steps) // 2))
    rates = {"valid proposals": [valid_rate(step) for step in steps]}
    for kind in sorted({kind for step in steps for kind in solve_rates(step)}):
        rates[f"solve rate, {kind}"] = [solve_rates(step).get(kind) for step in steps]
    rows = [("", "start", "end")]
    rows += [(label, _mean(of_steps[:window]), _mean(of_steps[-window:])) for label, of_steps in rates.items()]
    if evals:
        before, after = eval_shares(evals[0]), eval_shares(evals[-1])
        rows += [(name, f"{before[name]:.1%}" if name in before else "-", f"{after[name]:.1%}") for name in after]
    prefix = "buffer/"
    buffers = {name.removeprefix(prefix): scalar(steps[-1], name) for name in steps[-1] if name.startswith(prefix)}
    rows += [(f"tasks in the buffer, {kind}", "", f"{count:.0f}") for kind, count in buffers.items()]
    width = max(len(label) for label, _, _ in rows)
    title = f"{len(steps)} steps; start and end: means of {window} step{'s' * (window > 1)} each"
    table = [f"{label:<{width}}  {start:>6}  {end:>6}" for label, start, end in rows]
    see = [f"to see it:     {_program('azr')} view {run.path}"]
    if tensorboard:
        see.append(f"               {_program('tensorboard')} --logdir {run.tensorboard}")
    azr = _program("azr")
    then = f"next:          {azr} export {run.path} FOLDER writes this model; {azr} check-model FOLDER tests another"
    return "\n".join([title, *table, *gains, f"run directory: {run.path}", *see, then])


def _program(name: str) -> Path:
    """Return the path of an installed program, from the folder this process was started in."""
    program, here = Path(sys.prefix, "bin", name), Path.cwd()
    return program.relative_to(here) if program.is_relative_to(here) else program


def _mean(rates: Iterable[float | None]) -> str:
    known = [rate for rate in rates if rate is not None]
    return f"{sum(known) / len(known):.1%}" if known else "-"
