"""Reads the file that Weights & Biases writes offline.

After a header of seven bytes come blocks of 32 KB as in LevelDB's log: pieces of records, each with a checksum, a
length and a kind before it.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER, LAST = 1 << 15, 7, (1, 4)


def records(path: Path) -> list[Any]:
    """Once the last one is there: the library's own process writes them after it was told that the run is over."""
    until = time.monotonic() + 10
    while not (found := list(_records(path))) or not found[-1].HasField("exit"):
        assert time.monotonic() < until, f"{path} does not end"
        time.sleep(0.02)
    return found


def _records(path: Path) -> Iterator[Any]:
    data, at, whole = path.read_bytes(), HEADER, b""
    while at < len(data):
        if (left := BLOCK - at % BLOCK) < HEADER:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in LAST:
            yield Record.FromString(whole)
            whole = b""


def files(run: Path) -> list[Path]:
    """Of every time that the run continued, oldest first."""
    return sorted(run.glob("wandb/offline-run-*/*.wandb"))


def history(path: Path) -> list[dict[str, Any]]:
    rows = [record.history for record in records(path) if record.HasField("history")]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in rows]
