"""Where numbers and texts of a run go. Every line is whole on disk as soon as its call returns."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from azr.records import Learned, Sample, Task
from azr.runs.metrics import Metrics
from azr.runs.rollout_record import Decode, RolloutRecord, rollout_record
from azr.runs.run_state import FileOffset

_TUPLES = ("inputs", "outputs", "parents")
"""Fields of a task that JSON holds as lists."""
_FIELDS = tuple(field.name for field in fields(RolloutRecord))
COMPRESSION = 3
"""gzip's level for rollout records. Of 4 KB with 2 KB of mathematics as people write it, level 1 makes 986 bytes in
0.025 ms of CPU, 3 makes 923 in 0.032, 5 makes 804 in 0.052 and 6 makes 796 in 0.079."""
MEMBER_BYTES = 1 << 18
"""Of lines, before they are compressed, after which a new gzip member begins."""


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
            line = _line(record)
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


def write_rollouts(
    path: Path,
    step: int,
    rollouts: Sequence[tuple[Sample, Learned | None]],
    decode: Decode,
    flags: Sequence[Sequence[tuple[str, int, int]]] = (),
) -> None:
    """Texts and grades of a step as gzipped JSON lines. The file appears under its name when it is complete; blocks.

    ``flags``: of each rollout, see `RolloutRecord`; none where it is empty.
    It is a row of gzip members of some lines each, so that a reader gets at one record without reading them all.
    """
    staging = path.with_name(f".{path.name}")
    ids, prompt = None, ""
    lines, size = list[bytes](), 0
    with staging.open("wb") as file:
        for (trajectory, learned), its_flags in zip(rollouts, flags or [()] * len(rollouts), strict=True):
            if trajectory.completion.prompt_ids is not ids:  # trajectories of one group share the array
                ids = trajectory.completion.prompt_ids
                prompt = decode(ids)
            record = rollout_record(step, trajectory, learned, prompt, decode, its_flags)
            line = _line({name: getattr(record, name) for name in _FIELDS})
            lines.append(line)
            size += len(line)
            if size >= MEMBER_BYTES:
                file.write(gzip.compress(b"".join(lines), COMPRESSION, mtime=0))
                lines, size = [], 0
        if lines or not file.tell():
            file.write(gzip.compress(b"".join(lines), COMPRESSION, mtime=0))
    os.replace(staging, path)


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def _line(record: Mapping[str, object]) -> bytes:
    # A lone surrogate, which a program's text may hold, becomes the JSON escape that reads back as itself.
    return (json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
