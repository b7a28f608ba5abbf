"""Finds where a run goes on, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from azr.config import Config, RunConfig
from azr.runs import manifest
from azr.runs.checkpoint_store import CheckpointStore, step_of
from azr.runs.manifest import Damaged
from azr.runs.run_dir import RunDirectory, folder
from azr.runs.run_state import BEGINNING, Point, code_version

LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A run that goes on."""

    run: RunConfig
    """With the name and place of the run; the rest is the caller's."""
    point: Point
    notes: tuple[str, ...]
    """What a person should know about it."""


def named(run: RunConfig, where: str) -> tuple[RunConfig, int | None]:
    """The run that ``--resume where`` speaks of, and the step if it names one.

    ``where`` is ``latest``, a run directory, or the folder of one of its checkpoints.

    Raises:
        ValueError: there is no such run.
    """
    if where == LATEST:
        place, step = folder(run), None
    else:
        place = Path(where)
        step = None if (own := step_of(place)) < 0 else own
        if step is not None:
            place = place.resolve().parent.parent
    if not RunDirectory(place).config.is_file():
        raise ValueError(f"There is no run in {place} to go on with: leave out --resume, or name a run directory.")
    return replace(run, root=str(place.parent), name=place.resolve().name), step


def find(config: Config, step: int | None) -> Resumption:
    """The newest complete checkpoint of the run that ``config.run`` names, or the one of ``step``.

    Without any checkpoint the run goes on from its beginning.

    Raises:
        ValueError: the checkpoint asked for is damaged or missing, or the logs are not what they were.
    """
    run = RunDirectory(folder(config.run))
    store = CheckpointStore(run.checkpoints, config.checkpoint.keep)
    point, notes = _point(run, store, step)
    run.check(point.position)
    later = [other for other in store.steps() if other > point.step]
    if later and step is not None:
        notes.append(f"what came after step {step} is dropped, checkpoints of steps {_listed(later)} included")
    return Resumption(run=config.run, point=point, notes=tuple(notes))


def _point(run: RunDirectory, store: CheckpointStore, step: int | None) -> tuple[Point, list[str]]:
    notes: list[str] = []
    try:
        if step is not None:
            manifest.check(store.path(step))
        chosen = store.newest(notes.append) if step is None else step
        if chosen is None:
            return BEGINNING, [*notes, f"{run.path} has no complete checkpoint: it starts again from its beginning"]
        point, code = Point.read(store.path(chosen))
    except Damaged as damage:
        raise ValueError(f"The checkpoint of step {step} cannot be used: {damage}.") from damage
    if code != code_version():
        notes.append(f"the code has changed since the checkpoint was saved: {code} -> {code_version()}")
    return point, [*notes, f"going on after step {chosen}"]


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps))
