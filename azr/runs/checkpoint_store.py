"""The checkpoints of one run on disk: a folder per step with a manifest of its files, complete or not there. And where
a run continues, with which changes of its config, before anything is started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import msgspec
from safetensors import SafetensorError, safe_open

from azr.config import Config, RunConfig
from azr.config_tree import leaves
from azr.errors import UserError
from azr.files import HashedFile, hash_file, sync
from azr.own_data import code_version
from azr.records import NO_ROWS_TAKEN, RowsLeft
from azr.runs.run_dir import RUN_CONFIG, RunDirectory
from azr.runs.sample_file import LogOffsets

MANIFEST = "manifest.json"
PIN_FILE = "KEEP"
"""A file of this name in a checkpoint's folder protects it from pruning."""
Verify = Literal["headers", "full"]
"""How a checkpoint is verified: by the size of every file, the header of every safetensors file and the content of all
others, which are small; or by the content of every file."""
_STEP = re.compile(r"step_(\d{6,})")
STAGING = ".draft_"
_WEIGHTS = ".safetensors"
LATEST = "latest"
STATE_FILE = "driver.json"
TRAINERS = "trainers"
"""Folder in a checkpoint: weights, optimizers and random states of policy and critic."""
POLICY = "policy"
"""Folder in a checkpoint: the policy in Hugging Face's format."""
PARTS = (STATE_FILE, RUN_CONFIG, f"{POLICY}/", f"{TRAINERS}/")
"""Files and folders of every checkpoint of a run."""
FIXED = ("model.", "selfplay.kinds", "train.lora.rank", "train.lora.alpha", "train.lora.targets", "train.lora.four_bit")
"""Options, or beginnings of their names, that the saved weights and tasks are made for."""
_PLACE = ("run.name", "run.root")


class CorruptCheckpoint(Exception):
    """A file of a checkpoint is not what was written; the message names it."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A checkpoint that is being written."""

    folder: Path
    """Absolute."""
    written: list[HashedFile] = field(default_factory=list)
    """Files that were hashed while they were written; the manifest takes their digests from here."""


class CheckpointStore:
    """Folders ``step_000010`` below one folder, of which the newest ``keep`` stay, and any that is pinned."""

    def __init__(self, folder: Path, keep: int = 1) -> None:
        """``keep``: for a store that is written to."""
        assert keep >= 1, "the newest checkpoint always stays"
        self._folder, self._keep = folder, keep

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self._folder / f"step_{step:06d}"

    def steps(self) -> list[int]:
        """Steps with a checkpoint, damaged or not, oldest first."""
        folders = [path for path in self._folder.iterdir() if path.is_dir()] if self._folder.is_dir() else []
        return sorted(step for path in folders if (step := step_of(path)) >= 0)

    @asynccontextmanager
    async def stage(self, step: int) -> AsyncIterator[Staging]:
        """A folder to fill; leaving the context commits it as the step's checkpoint and prunes old ones. After an error
        nothing of it is left, and what was there stays. Raises OSError when the disk is full."""
        await asyncio.to_thread(self.clear_staging)
        staging = Staging((self._folder / f"{STAGING}{uuid4().hex[:8]}").absolute())
        staging.folder.mkdir()
        try:
            yield staging
            committing = asyncio.ensure_future(asyncio.to_thread(self._commit, staging, self.path(step)))
            try:
                await asyncio.shield(committing)
            finally:
                # A thread cannot be cancelled, and its folder must not be removed while it is renamed.
                while not committing.done():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait({committing})
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, staging.folder, ignore_errors=True)
            raise

    def later(self, step: int) -> list[Path]:
        """Return the checkpoints of later steps, damaged or not."""
        return [self.path(other) for other in self.steps() if other > step]

    def clear_staging(self) -> None:
        """Removes what a killed process left half-written."""
        for left in self._folder.glob(f"{STAGING}*"):
            shutil.rmtree(left)

    def _commit(self, staging: Staging, path: Path) -> None:
        _write_manifest(staging)
        if path.exists():
            _remove(path)
        os.rename(staging.folder, path)
        sync(self._folder)
        for step in self.steps()[: -self._keep]:
            if not (self.path(step) / PIN_FILE).exists():
                _remove(self.path(step))


class AsyncCheckpointer:
    """Saves at most one checkpoint at a time while the next step is played, when trainers have nothing else to do."""

    def __init__(
        self,
        store: CheckpointStore,
        every: int,
        write: Callable[[int, Staging], Awaitable[None]],
        log: Callable[[str], None],
        done: int,
    ) -> None:
        """``write`` puts all there is after a step into a folder, or raises OSError when the disk is full; ``log`` gets
        a line for a checkpoint that could not be saved; ``done`` is the step the run continues from."""
        self._store, self._every, self._write, self._log = store, every, write, log
        self._saving: asyncio.Task[None] | None = None
        self.done = self.saved = done
        self.seconds: float | None = None
        """Time that the last checkpoint took, most of it beside other work; None before the first."""

    def step_done(self, step: int) -> None:
        """Begins to save if a checkpoint is due. Nothing of it may change until `finish` has returned."""
        self.done = step
        if self._every and step % self._every == 0:
            assert self._saving is None, "finish the last checkpoint first"
            self._saving = asyncio.create_task(self._save(step))

    async def finish(self) -> None:
        """Waits for the checkpoint that is being written, if one is. One that cannot be written costs a line in the log
        and nothing else: the one before it is still there."""
        if self._saving is None:
            return
        try:
            await self._saving
        except OSError as error:
            self._log(f"no checkpoint of step {self.done} was saved, and the run continues: {error}")
        finally:
            self._saving = None

    async def finish_last(self) -> None:
        """Makes sure that the last step done is saved. Raises OSError when it cannot be."""
        await self.finish()
        if self.saved != self.done:
            try:
                await self._save(self.done)
            except OSError as error:
                last = f"the last checkpoint is of step {self.saved}: {error}"
                raise OSError(f"step {self.done} could not be saved; {last}") from error

    async def cancel(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.wait([self._saving])
            self._saving = None

    async def _save(self, step: int) -> None:
        started = time.monotonic()
        async with self._store.stage(step) as staging:
            await self._write(step, staging)
        self.saved, self.seconds = step, time.monotonic() - started


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder; -1 for any other."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else -1


def verify(folder: Path, level: Verify) -> list[str]:
    """Compare a checkpoint with its manifest and return the files that it lists. Raises CorruptCheckpoint when one is
    missing, cut off, altered or outside of the folder, or the manifest is missing or damaged, and OSError when the disk
    failed, which says nothing about the checkpoint."""
    path = folder / MANIFEST
    try:
        entries = json.loads(path.read_text() if path.is_file() else "")["files"].items()
        expected = {name: (entry["bytes"], entry["blake3"]) for name, entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptCheckpoint(f"{path} cannot be read") from error
    for name, (nbytes, digest) in expected.items():
        file = folder / name
        if name.startswith("/") or ".." in file.parts[len(folder.parts) :]:
            raise CorruptCheckpoint(f"{path} lists {name}, which is not a file of this folder")
        if not file.is_file():
            raise CorruptCheckpoint(f"{file} is missing")
        if file.stat().st_size != nbytes:
            raise CorruptCheckpoint(f"{file} has {file.stat().st_size} bytes instead of {nbytes}")
        try:  # opening a safetensors file compares every tensor's type, shape and place with the file's size
            with safe_open(file, framework="numpy") if file.suffix == _WEIGHTS else contextlib.nullcontext():
                pass
        except SafetensorError as error:
            raise CorruptCheckpoint(f"{file} has a damaged header ({error})") from error
        if (level == "full" or file.suffix != _WEIGHTS) and hash_file(file).digest != digest:
            raise CorruptCheckpoint(f"{file} has another content than was written")
    return list(expected)


def read_checkpoint(folder: Path, level: Verify) -> tuple[RunState, str]:
    """Verify a checkpoint of a run. Return the driver's state, and the version of the code that wrote it. Raises as
    `verify`, and CorruptCheckpoint if a part of `PARTS` is not listed or the state is of another step."""
    names = verify(folder, level)
    for part in PARTS:
        if not any(name.startswith(part) for name in names):
            raise CorruptCheckpoint(f"{folder / MANIFEST} lists no {part}")
    state, code = RunState.read(folder)
    if state.step != step_of(folder):
        raise CorruptCheckpoint(f"{folder} holds the state of step {state.step}")
    return state, code


def _write_manifest(staging: Staging) -> None:
    """Lists everything in the folder, and makes sure that all of it is on the disk."""
    written = {Path(file.path): file for file in staging.written}
    files = {}
    for path in sorted(path for path in staging.folder.rglob("*") if path.is_file()):
        file = written.pop(path, None) or hash_file(path)
        if path.stat().st_size != file.nbytes:
            raise OSError(f"{path} has {path.stat().st_size} bytes and not the {file.nbytes} that were written")
        files[str(path.relative_to(staging.folder))] = {"bytes": file.nbytes, "blake3": file.digest}
        sync(path)
    if written:
        raise OSError(f"{next(iter(written))} was written, but not where the driver looks: all nodes must share it")
    manifest = staging.folder / MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1) + "\n")
    sync(manifest)
    for folder in (staging.folder, *(inner for inner in staging.folder.rglob("*") if inner.is_dir())):
        sync(folder)


def _remove(path: Path) -> None:
    """By way of a staging folder's name, so that a kill meanwhile leaves no half checkpoint."""
    doomed = path.with_name(f"{STAGING}{path.name}")
    os.rename(path, doomed)
    shutil.rmtree(doomed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State of the driver after a step. Draws are seeded by the step, so there is no random state to keep."""

    step: int
    """The last step that was done; also the version of the weights."""
    elapsed_s: float
    """Seconds that the run has taken, pauses between its processes left out."""
    offsets: LogOffsets
    """Sizes of the logs; the task log holds the task buffer."""
    rows: RowsLeft = NO_ROWS_TAKEN
    estimators: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """State of the estimator, by its name: another one begins anew."""

    def write(self, folder: Path) -> None:
        """Write into a checkpoint's folder, with the version of the code."""
        tree = msgspec.to_builtins(self) | {"code": code_version()}
        (folder / STATE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(tree), indent=1) + b"\n")

    @classmethod
    def read(cls, folder: Path) -> tuple[RunState, str]:
        """Read from a checkpoint's folder, with the version of the code that wrote it. Raises `CorruptCheckpoint`."""
        try:
            tree: dict[str, Any] = msgspec.json.decode((folder / STATE_FILE).read_bytes())
            return msgspec.convert(tree, cls), tree["code"]
        except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptCheckpoint(f"{folder / STATE_FILE} cannot be read") from error


INITIAL = RunState(step=0, elapsed_s=0.0, offsets=LogOffsets())
"""Before anything was done, the seed tasks included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """State needed to resume a run."""

    state: RunState
    notes: tuple[str, ...]
    """Sentences to print."""


def resolve_run(run: RunConfig, where: str) -> tuple[RunConfig, int | None]:
    """Return the run that ``--resume where`` speaks of, and the step if it names one. ``where``: ``latest``, a run
    directory, or the folder of one of its checkpoints. Raises UserError when there is no such run."""
    place, step = RunDirectory.of(run).path if where == LATEST else Path(where), None
    if where != LATEST:
        # Only where the path as typed does not end in the run's own name: saved configs keep relative paths.
        place = place.resolve() if place.is_symlink() or place.name in ("", "..") or step_of(place) >= 0 else place
        if step_of(place) >= 0:
            step, place = step_of(place), place.parent.parent
    if not RunDirectory(place).config.is_file():
        raise UserError(f"There is no run in {place} to continue: leave out --resume, or name a run directory.")
    return replace(run, root=str(place.parent), name=place.name), step


def find_checkpoint(run: RunDirectory, step: int | None, level: Verify = "headers") -> ResumeState:
    """Return the newest sound checkpoint of a run, or the one of ``step``.

    Without any checkpoint the run starts again. Reads files, all of them with ``level`` full: do not call it on an
    event loop. Nothing is changed. Raises UserError when the checkpoint asked for is damaged or missing, none is
    sound, or the logs were altered, and OSError when the disk failed.
    """
    store, notes = CheckpointStore(run.checkpoints), list[str]()
    steps = store.steps()
    if step is not None and step not in steps:
        there = f"there are those of steps {', '.join(map(str, steps))}" if steps else "it has none"
        raise UserError(f"{run.path} has no checkpoint of step {step}: {there}.")
    for chosen in reversed(steps) if step is None else [step]:
        try:
            state, code = read_checkpoint(store.path(chosen), level)
        except CorruptCheckpoint as damage:
            if step is not None:
                raise UserError(f"The checkpoint of step {step} cannot be used: {damage}.") from damage
            notes.append(f"the checkpoint of step {chosen} is not used: {damage}")
            continue
        if code != code_version():
            notes.append(f"the code has changed since the checkpoint was saved: {code} -> {code_version()}")
        notes.append(f"continuing after step {chosen}")
        break
    else:
        if steps:
            raise UserError(
                f"{run.path} has no sound checkpoint ({notes[0]}): restore one from a copy, or start again with "
                "--restart, which keeps this run under another name."
            )
        state = INITIAL
        notes.append(f"{run.path} has no checkpoint yet: it starts again from its beginning")
    run.check_logs(state.offsets)
    if step is not None and (later := store.later(state.step)):
        passed_over = ", ".join(str(step_of(path)) for path in later)
        notes.append(f"what came after step {step} is set aside, checkpoints of steps {passed_over} included")
    return ResumeState(state=state, notes=tuple(notes))


def config_changes(saved: Config, wanted: Config) -> list[str]:
    """Return ``run.steps: 24 -> 48`` for each option that is not as saved; where the run lives does not count. Raises
    UserError for a change that the checkpoint cannot follow."""
    before, after = leaves(saved), leaves(wanted)
    for name in after:
        if name.startswith(FIXED) and not _same(before[name], after[name]):
            raise UserError(
                f"{name} was {before[name]} when the run was saved, and cannot become {after[name]}: keep the old "
                "value, or start another run."
            )
    if bool(wanted.kinds) != bool(saved.kinds):
        raise UserError(
            f"data.play was {saved.data.play} when the run was saved, which {'plays' if saved.kinds else 'plays no'} "
            f"tasks, and cannot become {wanted.data.play}: keep data.path and data.play, or start another run."
        )
    if wanted.algorithm.needs_critic and not saved.algorithm.needs_critic:
        raise UserError(
            f"algorithm.estimator was {saved.algorithm.estimator.name}, so the checkpoint has no critic for "
            f"{wanted.algorithm.estimator.name}: keep the estimator, or start another run."
        )
    # An option of one estimator is not an option of another.
    pairs = {name: (before.get(name, "unset"), after.get(name, "unset")) for name in after | before}
    changed = {name: pair for name, pair in pairs.items() if not _same(*pair) and name not in _PLACE}
    return [f"{name}: {old} -> {new}" for name, (old, new) in changed.items()]


def _same(old: Any, new: Any) -> bool:
    """Whether two values are equal, or lead to one file or folder."""
    if old == new or not isinstance(old, str) or not isinstance(new, str):
        return bool(old == new)
    return os.path.exists(old) and os.path.exists(new) and os.path.samefile(old, new)
