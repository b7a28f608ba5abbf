"""What runs learned, arm by arm: a table in Markdown and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from azr.evaluation.scores import GREEDY
from azr.runs.metrics import scalar
from tools.learning_report import changes
from tools.learning_report.changes import ALL, SAMPLED, Change
from tools.learning_report.runs import Run

HARDEST = "novel"
"""The difficulty of compositions that pretraining never shows."""
PROPOSALS = {
    "valid proposals": (changes.valid, changes.judged),
    "valid and new proposals": (changes.fresh, changes.judged),
    "learnable, of all proposals": (changes.learnable, changes.judged),
    "learnable, of the valid and new": (changes.learnable, changes.fresh),
}


def table(arms: dict[str, list[Run]]) -> str:
    """One column per arm: shares in percent at the start and the end, and by how many points they differ."""
    rows = [
        ["", *arms],
        ["---"] * (1 + len(arms)),
        ["seeds", *(_listed(run.config.run.seed for run in runs) for runs in arms.values())],
        ["steps", *(_listed(scalar(run.steps[-1], "step") for run in runs) for runs in arms.values())],
    ]
    for name, change in _changes([run for runs in arms.values() for run in runs]).items():
        rows.append([name, *(_cell([change(run) for run in runs]) for runs in arms.values())])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _changes(runs: Sequence[Run]) -> dict[str, Callable[[Run], Change | None]]:
    """What a row shows of a run, by name."""
    kinds, accuracy, greedy = runs[0].config.selfplay.kinds, SAMPLED, GREEDY
    shown = {f"{kind}, temperature 1": (kind, ALL, accuracy) for kind in kinds}
    shown |= {"**mean, temperature 1**": (ALL, ALL, accuracy), f"mean, {HARDEST} tasks": (ALL, HARDEST, accuracy)}
    shown |= {f"{kind}, greedy": (kind, ALL, greedy) for kind in kinds} | {"**mean, greedy**": (ALL, ALL, greedy)}
    change = changes.whole_exam_change if _whole(runs) else changes.in_run_change
    rows: dict[str, Callable[[Run], Change | None]] = {
        name: partial(change, kind=kind, difficulty=difficulty, measure=measure)
        for name, (kind, difficulty, measure) in shown.items()
    }
    for name, (part, whole) in PROPOSALS.items():
        rows[name] = partial(changes.proposal_change, part=part, whole=whole)
    return rows


def _whole(runs: Sequence[Run]) -> bool:
    return all(run.whole is not None for run in runs)


def _cell(of_runs: Sequence[Change | None]) -> str:
    measured = [change for change in of_runs if change is not None]
    return str(changes.over_seeds(measured)) if measured else "-"


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def legend(runs: Sequence[Run]) -> str:
    """Where the table's numbers come from."""
    seeds = "Intervals (95%): Student's over the seeds of an arm that has several"
    if _whole(runs):
        exam = f"Exam: all of it. {seeds}; otherwise a bootstrap over the exam's tasks, paired task by task."
    else:
        exam = f"Exam: the subset that each run evaluates. {seeds}."
    last = f"Proposals: means over the first and the last {changes.WINDOW} steps."
    return f"Percent, start → end (difference in points). {exam} {last}"


def figure(arms: dict[str, list[Run]]) -> Figure:
    """Accuracy at temperature 1 over the steps. Bands are 95% intervals: over seeds where an arm has several, whose
    own lines are thin then, and over tasks otherwise."""
    drawing = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = drawing.subplots()
    for name, runs in arms.items():
        _draw(axes, name, runs)
    axes.set(xlabel="step", ylabel="exam accuracy at temperature 1, mean of kinds, %", title="Held-out exam")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return drawing


def _draw(axes: Axes, name: str, runs: Sequence[Run]) -> None:
    (shown,) = changes.exam_metrics(runs[0], ALL, ALL, SAMPLED)
    lines = [{scalar(line, "step"): 100 * scalar(line, shown) for line in run.evals} for run in runs]
    steps = sorted(set.intersection(*map(set, lines)))
    means = [fmean(line[step] for line in lines) for step in steps]
    if len(runs) > 1:
        halves = [changes.half_width([line[step] for line in lines]) for step in steps]
        low, high = ([mean + sign * half for mean, half in zip(means, halves, strict=True)] for sign in (-1, 1))
    else:
        low, high = ([100 * scalar(line, f"{shown}_{end}") for line in runs[0].evals] for end in ("low", "high"))
    (curve,) = axes.plot(steps, means, marker="o", markersize=3, label=name + f", {len(runs)} seeds" * (len(runs) > 1))
    axes.fill_between(steps, low, high, color=curve.get_color(), alpha=0.15, linewidth=0)
    if len(runs) > 1:
        for line in lines:
            axes.plot(list(line), list(line.values()), color=curve.get_color(), linewidth=0.5, alpha=0.6)
