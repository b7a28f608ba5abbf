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
    """One kind of work inside a step; several run at once."""

    name: str
    since: float
    """Clock reading when it began, seconds."""
    total: int | None = None
    """How much there is to do, as far as it is known."""
    entered: int = 0
    done: int = 0

    @property
    def count(self) -> str:
        """``4/36``, or ``4`` where the total is not known."""
        return str(self.done) if self.total is None else f"{self.done}/{self.total}"


class Progress:
    """Progress as the experiment reports it. Every line that stays is logged as well.

    A terminal shows at its foot where the run is, with a bar per phase of the step. Any other stream gets a line every
    few seconds while something moves, and one now and then while nothing does.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 5.0,
        patience: int = 6,
    ) -> None:
        """``stream``: standard output by default; ``patience``: intervals without news after which the line is
        repeated."""
        self._clock, self._interval_s, self._patience = clock, interval_s, patience
        # Not by FORCE_COLOR, which notebooks set.
        self._console = Console(file=stream, force_terminal=(stream or sys.stdout).isatty())
        self._closed = threading.Event()
        self._shown: Live | threading.Thread | None = None
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
        if self._shown is None:
            self._shown = (
                Live(get_renderable=self._bars, console=self._console, refresh_per_second=4, transient=True)
                if self._console.is_terminal
                else threading.Thread(target=self._write_lines, daemon=True)
            )
            self._shown.start()

    def phase(self, name: str, total: int | None = None) -> Phase:
        """A phase, begun now if it is new, and how much there is to do in it where that is known."""
        phase = self.phases.setdefault(name, Phase(name, self._clock()))
        if total is not None:
            phase.total = max(total, phase.entered)
        return phase

    @contextmanager
    def busy(self, name: str) -> Iterator[None]:
        """One thing is in a phase until the context is left. Without a declared total, those that entered are it."""
        phase = self.phase(name)
        phase.entered += 1
        phase.total = max(phase.total or 0, phase.entered)
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
        self._print(text)

    def showing_warnings(self) -> AbstractContextManager[None]:
        """Show warnings and errors that are logged below ``azr``, until the context is left."""
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self._print(f"{record.levelname.lower()}: {record.getMessage()}")  # type: ignore[method-assign]
        return logging_to(handler)

    def close(self) -> None:
        """Stops showing anything; can be called twice."""
        self._closed.set()
        if isinstance(self._shown, Live):
            self._shown.stop()
        elif self._shown is not None:
            self._shown.join()

    def line(self) -> str:
        """``step 3/24 · propose 12/36 · solve 4/36 · 12 s · about 7 min left``."""
        now = self._clock()
        if self._preparing:
            stage = "starting"
        else:
            stage = "ending" if self.step > self._total_steps else f"step {self.step}/{self._total_steps}"
        open_phases = [
            f"{phase.name} {duration(now - phase.since) if phase.total == 1 else phase.count}"
            for phase in list(self.phases.values())  # a copy, because another thread draws this while phases begin
            if phase.total is None or phase.done < phase.total
        ]
        return " · ".join([stage, *open_phases, duration(now - self._since), *self._left()])

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

    def _print(self, text: str) -> None:
        if self._console.is_terminal:
            self._console.out(text, highlight=False)
        else:
            self._console.file.write(f"{text}\n")
            self._console.file.flush()

    def _write_lines(self) -> None:
        seen: list[object] = []
        silent = 0
        while not self._closed.wait(self._interval_s):
            silent += 1
            news = [self.step, *((phase.name, phase.count) for phase in list(self.phases.values()))]
            if news != seen or silent >= self._patience:
                seen, silent = news, 0
                self._print(self.line())

    def _bars(self) -> Group:
        rows = Table.grid(padding=(0, 1))
        for phase in list(self.phases.values()):
            bar = ProgressBar(total=phase.total, completed=phase.done, width=30, pulse=phase.total is None)
            rows.add_row(Text(f"  {phase.name}"), bar, Text(phase.count))
        return Group(Text(self.line(), no_wrap=True, overflow="ellipsis"), rows)


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
