"""Where a run goes on: the step that was done, the time it has taken, and how far its logs had come."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from azr.errors import UserError
from azr.records import NO_ROWS_TAKEN, RowsLeft
from azr.runs.checkpoint_store import CorruptCheckpoint
from azr.version import code_version

FILE = "driver.json"
_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class FileOffset:
    """A place in a file that only grows: its first bytes, which have this BLAKE3 digest. The default is the start."""

    size: int = 0
    digest: str = blake3().hexdigest()

    def check(self, path: Path) -> blake3:
        """Returns a hasher that has read up to here, for what comes next; the file may have grown.

        Raises:
            UserError: the file no longer begins as it did.
        """
        hasher, left = blake3(), self.size
        try:
            # A run that was killed before its first line may have no file at all.
            if left:
                with path.open("rb") as file:
                    while left and (chunk := file.read(min(left, _CHUNK))):
                        hasher.update(chunk)
                        left -= len(chunk)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}), so the run cannot go on.") from error
        if left or hasher.hexdigest() != self.digest:
            raise UserError(f"{path} was altered since the checkpoint was saved, so the run cannot go on from it.")
        return hasher

    def truncate(self, path: Path, aside: Path) -> None:
        """Move what came later into the file ``aside``, which is made if there is anything."""
        if not path.exists() or path.stat().st_size <= self.size:
            return
        with path.open("rb") as file, aside.open("wb") as kept:
            file.seek(self.size)
            shutil.copyfileobj(file, kept)
            kept.flush()
            os.fsync(kept.fileno())
        os.truncate(path, self.size)


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """How far the logs had come that grow with every step; the default is the start of a run."""

    metrics: FileOffset = FileOffset()
    tasks: FileOffset = FileOffset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """State of the driver after a step. Draws are seeded by the step, so there is no random state to keep."""

    step: int
    """The last step that was done; also the version of the weights."""
    elapsed_s: float
    """Seconds that the run has taken, pauses between its processes left out."""
    offsets: LogOffsets
    """Of the logs; the task buffer is what the task log says."""
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
