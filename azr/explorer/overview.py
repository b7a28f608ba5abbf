"""Curves of one run or several over their steps: the overview, and the page of response lengths."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from markupsafe import Markup

from azr.explorer import queries
from azr.explorer.queries import TaskFilter
from azr.explorer.site import Links, Series, ShownRun, chart, number, render
from azr.records import ORIGINS, REASONS, REPEATS, ROLES, Role
from azr.tasks.base import RejectReason

EVAL = "eval/"
_MEASURE = re.compile(r"greedy|(?:mean|pass)@\d+")
"""Ends the names of evaluations' shares of right answers."""
MAX_SERIES = 12
"""Lines of one chart; of more, the first."""
_SHARES = {
    "solve rate of this step's attempts": "/solver/accuracy",
    "valid proposals": "/proposer/valid_rate",
    "learnable tasks among the valid": "/proposer/learnable_rate",
    "estimated solve rate of new tasks": "/proposer/solve_rate",
    "repeated groups without a gradient": "/solver/replayed/idle",
}
_MEANS = {
    "reward of proposers": ("/proposer/reward", "", None),
    "reward of solvers": ("/solver/reward", "", None),
    "mean length of proposals": ("/proposer/response_length", "tokens", 0.0),
    "mean length of answers": ("/solver/response_length", "tokens", 0.0),
}
_SINGLE = {
    "policy/loss": ("policy loss", ""),
    "policy/grad_norm": ("gradient norm of the policy", ""),
    "policy/entropy": ("entropy of the policy over all sampled tokens", "nats"),
    "policy/mismatch_mean": ("mismatch: mean |log-probability, trainer - engine|", "nats"),
    "critic/loss": ("critic loss", ""),
    "computed_tokens/train policy": ("tokens that the policy's update computes", "tokens"),
}
LENGTHS = ("p90", "p50", "p10", "mean")
"""Curves of response lengths: columns of the index."""
_NO_PHASES = ("step", "executor alone", "checkpoint", "learned beside play")
MAX_CONFIG = 100_000
"""Bytes of a config that are read."""
_SETUP = {"model": "model.path", "estimator": "algorithm.estimator.name", "seed": "run.seed"}
"""Options of a run that stand on top."""
LATEST = 15
"""Steps in the table of the latest."""
Numbers = Mapping[str, Any]
StepNumbers = Sequence[Numbers]


def overview(runs: Sequence[ShownRun], current: ShownRun, links: Links, others: str = "") -> Markup:
    """Return the setup of the current run, how that of the others differs, curves of all, and the latest steps.
    ``others``: a form that chooses the runs."""
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
    configs = [_head_of(run.index.run / "config.yaml") for run in runs]
    config = configs[runs.index(current)]
    options = [*map(_options, configs)]
    setup = [(name, options[runs.index(current)].get(option)) for name, option in _SETUP.items()]
    differing = {name: [each.get(name, "-") for each in options] for name in dict.fromkeys(itertools.chain(*options))}
    kinds, recorded = _kinds(steps), queries.steps(index)
    return render(
        "overview", names=[run.name for run in runs], current=current.name, config=config, others=others,
        commands=[line[2:] for line in config.splitlines() if line.startswith("# ")],
        pairs=[(name, value) for name, value in setup if value] + _code(index.run) + facts,
        differing=[(name, each) for name, each in differing.items() if len({*each}) > 1],
        charts=[*charts([(run.name, queries.metrics(run.index)) for run in runs])],
        kinds=[f"#solved, {kind}" for kind in kinds],
        steps=[(step["step"], step["step"] in recorded, _latest(step, kinds)) for step in reversed(steps[-LATEST:])],
        links=links,
    )  # fmt: skip


def _options(config: str) -> dict[str, str]:
    """Return the options of a ``config.yaml`` by dotted name, with their values as they are written."""
    options, path = dict[str, str](), list[str]()
    for line in config.splitlines():
        text = line.strip()
        name, _, value = text.partition(":")
        if text.startswith("- "):
            options[".".join(path)] = f"{options.get('.'.join(path), '')} {text[2:]}".strip()
        elif not text.startswith("#"):
            path = [*path[: (len(line) - len(line.lstrip())) // 2], name]
            options[".".join(path)] = value.strip()
    return options


def _head_of(path: Path) -> str:
    """Return the beginning of a file's text; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_CONFIG).decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def _code(run: Path) -> list[tuple[str, str]]:
    """Return the version of the code that the newest checkpoint names."""
    newest = max(run.glob("checkpoints/step_*/driver.json"), default=run)
    found = re.search(r'"code": "([^"\\]*)"', _head_of(newest))
    return [("code", found[1])] if found else []


def charts(runs: Sequence[tuple[str, StepNumbers]]) -> Iterator[Markup]:
    """Yield charts of what was measured in any of the runs."""
    for title, ending in _SHARES.items():
        yield chart(title, _by_kind(runs, ending), "%", least=0.0, most=1.0)
    for title, names in _evaluations(runs).items():
        yield chart(title, _series(runs, names), "%", least=0.0)
    for run, steps in runs:
        of_run = f" ({run})" if len(runs) > 1 else ""
        for kind in _kinds(steps):
            reasons = ["valid", *map(str, RejectReason)]
            funnel = [Series(reason, _points(steps, f"{kind}/proposer/funnel/{reason}")) for reason in reasons]
            yield chart(f"proposal funnel, {kind}{of_run}", funnel, "proposals", shape="area")
            repeats = [Series(what, _points(steps, f"{kind}/proposer/repeats/{what}")) for what in REPEATS]
            yield chart(f"what duplicates repeat, {kind}{of_run}", repeats, "proposals", shape="area")
            for title, name in (("teaching mass", "teaching_mass"), ("teaching mass a group", "mass_per_group")):
                masses = [Series(each, _points(steps, f"{kind}/solver/{each}/{name}")) for each in ORIGINS]
                yield chart(f"{title}, {kind}{of_run}", masses, "4s(1-s)", least=0.0)
            chained = {f"chains/{kind}/predicted": "predicted", f"{kind}/solver/chained/solve_rate": "measured"}
            rates = [Series(label, _points(steps, name)) for name, label in chained.items()]
            yield chart(f"solve rate of chained tasks, {kind}{of_run}", rates, "%", least=0.0, most=1.0)
        for role in ROLES:
            why = [Series(reason.replace("_", " "), points) for reason, points in _by_reason(steps, role).items()]
            yield chart(f"malformed or ungraded {role} responses{of_run}", why, "responses", shape="area")
        yield chart(f"phases, which overlap{of_run}", _phases(steps), "seconds", least=0.0)
    yield chart("time of a step", _series(runs, {"seconds/step": "step"}), "seconds", least=0.0)
    for title, (ending, unit, least) in _MEANS.items():
        yield chart(title, _by_kind(runs, ending), unit, least=least)
    for metric, (title, unit) in _SINGLE.items():
        yield chart(title, _series(runs, {metric: metric.partition("/")[2]}), unit)
    for what, title in (("buffer", "tasks in the buffer"), ("shapes", "distinct shapes among stored programs")):
        stored = {name: name.split("/")[1] for name in _names(runs) if name.startswith(f"{what}/")}
        yield chart(title, _series(runs, stored), what, least=0.0)


def lengths(runs: Sequence[ShownRun], others: str = "") -> Markup:
    """Return the page of response lengths: percentiles and the share that was cut off, runs in the same charts.
    ``others``: a form that chooses the runs."""
    lines: dict[tuple[str, str], list[Series]] = {}
    cut_off: dict[str, list[Series]] = {}
    for run in runs:
        prefix = f"{run.name} · " if len(runs) > 1 else ""
        for (role, kind), group in groupby(queries.lengths(run.index), key=itemgetter("role", "kind")):
            spreads = [*group]
            lines.setdefault((role, kind), []).extend(
                Series(f"{prefix}{name}", [(each["step"], each[name]) for each in spreads]) for name in LENGTHS
            )
            shares = [(each["step"], each["truncated"] / each["count"]) for each in spreads]
            cut_off.setdefault(role, []).append(Series(f"{prefix}{kind}", shares))
    charts = [chart(f"{kind}, {role}: length", lines[role, kind], "tokens", least=0.0) for role, kind in sorted(lines)]
    charts += [
        chart(f"cut off among {role} responses", series, "%", least=0.0, most=1.0)
        for role, series in sorted(cut_off.items())
    ]
    return render("lengths", charts=charts, others=others)


def _latest(step: Numbers, kinds: Sequence[str]) -> list[str]:
    """Cells of a step's row."""
    proposed = _total(step, "/proposer/funnel/proposed")
    solved = [step.get(f"{kind}/solver/accuracy") for kind in kinds]
    return [
        f"{_total(step, '/proposer/funnel/valid'):.0f} of {proposed:.0f}" if proposed else "-",
        *("-" if share is None else f"{share:.1%}" for share in solved),
        number(step.get("policy/loss")),
        number(step.get("seconds/step")),
    ]


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
        chosen = max((measure for *_, measure in names), key=lambda measure: measure.startswith("mean@"))
        title = f"evaluation: {suite} by group, {chosen}"
        charts[title] = {name: path for name, path, measure in names if measure == chosen}
    return dict(sorted(charts.items()))


def _by_kind(runs: Sequence[tuple[str, StepNumbers]], ending: str) -> list[Series]:
    names = (name for name in _names(runs) if name.endswith(ending) and not name.startswith(EVAL))
    return _series(runs, {name: name.split("/")[0] for name in names})


def _by_reason(steps: StepNumbers, role: Role) -> dict[str, list[tuple[float, float]]]:
    """Return counts of a role's malformed and ungraded responses of all kinds over the steps, by reason."""
    counts: dict[str, dict[int, float]] = {reason: {} for reason in REASONS}
    for step in steps:
        for name, value in step.items():
            _, _, rest = name.partition(f"/{role}/")
            what, _, reason = rest.removeprefix("trace/").partition("/")
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
    return [(step, value) for step, value in values if isinstance(value, int | float) and abs(value) < 1e300]
