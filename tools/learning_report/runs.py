"""Run directories read back, and which of them are runs of one arm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from radon.metrics import h_visit

from azr.config import Config
from azr.config_tree import from_tree, leaves, parse_yaml
from azr.errors import UserError
from azr.evaluation.report import load
from azr.records import Sample
from azr.runs.metrics import EVAL, Metrics, has_eval, scalar
from azr.runs.run_dir import RunDirectory
from azr.runs.sample_file import read_tasks

EXAM = f"{EVAL}exam"
"""Begins the names of the exam's metrics."""
Answers = dict[str, list[Sample]]
"""By task."""
CONTROLS = {
    ("train.policy_lr", 0.0): "learning rate 0",
    ("ablation.shuffle_rewards", True): "rewards shuffled",
    ("ablation.new_tasks", False): "seed tasks only",
}
MAY_DIFFER = ("run.name", "run.root", "run.seed")
"""Options in which runs of one arm may differ."""


@dataclass(frozen=True)
class Run:
    """One run directory."""

    path: Path
    config: Config
    steps: list[Metrics]
    """From step 1."""
    programs: dict[str, dict[int, float]]
    """Mean numbers of the programs of new tasks, by step."""
    evals: list[Metrics]
    """Of step 0 and the others with an evaluation: a subset of the exam, few samples."""
    whole: tuple[Answers, Answers] | None
    """Answers to the whole exam of the model that the run started from and of its last checkpoint."""


def read(path: Path, base: Path | None = None, evaluations: str = "eval") -> Run:
    """A run; ``base`` is the evaluation of its first model, if there is any, and ``evaluations`` the folder in the
    run's directory that has those of its checkpoints.

    Raises:
        UserError: this is not a run directory, it has no evaluation before and after its steps, or none of the base.
    """
    try:
        config = from_tree(parse_yaml((path / "config.yaml").read_text()), Config())
        lines: list[Metrics] = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    except OSError as error:
        raise UserError(f"{path} is not a run directory: {error}") from error
    steps, evals = [line for line in lines if line["step"]], [line for line in lines if has_eval(line)]
    if not steps or len(evals) < 2:
        raise UserError(f"{path} has no evaluation before and after its steps: let it end, with eval.every above 0.")
    last = path / evaluations / f"step_{int(scalar(steps[-1], 'step')):06d}"
    return Run(path, config, steps, _programs(RunDirectory(path).tasks), evals, _whole(last, base))


def _programs(tasks: Path) -> dict[str, dict[int, float]]:
    """Mean lines and Halstead volume of the programs that each step added to the buffer; kinds weigh the same."""
    found: dict[str, dict[int, dict[str, list[float]]]] = {"lines": {}, "halstead_volume": {}}
    for task in read_tasks(tasks):
        numbers = {
            "lines": sum(1 for line in task.program.splitlines() if line.strip()),
            "halstead_volume": h_visit(task.program).total.volume,
        }
        for name, number in numbers.items() if task.step else ():
            found[name].setdefault(task.step, {}).setdefault(task.kind, []).append(number)
    return {
        name: {step: fmean(map(fmean, kinds.values())) for step, kinds in sorted(by_step.items())}
        for name, by_step in found.items()
    }


def _whole(after: Path, before: Path | None) -> tuple[Answers, Answers] | None:
    if not after.exists():
        return None
    if before is None:
        raise UserError(f"{after} has nothing to be compared with: evaluate the first model and give it by --base.")
    (protocol_before, first), (protocol_after, last) = load(before), load(after)
    differ = [name for name in protocol_before if name != "model" and protocol_before[name] != protocol_after.get(name)]
    if differ or first.keys() != last.keys():
        raise UserError(f"{before} and {after} are not the same evaluation: make both with the same options.")
    by_task = [{task: answers for (suite, task), answers in each.items() if suite == "exam"} for each in (first, last)]
    return by_task[0], by_task[1]


def arms(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by arm, in the order given; the first is a run of the main arm."""
    by_label: dict[str, list[Run]] = {}
    for run in runs:
        by_label.setdefault(label(run.config, runs[0].config), []).append(run)
    return by_label


def label(config: Config, main: Config) -> str:
    """What an arm changes, in words where that is a known control."""
    usual = leaves(main)
    changed = {
        path: value
        for path, value in leaves(config).items()
        if value != usual.get(path) and not path.startswith(MAY_DIFFER)
    }
    return ", ".join(CONTROLS.get(option, "{} {}".format(*option)) for option in changed.items()) or "self-play"
