"""Where in a run a model is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from azr.runs.run_dir import RunDirectory

_STEP = re.compile(r"step_(\d+)")
_POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Source:
    """A Hugging Face folder to export."""

    folder: Path
    step: int | None
    """Of the run; None for a model that belongs to none."""
    base: Path | None
    """Where the model was that the run began with, as its config says: a folder, or a hub name."""


def find(place: Path, step: int | None) -> Source:
    """The policy of a run's step, by default the last; or, for a model's own folder, that one.

    Raises:
        ValueError: there is no such run or step; the message lists the steps there are.
    """
    if (place / "config.json").is_file():
        if step is not None:
            raise ValueError(f"{place} is one model and has no steps: leave out --step.")
        return Source(place, None, None)
    run = RunDirectory(place)
    if not run.config.is_file():
        raise ValueError(f"{place} is neither a run nor a model: name a run directory, such as orz_ckpt/first.")
    steps = _steps(run)
    if not steps:
        raise ValueError(f"{run.checkpoints} holds no policy yet: wait until the run has saved one.")
    chosen = max(steps) if step is None else step
    if chosen not in steps:
        raise ValueError(f"{place} has no policy of step {chosen}: there {_are(sorted(steps))}.")
    return Source(steps[chosen], chosen, _base(run))


def _steps(run: RunDirectory) -> dict[int, Path]:
    named = ((_STEP.fullmatch(path.parent.name), path) for path in run.checkpoints.glob(f"*/{_POLICY}"))
    return {int(match[1]): path for match, path in named if match}


def _are(steps: list[int]) -> str:
    *before, last = map(str, steps)
    return f"are steps {', '.join(before)} and {last}" if before else f"is only step {last}"


def _base(run: RunDirectory) -> Path:
    try:
        return Path(yaml.safe_load(run.config.read_text())["model"]["path"])
    except (yaml.YAMLError, OSError, KeyError, TypeError) as error:
        raise ValueError(f"{run.config} does not say which model the run began with: {error!r}.") from error
