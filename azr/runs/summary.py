"""The table at the end of a run: did it learn anything, and where is everything."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from azr.runs.metrics import Metrics, exam_accuracies, number, solve_rates, valid_rate
from azr.runs.run_dir import RunDirectory


def summary(steps: Sequence[Metrics], run: RunDirectory, window: int = 3, exams: Sequence[Metrics] = ()) -> str:
    """Means over the first and the last ``window`` steps (fewer, when there are not two windows of steps).

    ``steps`` holds at least one step's metrics, oldest first; ``exams`` the metrics that have exam results. Of those
    the first and the last are shown.
    """
    window = max(1, min(window, len(steps) // 2))
    first, last = steps[:window], steps[-window:]
    kinds = sorted({kind for step in steps for kind in solve_rates(step)})
    rows = [("", "start", "end"), _row("valid proposals", valid_rate, first, last)]
    rows += [_row(f"solve rate, {kind}", _rate_of(kind), first, last) for kind in kinds]
    rows += _exam_rows(exams[0], exams[-1]) if exams else []
    prefix = "buffer/"
    buffers = {name.removeprefix(prefix): number(steps[-1], name) for name in steps[-1] if name.startswith(prefix)}
    rows += [(f"tasks in the buffer, {kind}", "", f"{count:.0f}") for kind, count in buffers.items()]
    width = max(len(label) for label, _, _ in rows)
    title = f"{len(steps)} steps; start and end: means of {window} step{'s' * (window > 1)} each"
    table = [f"{label:<{width}}  {start:>6}  {end:>6}" for label, start, end in rows]
    return "\n".join([title, *table, f"run directory: {run.path}", f"to see it:     {tensorboard_command(run)}"])


def _exam_rows(first: Metrics, last: Metrics) -> list[tuple[str, str, str]]:
    before, after = exam_accuracies(first), exam_accuracies(last)
    return [(f"held-out exam, {kind}", f"{before[kind]:.1%}", f"{after[kind]:.1%}") for kind in after]


def tensorboard_command(run: RunDirectory) -> str:
    """The one command that opens TensorBoard on a run, from the folder this process was started in."""
    program = Path(sys.prefix, "bin", "tensorboard")
    here = Path.cwd()
    shown = program.relative_to(here) if program.is_relative_to(here) else program
    return f"{shown} --logdir {run.tensorboard}"


def _rate_of(kind: str) -> Callable[[Metrics], float | None]:
    return lambda step: solve_rates(step).get(kind)


def _row(
    label: str, rate: Callable[[Metrics], float | None], first: Sequence[Metrics], last: Sequence[Metrics]
) -> tuple[str, str, str]:
    return label, _mean(map(rate, first)), _mean(map(rate, last))


def _mean(rates: Iterable[float | None]) -> str:
    known = [rate for rate in rates if rate is not None]
    return f"{sum(known) / len(known):.1%}" if known else "-"
