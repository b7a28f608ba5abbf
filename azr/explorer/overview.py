"""Curves of one run or several over their steps: the overview, and the page of response lengths."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from azr.explorer import queries
from azr.explorer.charts import Series, area_chart, line_chart
from azr.explorer.index import RunIndex
from azr.explorer.markup import Html, el, join, number, table
from azr.explorer.queries import Spread, TaskFilter
from azr.explorer.site import Links, ShownRun
from azr.records import Reason, Role
from azr.tasks.base import RejectReason

EVAL = "eval/"
_MEASURE = re.compile(r"greedy|accuracy|(?:mean|pass)@\d+")
"""Ends the names of evaluations' shares of right answers; ``accuracy`` in older runs."""
MAX_SERIES = 12
"""Lines of one chart; of more, the first."""
_SINGLE = {
    "policy/loss": "policy loss",
    "policy/grad_norm": "gradient norm of the policy",
    "policy/entropy": "entropy of the policy",
    "policy/mismatch_mean": "mean |log-probability, trainer - engine|",
    "critic/loss": "critic loss",
    "batch/tokens": "tokens trained on",
}
LENGTHS = ("p90", "p50", "p10", "mean")
"""Curves of response lengths: columns of the index."""
_NO_PHASES = ("step", "executor alone", "checkpoint", "learned beside play")
Numbers = Mapping[str, Any]
StepNumbers = Sequence[Numbers]


def overview(runs: Sequence[ShownRun], current: ShownRun, links: Links) -> Html:
    """Curves of all runs together, then the latest steps of the current one."""
    index = current.index
    steps = queries.metrics(index)
    _, tasks = queries.find_tasks(index, TaskFilter(limit=1))
    rollouts = index.select("SELECT coalesce(sum(count), 0), count(DISTINCT step) FROM lengths")[0]
    seconds = sum(step.get("seconds/step", 0.0) for step in steps)
    facts = [
        ("steps", number(steps[-1]["step"]) if steps else "none yet"),
        ("tasks in the log", number(tasks)),
        ("responses recorded", number(int(rollouts[0]))),
        ("time of steps", f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"),
    ]
    together = [(run.name, queries.metrics(run.index)) for run in runs]
    return el(
        "section",
        el("h1", " and ".join(run.name for run in runs)),
        el("div", *(el("span", f"{name} ", el("b", value)) for name, value in facts), cls="facts"),
        el("div", *charts(together), cls="charts"),
        el("h2", f"Latest steps of {current.name}"),
        _latest(index, steps, links),
    )


def charts(runs: Sequence[tuple[str, StepNumbers]]) -> Iterator[Html]:
    """Of what was measured in any of the runs."""
    yield line_chart("solve rate of this step's attempts", _by_kind(runs, "/solver/accuracy"), least=0.0, most=1.0)
    yield line_chart("valid proposals, share", _by_kind(runs, "/proposer/valid_rate"), least=0.0, most=1.0)
    yield line_chart(
        "learnable among valid tasks, share", _by_kind(runs, "/proposer/learnable_rate"), least=0.0, most=1.0
    )
    yield line_chart("estimated solve rate of new tasks", _by_kind(runs, "/proposer/solve_rate"), least=0.0, most=1.0)
    for title, names in _evaluations(runs).items():
        yield line_chart(title, _series(runs, names), least=0.0)
    for name, steps in runs:
        for kind in _kinds(steps):
            title = f"proposal funnel, {kind}" + (f" ({name})" if len(runs) > 1 else "")
            reasons = ["valid", *map(str, RejectReason)]
            funnel = [Series(reason, _points(steps, f"{kind}/proposer/funnel/{reason}")) for reason in reasons]
            yield area_chart(title, funnel)
    for name, steps in runs:
        for role in Role:
            title = f"malformed or ungraded {role} responses" + (f" ({name})" if len(runs) > 1 else "")
            why = [Series(reason.replace("_", " "), points) for reason, points in _by_reason(steps, role).items()]
            yield area_chart(title, why)
    yield line_chart("reward of proposers", _by_kind(runs, "/proposer/reward"))
    yield line_chart("reward of solvers", _by_kind(runs, "/solver/reward"))
    yield line_chart("mean length of proposals, tokens", _by_kind(runs, "/proposer/response_length"), least=0.0)
    yield line_chart("mean length of answers, tokens", _by_kind(runs, "/solver/response_length"), least=0.0)
    yield line_chart("seconds per step", _series(runs, {"seconds/step": "step"}), least=0.0)
    for name, steps in runs:
        title = "seconds per phase; phases overlap" + (f" ({name})" if len(runs) > 1 else "")
        yield line_chart(title, _phases(steps), least=0.0)
    for metric, title in _SINGLE.items():
        yield line_chart(title, _series(runs, {metric: metric.partition("/")[2]}))
    buffered = {name: name.split("/")[1] for name in _names(runs) if name.startswith("buffer/")}
    yield line_chart("tasks in the buffer", _series(runs, buffered), least=0.0)


def lengths(runs: Sequence[ShownRun]) -> Html:
    """Return the page of response lengths: percentiles and the share that was cut off, runs in the same charts."""
    players: dict[tuple[str, str], list[tuple[str, list[Spread]]]] = {}
    for run in runs:
        of_run: dict[tuple[str, str], list[Spread]] = {}
        for spread in queries.lengths(run.index):
            of_run.setdefault((spread.kind, spread.role), []).append(spread)
        for player, spreads in of_run.items():
            players.setdefault(player, []).append((f"{run.name} · " if len(runs) > 1 else "", spreads))
    charts = []
    cut_off: dict[str, list[Series]] = {}
    for (kind, role), some in sorted(players.items(), key=lambda item: item[0][::-1]):
        lines = [
            Series(f"{run}{name}", [(each.step, getattr(each, name)) for each in spreads])
            for run, spreads in some
            for name in LENGTHS
        ]
        charts.append(line_chart(f"{kind}, {role}: tokens", lines, least=0.0))
        cut_off.setdefault(role, []).extend(
            Series(f"{run}{kind}", [(each.step, each.truncated / each.count) for each in spreads])
            for run, spreads in some
        )
    for role, series in cut_off.items():
        charts.append(line_chart(f"cut off, share of {role} responses", series, least=0.0, most=1.0))
    shown = el("div", *charts, cls="charts") if charts else el("p", "No lengths have been recorded.", cls="note")
    return join([el("h1", "Response lengths"), shown])


def _latest(index: RunIndex, steps: StepNumbers, links: Links, count: int = 15) -> Html:
    recorded = set(queries.steps(index))
    rows = []
    for step in reversed(steps[-count:]):
        at = step["step"]
        proposed = _total(step, "/proposer/funnel/proposed")
        accuracies = [step.get(f"{kind}/solver/accuracy") for kind in _kinds(steps)]
        rows.append([
            links.link(f"step {at}", "step", step=at) if at in recorded else f"step {at}",
            f"{_total(step, '/proposer/funnel/valid'):.0f} of {proposed:.0f}" if proposed else "-",
            *("-" if share is None else f"{share:.1%}" for share in accuracies),
            number(step.get("policy/loss")), number(step.get("seconds/step")),
        ])  # fmt: skip
    heads = ["", "valid proposals", *(f"solved, {kind}" for kind in _kinds(steps)), "policy loss", "seconds"]
    return table(heads, rows)


def _total(step: Numbers, suffix: str) -> float:
    return float(sum(value for name, value in step.items() if name.endswith(suffix)))


def _kinds(steps: StepNumbers) -> list[str]:
    ending = "/solver/trajectories", "/proposer/trajectories", "/solver/accuracy", "/proposer/funnel/proposed"
    return sorted({name.partition("/")[0] for step in steps[-50:] for name in step if name.endswith(ending)})


def _phases(steps: StepNumbers) -> list[Series]:
    """The phases that take longest."""
    totals: defaultdict[str, float] = defaultdict(float)
    for step in steps:
        for name, value in step.items():
            if name.startswith("seconds/") and name.partition("/")[2] not in _NO_PHASES:
                totals[name] += value
    names = sorted(totals, key=lambda name: -totals[name])[:10]
    return [Series(name.partition("/")[2], _points(steps, name)) for name in names]


def _evaluations(runs: Sequence[tuple[str, StepNumbers]]) -> dict[str, dict[str, str]]:
    """Lines by title: of a suite its measures, and of its groups the mean of samples, or else greedy answers."""
    charts: dict[str, dict[str, str]] = {}
    of_groups: dict[str, list[tuple[str, str, str]]] = {}
    for name in _names(runs):
        suite, _, rest = name.removeprefix(EVAL).partition("/")
        path, _, measure = rest.rpartition("/")
        if not name.startswith(EVAL) or not _MEASURE.fullmatch(measure):
            continue
        if not path:
            charts.setdefault(f"evaluation: {suite}", {})[name] = measure
        elif "/" not in path:
            of_groups.setdefault(suite, []).append((name, path, measure))
    for suite, names in of_groups.items():
        chosen = max((measure for *_, measure in names), key=lambda measure: measure.startswith(("mean@", "accuracy")))
        title = f"evaluation: {suite} by group, {chosen}"
        charts[title] = {name: path for name, path, measure in names if measure == chosen}
    return dict(sorted(charts.items()))


def _by_kind(runs: Sequence[tuple[str, StepNumbers]], ending: str) -> list[Series]:
    names = (name for name in _names(runs) if name.endswith(ending) and not name.startswith(EVAL))
    return _series(runs, {name: name.split("/")[0] for name in names})


def _by_reason(steps: StepNumbers, role: Role) -> dict[str, list[tuple[float, float]]]:
    """Return counts of a role's malformed and ungraded responses of all kinds over the steps, by reason."""
    counts: dict[str, dict[int, float]] = {reason: {} for reason in Reason}
    for step in steps:
        for name, value in step.items():
            _, _, rest = name.partition(f"/{role}/")
            what, _, reason = rest.removeprefix("trace/").removeprefix("prefix/").partition("/")
            if what in ("malformed", "ungraded") and reason in counts:
                counts[reason][step["step"]] = counts[reason].get(step["step"], 0.0) + value
    return {reason: list(of_steps.items()) for reason, of_steps in counts.items()}


def _names(runs: Sequence[tuple[str, StepNumbers]]) -> list[str]:
    return sorted({name for _, steps in runs for step in steps for name in step})


def _series(runs: Sequence[tuple[str, StepNumbers]], names: Mapping[str, str]) -> list[Series]:
    series = [
        Series(f"{run} · {label}" if len(runs) > 1 else label, _points(steps, name))
        for name, label in names.items()
        for run, steps in runs
    ]
    return [each for each in series if each.points][:MAX_SERIES]


def _points(steps: StepNumbers, name: str) -> list[tuple[float, float]]:
    values = ((step["step"], step.get(name)) for step in steps)
    return [(step, value) for step, value in values if isinstance(value, int | float)]
