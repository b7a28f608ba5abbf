"""Where numbers and texts of a run go. Every line is whole on disk as soon as its call returns."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from azr.records import Task
from azr.runs.metrics import Metrics
from azr.runs.run_state import FileOffset
from azr.runs.sample_file import json_line

_TUPLES = ("inputs", "outputs", "parents")
"""Fields of a task that JSON holds as lists."""


class JsonLines:
    """An append-only file of JSON objects, hashed as it grows."""

    def __init__(self, path: Path, offset: FileOffset = FileOffset()) -> None:  # noqa: B008 (frozen)
        """Append to a file that ends at ``offset``, or to a new one.

        Raises:
            UserError: the file no longer begins as it did.
        """
        self._hasher, self._size = offset.check(path), offset.size
        assert not path.exists() or path.stat().st_size == offset.size, f"{path} goes on after its offset"
        self._file = path.open("ab", buffering=0)

    def write(self, records: Iterable[Mapping[str, object]]) -> None:
        """One write per line, so that a killed process leaves no half of one behind.

        Raises:
            ValueError: a number is NaN or infinite; nothing of that record is written.
            OSError: a line could not be written.
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
    records = map(json.loads, _lines(path))
    return [(record.pop("step"), record) for record in records]


def read_tasks(path: Path) -> list[Task]:
    """What ``tasks.jsonl`` holds: every task that entered the buffer, in order."""
    return list(map(_task, map(json.loads, _lines(path))))


def _task(record: dict[str, Any]) -> Task:
    views = {view: tuple((label, text) for label, text in shown) for view, shown in record.get("views", {}).items()}
    return Task(**record | {name: tuple(record[name]) for name in _TUPLES} | {"views": views})


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]
