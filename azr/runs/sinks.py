"""Where numbers and texts of a run go. Every line is whole on disk as soon as its call returns."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from azr.errors import UserError
from azr.records import Task
from azr.runs.metrics import Metrics
from azr.runs.sample_file import json_line

_TUPLES = ("inputs", "outputs", "parents")
"""Fields of a task that JSON holds as lists."""
_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class FileOffset:
    """A place in a file that only grows: its first bytes, which have this BLAKE3 digest. The default is the start."""

    size: int = 0
    digest: str = blake3().hexdigest()

    def check(self, path: Path) -> blake3:
        """Return a hasher that has read up to here, for what comes next; the file may have grown.

        Raises UserError when the file no longer begins as it did.
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


class JsonLines:
    """An append-only file of JSON objects, hashed as it grows."""

    def __init__(self, path: Path, offset: FileOffset = FileOffset()) -> None:
        """Append to a file that ends at ``offset``, or to a new one. Raises as `FileOffset.check`."""
        self._hasher, self._size = offset.check(path), offset.size
        assert not path.exists() or path.stat().st_size == offset.size, f"{path} goes on after its offset"
        self._file = path.open("ab", buffering=0)

    def write(self, records: Iterable[Mapping[str, object]]) -> None:
        """One write per line, so that a killed process leaves no half of one behind.

        Raises ValueError for a number that is NaN or infinite, of whose record nothing is written, and OSError when a
        line could not be written.
        """
        for record in records:
            line = json_line(record)
            if self._file.write(line) != len(line):
                raise OSError(f"{self._file.name} could not be written: the disk is full")
            self._hasher.update(line)
            self._size += len(line)

    def offset(self) -> FileOffset:
        """How far the file has come."""
        return FileOffset(self._size, self._hasher.hexdigest())

    def sync(self) -> None:
        """Returns when everything written is on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[tuple[int, Metrics]]:
    """Steps of ``metrics.jsonl`` with their numbers."""
    return [(record.pop("step"), record) for record in _records(path)]


def read_tasks(path: Path) -> list[Task]:
    """Tasks of ``tasks.jsonl``: every one that entered the buffer, in order."""
    tasks = []
    for record in _records(path):
        views = {view: tuple((label, text) for label, text in shown) for view, shown in record.get("views", {}).items()}
        tasks.append(Task(**record | {name: tuple(record[name]) for name in _TUPLES} | {"views": views}))
    return tasks


def _records(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_bytes().split(b"\n")[:-1])
