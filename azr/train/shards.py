"""Flat tensors that are split over the ranks of a role, one safetensors file per rank.

A tensor of E elements is the ranks' pieces, one after the other, wherever the cuts are; so what N ranks wrote, M ranks
can read, each only what it needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

_META = "state"


def shard_path(folder: Path, rank: int) -> Path:
    """Where a rank's pieces are."""
    return folder / f"rank_{rank:03d}.safetensors"


def write_shard(folder: Path, rank: int, meta: Mapping[str, Any], pieces: Sequence[tuple[str, Tensor]]) -> None:
    """Write a rank's pieces, float32 and one-dimensional, and JSON data `meta`; all of it is on disk on return.

    One piece at a time passes through host memory. `folder` is made where its parent exists. Raises OSError.
    """
    header: dict[str, Any] = {"__metadata__": {_META: json.dumps(meta)}}
    end = 0
    for name, piece in pieces:
        assert piece.dtype == torch.float32 and piece.dim() == 1, f"{name}: {piece.dtype} {tuple(piece.shape)}"
        start, end = end, end + piece.nbytes
        header[name] = {"dtype": "F32", "shape": [piece.numel()], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format wants its data aligned
    folder.mkdir(exist_ok=True)
    # Written here and not by safetensors, which holds all of the file in memory before it writes.
    with shard_path(folder, rank).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, piece in pieces:
            file.write(piece.detach().cpu().numpy().data)
        file.flush()
        os.fsync(file.fileno())
    for directory in (folder, folder.parent):
        _sync(directory)


class ShardReader:
    """What `write_shard` of all ranks has left in a folder. A context manager, as it holds files open."""

    def __init__(self, folder: Path) -> None:
        """Raises ValueError, naming the file, when one is missing, cut off or of another save than the first."""
        with ExitStack() as files:
            self._files = [files.enter_context(_opened(shard_path(folder, 0)))]
            self.metas = [_meta(self._files[0])]
            self.ranks: int = self.metas[0]["ranks"]
            for rank in range(1, self.ranks):
                self._files.append(files.enter_context(_opened(shard_path(folder, rank))))
                self.metas.append(_meta(self._files[-1]))
                if any(self.metas[-1][key] != self.metas[0][key] for key in ("ranks", "steps")):
                    raise ValueError(f"{shard_path(folder, rank)} is not of the same save as {shard_path(folder, 0)}")
            self._exit = files.pop_all()
        self._sizes = [_sizes(file) for file in self._files]
        self._folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()

    def totals(self) -> dict[str, int]:
        """Elements of each whole tensor, by name."""
        totals: dict[str, int] = {}
        for sizes in self._sizes:
            for name, size in sizes.items():
                totals[name] = totals.get(name, 0) + size
        return totals

    def check(self, expected: Mapping[str, int]) -> None:
        """Raises ValueError when `totals` are not those expected."""
        found = self.totals()
        wrong = [name for name in sorted(found.keys() | expected.keys()) if found.get(name) != expected.get(name)]
        if wrong:
            raise ValueError(
                f"{self._folder} is of another model: {wrong[0]} has {found.get(wrong[0], 0)} elements there and "
                f"{expected.get(wrong[0], 0)} here; give a checkpoint of this model"
            )

    def read(self, name: str, start: int, out: Tensor) -> None:
        """Copy elements `start` to `start + len(out)` of the whole tensor into `out` (one-dimensional, any device)."""
        stop, first = start + len(out), 0
        for file, sizes in zip(self._files, self._sizes, strict=True):
            last = first + sizes[name]
            low, high = max(start, first), min(stop, last)
            if low < high:
                out[low - start : high - start].copy_(file.get_slice(name)[low - first : high - first])
            first = last
        assert stop <= first, f"{name} ends at {first}, and {stop} was asked for"


def _opened(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{path} is missing: give the folder of a complete checkpoint")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}): use another checkpoint") from error


def _meta(file: Any) -> dict[str, Any]:
    return json.loads(file.metadata()[_META])


def _sizes(file: Any) -> dict[str, int]:
    return {name: file.get_slice(name).get_shape()[0] for name in file.keys()}  # noqa: SIM118 (no mapping)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
