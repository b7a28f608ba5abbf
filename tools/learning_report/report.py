"""What runs learned, arm by arm: a table in Markdown and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from azr.evaluation.scores import GREEDY
from azr.runs.metrics import scalar
from tools.learning_report import changes
from tools.learning_report.changes import ALL, SAMPLED, Change
from tools.learning_report.runs import EXAM, Run

PROGRAMS = {"lines": "lines of a new task's program, with its head", "halstead_volume": "Halstead volume of it, bits"}
"""Numbers of programs that show whether tasks grow, by their metrics."""
DIFFERENCES_LEGEND = "Percent: theirs → ours (difference in points, 95% by bootstrap over seeds and tasks at once)."
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
    for number, name in PROGRAMS.items():
        rows.append(
            [name, *(_number_cell([changes.mean_of_tasks(run, number) for run in runs]) for runs in arms.values())]
        )
    return _markdown(rows)


def differences(arms: dict[str, list[Run]]) -> str:
    """By how many points the first arm is above the first model and above every other arm, on the whole exam."""
    (main, ours), *others = arms.items()
    rows = [[f"{main} minus", "temperature 1", "greedy"], ["---"] * 3]
    for name, theirs in [("the base", None), *others]:
        found = [changes.whole_exam_difference(ours, theirs, measure) for measure in (SAMPLED, GREEDY)]
        rows.append([name, *map(str, found)])
    return _markdown(rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _number_cell(of_runs: Sequence[tuple[float, float] | None]) -> str:
    measured = [each for each in of_runs if each is not None]
    return " → ".join(f"{fmean(side):.1f}" for side in zip(*measured, strict=True)) if measured else "-"


def _changes(runs: Sequence[Run]) -> dict[str, Callable[[Run], Change | None]]:
    """What a row shows of a run, by name."""
    kinds = runs[0].config.selfplay.kinds
    shown: dict[str, tuple[str, str, str]] = {}
    for words, measure in (("temperature 1", SAMPLED), ("greedy", GREEDY)):
        shown |= {f"{kind}, {words}": (kind, ALL, measure) for kind in kinds if len(kinds) > 1}
        shown |= {f"{difficulty}, {words}": (ALL, difficulty, measure) for difficulty in _difficulties(runs[0])}
        shown[f"**mean, {words}**"] = (ALL, ALL, measure)
    change = changes.whole_exam_change if is_whole(runs) else changes.in_run_change
    rows: dict[str, Callable[[Run], Change | None]] = {
        name: partial(change, kind=kind, difficulty=difficulty, measure=measure)
        for name, (kind, difficulty, measure) in shown.items()
    }
    for name, (part, whole) in PROPOSALS.items():
        rows[name] = partial(changes.proposal_change, part=part, whole=whole)
    return rows


def _difficulties(run: Run) -> list[str]:
    """Of the exam that the run evaluates, in its order."""
    kind, measure = run.config.selfplay.kinds[0], f"/{GREEDY}"
    named = (name.removeprefix(f"{EXAM}/{kind}/") for name in run.evals[0] if name.startswith(f"{EXAM}/{kind}/"))
    return [name.removesuffix(measure) for name in named if name.endswith(measure)]


def is_whole(runs: Sequence[Run]) -> bool:
    """Whether all of them have an evaluation on the whole exam."""
    return all(run.whole is not None for run in runs)


def _cell(of_runs: Sequence[Change | None]) -> str:
    measured = [change for change in of_runs if change is not None]
    return str(changes.over_seeds(measured)) if measured else "-"


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def legend(runs: Sequence[Run]) -> str:
    """Where the table's numbers come from."""
    seeds = "Intervals (95%): Student's over the seeds of an arm that has several"
    if is_whole(runs):
        exam = f"Exam: all of it. {seeds}; otherwise a bootstrap over the exam's tasks, paired task by task."
    else:
        exam = f"Exam: the subset that each run evaluates. {seeds}."
    last = f"Proposals: means over the first and the last {changes.WINDOW} steps."
    return f"Percent, start → end (difference in points). {exam} {last}"


def figure(arms: dict[str, list[Run]]) -> Figure:
    """Accuracy at temperature 1 over the steps, and below it how long and complex the programs of new tasks are. Bands
    are 95% intervals: over seeds where an arm has several, whose own lines are thin then, and over tasks otherwise."""
    drawing = Figure(figsize=(8, 8), dpi=150, layout="constrained")
    grid = drawing.add_gridspec(2, 2, height_ratios=(3, 2))
    axes = drawing.add_subplot(grid[0, :])
    below = [drawing.add_subplot(grid[1, column]) for column in range(len(PROGRAMS))]
    for name, runs in arms.items():
        color = _draw(axes, name, runs)
        for under, number in zip(below, PROGRAMS, strict=True):
            for run in runs:
                points = run.programs[number]
                under.plot(list(points), list(points.values()), color=color, linewidth=0.8)
    axes.set(xlabel="step", ylabel="exam accuracy at temperature 1, %", title="Held-out exam")
    axes.legend(frameon=False)
    for under, name in zip(below, PROGRAMS.values(), strict=True):
        under.set(xlabel="step", title=name)
    for each in (axes, *below):
        each.grid(alpha=0.3)
    return drawing


def _draw(axes: Axes, name: str, runs: Sequence[Run]) -> str:
    """Returns the colour of the arm."""
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
    return to_hex(curve.get_color())
