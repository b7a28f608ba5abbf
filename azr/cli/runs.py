"""List the runs in a folder, those that differ in seed and name alone together: step, state, and the gain of the last
evaluation over the first, in points, with its interval at 95%; of several seeds also the mean, with a t interval."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from azr.cli.options import Parser
from azr.config_tree import leaves
from azr.errors import UserError
from azr.launch import read_config
from azr.records import grouped
from azr.runs.run_dir import RUN_CONFIG, RunDirectory, is_owned
from azr.runs.sample_file import read_metrics

_OWN = {"run.name", "run.root", "run.seed"}
"""Options that each run of a group has for itself."""
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t at 97.5%, for 1 to 9 degrees of freedom; more have the last."""


def main(argv: Sequence[str]) -> int:
    root = parser().parse(argv).root
    options = {}
    for path in sorted(root.glob(f"*/{RUN_CONFIG}")):
        try:
            options[path.parent] = leaves(read_config(path))
        except UserError as error:  # of another version
            print(f"left out: {error}", file=sys.stderr)
    if not options:
        raise UserError(f"{root} holds no runs: name the folder in which runs have theirs, such as orz_ckpt.")
    first, *others = options.values()
    differing = [name for name in first if name not in _OWN and any(each.get(name) != first[name] for each in others)]
    named = ((", ".join(f"{name} {each.get(name)}" for name in differing), run) for run, each in options.items())
    from azr.evaluation.report import aligned  # It loads numpy.

    for same, folders in grouped(named).items():
        table = [("run", "seed", "step", "state", "gain"), *_lines({folder: options[folder] for folder in folders})]
        print(f"{same}\n{aligned(table, left=1)}\n" if same else aligned(table, left=1))
    return 0


def parser() -> Parser:
    parser = Parser("runs", __doc__)
    parser.add_argument("root", metavar="ROOT", nargs="?", type=Path, default=Path("orz_ckpt"), help="folder of runs")
    return parser


def _lines(runs: Mapping[Path, Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    from azr.evaluation.report import differences_of_run, signed

    gains: dict[str, list[float]] = {}
    for folder, options in runs.items():
        run, steps = RunDirectory(folder), options["run.steps"]
        step = max((step for step, _ in read_metrics(run.metrics)), default=0) if run.metrics.is_file() else 0
        differences = differences_of_run(run.answers(0).parent)
        for each in differences:
            gains.setdefault(each.suite, []).append(100 * each.gain.value)
        told = ", ".join(f"{each.suite} {signed(each.gain)}" for each in differences)
        state = "running" if is_owned(folder) else "finished" if step >= steps else "stopped"
        yield folder.name, str(options["run.seed"]), f"{step}/{steps}", state, told
    means = ", ".join(f"{suite} {_mean(values)}" for suite, values in gains.items() if len(values) > 1)
    if means:
        yield f"mean of {len(runs)}", "", "", "", means


def _mean(values: Sequence[float]) -> str:
    """Return the mean of several seeds as text, with its t interval."""
    half = _T[min(len(values) - 2, len(_T) - 1)] * stdev(values) / len(values) ** 0.5
    return f"{fmean(values):+.1f} [{fmean(values) - half:+.1f}, {fmean(values) + half:+.1f}]"
