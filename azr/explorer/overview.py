"""The overview: results of one run or several, and curves over their steps."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from azr.explorer import queries
from azr.explorer.evaluations import results
from azr.explorer.site import COLOURS, BadAddress, Compared, Links, Series, ShownRun, Values, chart, render
from azr.files import open_regular
from azr.runs.metrics import EVAL

_MEASURE = r"greedy|(?:mean|pass)@\d+"
"""Ends the names of evaluations' shares of right answers."""
_CHARTS = tomllib.loads(Path(__file__).with_name("charts.toml").read_text(encoding="utf-8"))["chart"]
_PLAYED = ("/solver/trajectories", "/proposer/trajectories", "/solver/accuracy", "/proposer/funnel/proposed")
MAX_CONFIG = 100_000
"""Bytes of a config that are read."""
_SETUP = {"model": "model.path", "estimator": "algorithm.estimator.name", "seed": "run.seed"}
"""Options of a run that stand on top."""
StepNumbers = Sequence[Mapping[str, Any]]
Measured = Sequence[tuple[ShownRun, StepNumbers]]


def overview(compared: Compared, current: ShownRun, links: Links, values: Values) -> Markup:
    """Return the results of the compared runs, setup of the current one, how that of the others differs, curves of all,
    and the latest steps. ``metric`` of the address: the name of one more curve."""
    index, runs = current.index, compared.runs
    measured = [(run, queries.metrics(run.index)) for run in runs]
    numbers = (number for _, of_run in measured for step in of_run for number in step.items())
    names = sorted({name for name, value in numbers if name != "step" and not isinstance(value, list)})
    steps, metric = measured[runs.index(current)][1], values.get("metric", "")
    kinds = sorted({name.partition("/")[0] for step in steps[-50:] for name in step if name.endswith(_PLAYED)})
    if metric and metric not in names:
        raise BadAddress(f"No step has a number {metric!r}.")
    configs = [_head_of(run.index.run / "config.yaml") for run in runs]
    config = configs[runs.index(current)]
    options = [*map(_options, configs)]
    setup = [(name, options[runs.index(current)].get(option)) for name, option in _SETUP.items()]
    newest = max(index.run.glob("checkpoints/step_*/driver.json"), default=index.run)
    code = [*re.finditer(r'"code": "([^"\\]*)"', _head_of(newest))][:1]
    differing = {name: [each.get(name, "-") for each in options] for name in dict.fromkeys(itertools.chain(*options))}
    return render(
        "overview", compared=compared, current=current.name, config=config, names=names, metric=metric,
        results=[(run, results(run.index.run)) for run in runs],
        pairs=[(name, value) for name, value in setup if value] + [("code", each[1]) for each in code],
        tasks=queries.find_tasks(index, limit=1)[1],
        responses=index.select("SELECT count(*) FROM samples")[0][0],
        differing=[(name, each) for name, each in differing.items() if len({*each}) > 1],
        chosen=chart(metric, _series(compared, measured, {metric: metric})), groups=charts(compared, measured, names),
        kinds=kinds, steps=steps, recorded=queries.steps(index), links=links,
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
        with open_regular(path) as file:
            return file.read(MAX_CONFIG).decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def charts(compared: Compared, runs: Measured, names: Sequence[str]) -> dict[str, list[Markup]]:
    """Return charts of what was measured in any of the runs, by group."""
    groups = {"evaluations": [*_evaluations(compared, runs, names)]}
    names = [name for name in names if not name.startswith(EVAL)]
    for row in _CHARTS:
        of_group = groups.setdefault(row["group"], [])
        if "shape" in row:
            of_group += _by_kind(row, runs, names)
        else:
            series = _series(compared, runs, _matching(names, row["metrics"]))
            of_group.append(chart(row["title"], series, row.get("unit", ""), bounds=row.get("axis", ())))
    return {group: [*filter(None, of_group)] for group, of_group in groups.items()}


def _by_kind(row: Mapping[str, Any], runs: Measured, names: Sequence[str]) -> Iterator[Markup]:
    """Yield a chart of each kind's parts, of several runs side by side."""
    by_kind: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for match in filter(None, (re.fullmatch(row["metrics"], name) for name in names)):
        by_kind[match[1]][match[0]] = match[2].replace("_", " ")
    zero = 0.0 if row["shape"] == "area" else None
    for kind, found in by_kind.items():
        parts = sorted(found, key=lambda name: not name.endswith("/valid"))
        of_runs = []
        for run, steps in runs:
            played = [step for step in steps if any(name.startswith(kind and f"{kind}/") for name in step)]
            series = [Series(found[name], _points(played, name, zero)) for name in parts]
            shown = run if len(runs) > 1 else None
            of_runs.append(chart(row["title"], series, row["unit"], shape=row["shape"], of=kind, run=shown))
        yield render("beside", charts=[*filter(None, of_runs)])


def _evaluations(compared: Compared, runs: Measured, names: Sequence[str]) -> Iterator[Markup]:
    """Yield charts of each suite's measures, and of its groups: of samples, or else of greedy answers."""
    for suite in dict.fromkeys(name.split("/")[1] for name in names if name.startswith(EVAL)):
        start = EVAL + re.escape(suite)
        of_suite = _matching(names, f"{start}/({_MEASURE})")
        pairs = itertools.product((r"mean@\d+", "greedy"), ("[^/]+", "[^/]+/[^/]+"))
        of_groups = (_matching(names, f"{start}/({group})/{measure}") for measure, group in pairs)
        several = next((found for found in of_groups if len({*found.values()}) > 1), {})
        for title, found in ("evaluation", of_suite), ("evaluation by group", several):
            yield chart(title, _series(compared, runs, found), "%", of=suite, bounds=(0.0,))


def _matching(names: Sequence[str], pattern: str) -> dict[str, str]:
    """Return the metrics of this name with the text in its parentheses, or else their name."""
    found = ((name, re.fullmatch(pattern, name)) for name in names)
    return {name: ", ".join(filter(None, match.groups())) or name for name, match in found if match is not None}


def _series(compared: Compared, runs: Measured, names: Mapping[str, str]) -> list[Series]:
    """Return lines. Of several runs each has its colour in every chart, and what is measured differs by dashes."""
    labels, alone = [*dict.fromkeys(names.values())], len(compared.runs) == 1
    series = []
    for (name, label), (run, steps) in itertools.product(names.items(), runs):
        at, title = labels.index(label), label if alone else f"{run.name} · {label}"
        colour = f"c{(at if alone else run.number) % COLOURS}"
        series.append(Series(title, _points(steps, name), colour, 0 if alone else at))
    return [each for each in series if each.points]


def _points(steps: StepNumbers, name: str, missing: float | None = None) -> list[tuple[float, float]]:
    values = ((step["step"], step.get(name, missing)) for step in steps)
    return [(step, value) for step, value in values if isinstance(value, int | float) and abs(value) < 1e300]
