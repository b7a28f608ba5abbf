"""Finds where a run goes on and with which changes of its config, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from azr.config import Config, RunConfig
from azr.config_tree import leaves
from azr.errors import UserError
from azr.own_data import code_version
from azr.records import NO_ROWS_TAKEN, RowsLeft
from azr.runs.checkpoint_store import CheckpointStore, CorruptCheckpoint, Verify, step_of, verify
from azr.runs.run_dir import RunDirectory, run_path
from azr.runs.sample_file import LogOffsets

LATEST = "latest"
FILE = "driver.json"
FIXED = ("model.", "selfplay.kinds", "train.lora.rank", "train.lora.alpha", "train.lora.targets", "train.lora.four_bit")
"""Knobs, or beginnings of their names, that the saved weights and tasks are made for."""
_PLACE = ("run.name", "run.root")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State of the driver after a step. Draws are seeded by the step, so there is no random state to keep."""

    step: int
    """The last step that was done; also the version of the weights."""
    elapsed_s: float
    """Seconds that the run has taken, pauses between its processes left out."""
    offsets: LogOffsets
    """Sizes of the logs; the task log holds the task buffer."""
    rows: RowsLeft | None = NO_ROWS_TAKEN
    """None in a checkpoint that was written before rows were recorded."""

    def write(self, folder: Path) -> None:
        """Write into a checkpoint's folder, with the version of the code."""
        tree = msgspec.to_builtins(self) | {"code": code_version()}
        (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(tree), indent=1) + b"\n")

    @classmethod
    def read(cls, folder: Path) -> tuple[RunState, str]:
        """Read from a checkpoint's folder, with the version of the code that wrote it. Raises `CorruptCheckpoint`."""
        try:
            tree: dict[str, Any] = msgspec.json.decode((folder / FILE).read_bytes())
            return msgspec.convert({"rows": None} | tree, cls), tree["code"]
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(f"{folder / FILE} cannot be read") from error


INITIAL = RunState(step=0, elapsed_s=0.0, offsets=LogOffsets())
"""Before anything was done, the seed tasks included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """A run that goes on."""

    state: RunState
    notes: tuple[str, ...]
    """Sentences for a person."""


def resolve_run(run: RunConfig, where: str) -> tuple[RunConfig, int | None]:
    """Return the run that ``--resume where`` speaks of, and the step if it names one.

    ``where``: ``latest``, a run directory, or the folder of one of its checkpoints. Raises UserError when there is no
    such run.
    """
    place, step = run_path(run) if where == LATEST else Path(where), None
    if where != LATEST and step_of(place) >= 0:
        step, place = step_of(place), place.resolve().parent.parent
    if not RunDirectory(place).config.is_file():
        raise UserError(f"There is no run in {place} to go on with: leave out --resume, or name a run directory.")
    return replace(run, root=str(place.parent), name=place.resolve().name), step


def find_checkpoint(config: Config, step: int | None, level: Verify = "headers") -> ResumeState:
    """Return the newest sound checkpoint of the run that ``config.run`` names, or the one of ``step``.

    Without any checkpoint the run starts again. Reads files, all of them with ``level`` full: do not call it on an
    event loop. Nothing is changed. Raises UserError when the checkpoint asked for is damaged or missing, none is
    sound, or the logs were altered, and OSError when the disk failed.
    """
    run = RunDirectory(run_path(config.run))
    store = CheckpointStore(run.checkpoints, config.checkpoint.keep)
    state, notes = _read_state(run, store, step, level)
    run.check_logs(state.offsets)
    later = [other for other in store.steps() if other > state.step]
    if later and step is not None:
        passed_over = ", ".join(map(str, later))
        notes.append(f"what came after step {step} is set aside, checkpoints of steps {passed_over} included")
    return ResumeState(state=state, notes=tuple(notes))


def _read_state(
    run: RunDirectory, store: CheckpointStore, step: int | None, level: Verify
) -> tuple[RunState, list[str]]:
    notes: list[str] = []
    try:
        if step is not None and step not in store.steps():
            there = f"there are those of steps {', '.join(map(str, store.steps()))}" if store.steps() else "it has none"
            raise UserError(f"{run.path} has no checkpoint of step {step}: {there}.")
        if step is not None:
            verify(store.path(step), level)
        chosen = store.newest(notes.append, level) if step is None else step
        if chosen is None and store.steps():
            raise UserError(
                f"{run.path} has no sound checkpoint ({notes[0]}): restore one from a copy, or start again with "
                "--restart, which keeps this run under another name."
            )
        if chosen is None:
            return INITIAL, [f"{run.path} has no checkpoint yet: it starts again from its beginning"]
        state, code = RunState.read(store.path(chosen))
    except CorruptCheckpoint as damage:
        raise UserError(f"The checkpoint of step {step} cannot be used: {damage}.") from damage
    if code != code_version():
        notes.append(f"the code has changed since the checkpoint was saved: {code} -> {code_version()}")
    return state, [*notes, f"going on after step {chosen}"]


def config_changes(saved: Config, wanted: Config) -> list[str]:
    """Return ``run.steps: 24 -> 48`` for each knob that is not as saved; where the run lives does not count. Raises
    UserError for a change that the checkpoint cannot follow."""
    before, after = leaves(saved), leaves(wanted)
    for name in after:
        if name.startswith(FIXED) and after[name] != before[name]:
            raise UserError(
                f"{name} was {before[name]} when the run was saved, and cannot become {after[name]}: keep the old "
                "value, or start another run."
            )
    if wanted.algorithm.needs_critic and not saved.algorithm.needs_critic:
        raise UserError(
            f"algorithm.estimator was {saved.algorithm.estimator.name}, so the checkpoint has no critic for "
            f"{wanted.algorithm.estimator.name}: keep the estimator, or start another run."
        )
    # A knob of one estimator is no knob of another.
    pairs = {name: (before.get(name, "unset"), after.get(name, "unset")) for name in after | before}
    return [f"{name}: {old} -> {new}" for name, (old, new) in pairs.items() if old != new and name not in _PLACE]
