"""Run directories read back, and which of them are runs of one arm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from azr.config import Config
from azr.config_tree import from_yaml
from azr.evaluation.evaluate import Marks
from azr.runs.metrics import Metrics, has_eval

CONTROLS = {
    ("train.policy_lr", 0.0): "learning rate 0",
    ("ablation.shuffle_rewards", True): "rewards shuffled",
    ("ablation.new_tasks", False): "seed tasks only",
}
MAY_DIFFER = ("run.name", "run.root", "run.seed", "tracking.")
"""Knobs in which runs of one arm may differ."""


@dataclass(frozen=True)
class Run:
    """One run directory."""

    path: Path
    config: Config
    steps: list[Metrics]
    """From step 1."""
    exams: list[Metrics]
    """Of step 0 and the others with an exam: a part of the questions, few samples."""
    full: tuple[list[Marks], list[Marks]] | None
    """The whole exam, taken by the model that the run started from and by its last checkpoint."""


def read(path: Path, base: Path | None = None) -> Run:
    """A run; ``base`` is the exam of its first model, and ``exam.json`` in that model's folder when not given.

    Raises:
        ValueError: this is no run directory, it has no exam before and after its steps, or the base's exam is missing.
    """
    try:
        config = from_yaml((path / "config.yaml").read_text())
        lines: list[Metrics] = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    except OSError as error:
        raise ValueError(f"{path} is no run directory: {error}") from error
    steps, exams = [line for line in lines if line["step"]], [line for line in lines if has_eval(line)]
    if not steps or len(exams) < 2:
        raise ValueError(f"{path} has no exam before and after its steps: let it end, with eval.every above 0.")
    return Run(path, config, steps, exams, _full(path / "exam.json", base or Path(config.model.path, "exam.json")))


def _full(after: Path, before: Path) -> tuple[list[Marks], list[Marks]] | None:
    if not after.exists():
        return None
    if not before.exists():
        raise ValueError(f"{after} has nothing to be compared with: grade the first model with azr exam into {before}.")
    papers = [json.loads(file.read_text()) for file in (before, after)]
    if len({(paper["samples"], paper["dtype"], len(paper["marks"])) for paper in papers}) > 1:
        raise ValueError(f"{before} and {after} are not the same exam: grade both with the same options.")
    first, last = ([Marks(**mark) for mark in paper["marks"]] for paper in papers)
    return first, last


def arms(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by arm, in the order given; the first is a run of the main arm."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(label(run.config, runs[0].config), []).append(run)
    return found


def label(config: Config, main: Config) -> str:
    """What an arm changes, in words where that is a known control."""
    own, usual = _leaves(asdict(config)), _leaves(asdict(main))
    changed = [name for name in own if own[name] != usual[name] and not name.startswith(MAY_DIFFER)]
    return ", ".join(CONTROLS.get((name, own[name]), f"{name} {own[name]}") for name in changed) or "self-play"


def _leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found
