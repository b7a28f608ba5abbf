"""What runs learned, arm by arm: a table in Markdown on standard output, and a figure.

python -m tools.learning_report.report RUN_DIR... [--base EXAM.json] [--out docs/learning.png]

The first run given is one of the main arm. Runs whose configs differ in nothing but name and seed are one arm; other
arms are called by what they change. The table shows the whole exam where every run directory has an ``exam.json`` of
its last checkpoint (``azr exam --model RUN_DIR/checkpoints/STEP/policy --out RUN_DIR/exam.json``), and otherwise the
part of it that each run takes before its first step and after its last. The figure always shows that part.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from azr.evaluation.result import ACCURACY, ALL, GREEDY
from azr.runs.metrics import EVAL, scalar
from tools.learning_report import changes as changes
from tools.learning_report.changes import Change
from tools.learning_report.runs import Run, arms, read

HARDEST = "novel"
"""The band of compositions that pretraining never shows."""
SHOWN = f"{EVAL}mean/{ACCURACY}"
PROPOSALS = {
    "valid proposals": (changes.valid, changes.judged),
    "valid and new proposals": (changes.fresh, changes.judged),
    "learnable, of all proposals": (changes.learnable, changes.judged),
    "learnable, of the valid and new": (changes.learnable, changes.fresh),
}


def table(found: dict[str, list[Run]]) -> str:
    """One column per arm: shares in percent at the start and the end, and by how many points they differ."""
    rows = [
        ["", *found],
        ["---"] * (1 + len(found)),
        ["seeds", *(_listed(run.config.run.seed for run in own) for own in found.values())],
        ["steps", *(_listed(scalar(run.steps[-1], "step") for run in own) for own in found.values())],
    ]
    for name, change in _changes([run for own in found.values() for run in own]).items():
        rows.append([name, *(_cell([change(run) for run in own]) for own in found.values())])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _changes(runs: Sequence[Run]) -> dict[str, Callable[[Run], Change | None]]:
    """What a row shows of a run, by name."""
    kinds = runs[0].config.selfplay.kinds
    asked = {f"{kind}, temperature 1": (kind, ALL, ACCURACY) for kind in kinds}
    asked |= {"**mean, temperature 1**": (ALL, ALL, ACCURACY), f"mean, band {HARDEST}": (ALL, HARDEST, ACCURACY)}
    asked |= {f"{kind}, greedy": (kind, ALL, GREEDY) for kind in kinds} | {"**mean, greedy**": (ALL, ALL, GREEDY)}
    exam = changes.full_change if _whole(runs) else changes.in_run_change
    rows: dict[str, Callable[[Run], Change | None]] = {
        name: partial(exam, kind=kind, band=band, measure=measure) for name, (kind, band, measure) in asked.items()
    }
    for name, (wanted, among) in PROPOSALS.items():
        rows[name] = partial(changes.proposal_change, wanted=wanted, among=among)
    return rows


def _whole(runs: Sequence[Run]) -> bool:
    return all(run.full is not None for run in runs)


def _cell(found: Sequence[Change | None]) -> str:
    known = [change for change in found if change is not None]
    return str(changes.over_seeds(known)) if known else "-"


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def legend(runs: Sequence[Run]) -> str:
    """Where the table's numbers come from."""
    whole = (
        "Exam: all of it. Intervals (95%): Student's over the seeds of an arm that has several; otherwise a bootstrap "
        "over the exam's tasks, paired task by task."
    )
    part = "Exam: the part that each run takes. Intervals (95%): Student's over the seeds of an arm that has several."
    last = f"Proposals: means over the first and the last {changes.WINDOW} steps."
    return f"Percent, start → end (difference in points). {whole if _whole(runs) else part} {last}"


def figure(found: dict[str, list[Run]]) -> Figure:
    """Accuracy at temperature 1 over the steps. Bands are 95% intervals: over seeds where an arm has several, whose
    own lines are thin then, and over tasks otherwise."""
    drawing = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = drawing.subplots()
    for name, runs in found.items():
        _draw(axes, name, runs)
    axes.set(xlabel="step", ylabel="exam accuracy at temperature 1, mean of kinds, %", title="Held-out exam")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return drawing


def _draw(axes: Axes, name: str, runs: Sequence[Run]) -> None:
    lines = [{scalar(exam, "step"): 100 * scalar(exam, SHOWN) for exam in run.exams} for run in runs]
    steps = sorted(set.intersection(*map(set, lines)))
    means = [fmean(line[step] for line in lines) for step in steps]
    if len(runs) > 1:
        halves = [changes.half_width([line[step] for line in lines]) for step in steps]
        low, high = ([mean + sign * half for mean, half in zip(means, halves, strict=True)] for sign in (-1, 1))
    else:
        low, high = ([100 * scalar(exam, f"{SHOWN}_{end}") for exam in runs[0].exams] for end in ("low", "high"))
    (drawn,) = axes.plot(steps, means, marker="o", markersize=3, label=name + f", {len(runs)} seeds" * (len(runs) > 1))
    axes.fill_between(steps, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)
    if len(runs) > 1:
        for line in lines:
            axes.plot(list(line), list(line.values()), color=drawn.get_color(), linewidth=0.5, alpha=0.6)


def main() -> None:
    parser = argparse.ArgumentParser(description="Shows what runs learned, arm by arm.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="run directories, the main arm's first")
    parser.add_argument("--base", type=Path, help="exam.json of the first model; in its folder when not given")
    parser.add_argument("--out", type=Path, default=Path("docs/learning.png"), help="the figure")
    options = parser.parse_args()
    try:
        runs = [read(path, options.base) for path in options.runs]
        found = arms(runs)
        print(f"{table(found)}\n\n{legend(runs)}")
        figure(found).savefig(options.out)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
