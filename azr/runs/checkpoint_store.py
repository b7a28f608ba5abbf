"""The checkpoints of one run on disk: a folder per step with a manifest of its files, complete or not there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from uuid import uuid4

from safetensors import SafetensorError, safe_open

from azr.hashed_files import HashedFile, hash_file, sync

MANIFEST = "manifest.json"
PIN_FILE = "KEEP"
"""A file of this name in a checkpoint's folder protects it from pruning."""
Verify = Literal["headers", "full"]
"""How a checkpoint is verified: by the size of every file, the header of every safetensors file and the content of all
others, which are small; or by the content of every file."""
_STEP = re.compile(r"step_(\d{6,})")
STAGING = ".draft_"
_WEIGHTS = ".safetensors"


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

    def __init__(self, folder: Path, keep: int) -> None:
        assert keep >= 1, "the newest checkpoint always stays"
        self._folder, self._keep = folder, keep

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self._folder / f"step_{step:06d}"

    def steps(self) -> list[int]:
        """Steps with a checkpoint, damaged or not, oldest first."""
        return sorted(step for path in self._folder.iterdir() if (step := step_of(path)) >= 0)

    def newest(self, warn: Callable[[str], None], level: Verify = "headers") -> int | None:
        """The newest step with a sound checkpoint; ``warn`` gets a line for every damaged one that is passed over."""
        for step in reversed(self.steps()):
            try:
                verify(self.path(step), level)
            except CorruptCheckpoint as damage:
                warn(f"the checkpoint of step {step} is not used: {damage}")
            else:
                return step
        return None

    @asynccontextmanager
    async def stage(self, step: int) -> AsyncIterator[Staging]:
        """A folder to fill; leaving the context commits it as the step's checkpoint and prunes old ones.

        After an error nothing of it is left, and what was there stays. Raises OSError when the disk is full.
        """
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
        self._prune()

    def _prune(self) -> None:
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
        a line for a checkpoint that could not be saved; ``done`` is the step the run goes on from."""
        self._store, self._every, self._write, self._log = store, every, write, log
        self._saving: asyncio.Task[None] | None = None
        self.done = self.saved = done
        self.seconds: float | None = None
        """Time that the last checkpoint took, most of it beside other work; None before the first."""

    def step_done(self, step: int) -> None:
        """Begins to save if a checkpoint is due. Nothing of it may change until `finish` has returned."""
        self.done = step
        if self._every and step % self._every == 0:
            self._start()

    async def finish(self) -> None:
        """Waits for the checkpoint that is being written, if one is.

        One that cannot be written costs a line in the log and nothing else: the one before it is still there.
        """
        if self._saving is None:
            return
        try:
            await self._saving
        except OSError as error:
            self._log(f"no checkpoint of step {self.done} was saved, and the run goes on: {error}")
        finally:
            self._saving = None

    async def finish_last(self) -> None:
        """Makes sure that the last step done is saved. Raises OSError when it cannot be."""
        await self.finish()
        if self.saved != self.done:
            self._start()
            await self.finish()
        if self.saved != self.done:
            raise OSError(f"step {self.done} could not be saved; the last checkpoint is of step {self.saved}")

    async def cancel(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.wait([self._saving])
            self._saving = None

    def _start(self) -> None:
        assert self._saving is None, "finish the last checkpoint first"
        self._saving = asyncio.create_task(self._save(self.done))

    async def _save(self, step: int) -> None:
        started = time.monotonic()
        async with self._store.stage(step) as staging:
            await self._write(step, staging)
        self.saved, self.seconds = step, time.monotonic() - started


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder; -1 for any other."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else -1


def verify(folder: Path, level: Verify) -> None:
    """Compare a checkpoint with its manifest. Raises CorruptCheckpoint when a file is missing, cut off or altered, or
    the manifest is missing or damaged, and OSError when the disk failed, which says nothing about the checkpoint."""
    path = folder / MANIFEST
    try:
        entries = json.loads(path.read_text())["files"].items()
        expected = {name: (entry["bytes"], entry["blake3"]) for name, entry in entries}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(f"{path} cannot be read") from error
    for name, (nbytes, digest) in expected.items():
        file = folder / name
        if not file.is_file():
            raise CorruptCheckpoint(f"{file} is missing")
        if file.stat().st_size != nbytes:
            raise CorruptCheckpoint(f"{file} has {file.stat().st_size} bytes instead of {nbytes}")
        if file.suffix == _WEIGHTS:
            _check_header(file)
        if (level == "full" or file.suffix != _WEIGHTS) and hash_file(file).digest != digest:
            raise CorruptCheckpoint(f"{file} has another content than was written")


def _check_header(file: Path) -> None:
    """Opening a safetensors file compares every tensor's type, shape and place with the file's size."""
    try:
        with safe_open(file, framework="numpy"):
            pass
    except SafetensorError as error:
        raise CorruptCheckpoint(f"{file} has a damaged header ({error})") from error


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
