"""Tensors on disk as safetensors files that are written piece by piece and hashed on the way.

The training state is flat tensors that are split over the ranks of a model, one file per rank. A tensor of E elements
is the ranks' pieces, one after the other, wherever the cuts are; so what N ranks wrote, M ranks can read, each only
what it needs. The model is whole tensors under the names of Hugging Face.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from azr.errors import UserError
from azr.files import HashedFile, sync, write_hashed

MAX_MODEL_FILE_BYTES = 5 * 10**9
"""A model larger than this is several files, as Hugging Face's libraries write it."""
_META = "state"
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Entry of a tensor in a file's header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def write_safetensors(
    path: Path, metadata: Mapping[str, str], specs: Sequence[TensorSpec], tensors: Iterable[Tensor]
) -> HashedFile:
    """Writes the tensors that `specs` announce, in that order; all of it is on disk on return.

    One tensor at a time passes through host memory, while safetensors itself holds all of the file before it writes.
    Raises OSError.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for spec in specs:
        start, end = end, end + spec.nbytes
        header[spec.name] = {"dtype": _DTYPES[spec.dtype], "shape": spec.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format wants its data aligned

    def chunks() -> Iterator[bytes | memoryview]:
        yield len(text).to_bytes(8, "little") + text
        for spec, tensor in zip(specs, tensors, strict=True):
            assert (tensor.dtype, tensor.shape) == (spec.dtype, spec.shape), f"{spec}: {tensor.dtype} {tensor.shape}"
            # A copy, for torch never again resizes the memory of a tensor that NumPy has seen.
            yield tensor.detach().to("cpu", copy=True).reshape(-1).view(torch.uint8).numpy().data

    return write_hashed(path, chunks())


def write_model(folder: Path, specs: Sequence[TensorSpec], tensors: Iterator[Tensor]) -> list[HashedFile]:
    """Writes a model's weights as Hugging Face's libraries read them, in files of at most `MAX_MODEL_FILE_BYTES`.

    `tensors` come in the order of `specs`. A tensor larger than the bound is a file of its own. Raises OSError.
    """
    files: list[list[TensorSpec]] = [[]]
    for spec in specs:
        if files[-1] and sum(other.nbytes for other in files[-1]) + spec.nbytes > MAX_MODEL_FILE_BYTES:
            files.append([])
        files[-1].append(spec)
    many = len(files) > 1
    names = [f"model-{i:05d}-of-{len(files):05d}.safetensors" if many else "model.safetensors"
             for i in range(1, len(files) + 1)]  # fmt: skip
    written = [
        write_safetensors(folder / name, {"format": "pt"}, held, islice(tensors, len(held)))
        for name, held in zip(names, files, strict=True)
    ]
    if many:
        index = {
            "metadata": {"total_size": sum(spec.nbytes for spec in specs)},
            "weight_map": {spec.name: name for name, held in zip(names, files, strict=True) for spec in held},
        }
        written.append(write_hashed(folder / "model.safetensors.index.json", [json.dumps(index, indent=2).encode()]))
    return written


def shard_path(folder: Path, rank: int) -> Path:
    """Return the path of a rank's shard file."""
    return folder / f"rank_{rank:03d}.safetensors"


def write_shard(folder: Path, rank: int, meta: Mapping[str, Any], pieces: Sequence[tuple[str, Tensor]]) -> HashedFile:
    """Write a rank's shard, float32 and one-dimensional, and JSON data `meta`; all of it is on disk on return.

    `folder` is made where its parent exists. Raises OSError.
    """
    specs = [TensorSpec(name, torch.float32, (piece.numel(),)) for name, piece in pieces]
    folder.mkdir(exist_ok=True)
    path, about = shard_path(folder, rank), {_META: json.dumps(meta)}
    written = write_safetensors(path, about, specs, (piece for _, piece in pieces))
    for directory in (folder, folder.parent):
        sync(directory)
    return written


class ShardReader:
    """Reader of the files that `write_shard` of all ranks wrote, which are open as long as it is there."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError, naming the file, when one is missing, cut off or of another save than the first."""
        first = shard_path(folder, 0)
        self._files = [_opened(first)]
        self.metas = [_meta(self._files[0], first)]
        self.ranks: int = self.metas[0]["ranks"]
        for rank in range(1, self.ranks):
            path = shard_path(folder, rank)
            self._files.append(_opened(path))
            self.metas.append(_meta(self._files[-1], path))
            if any(self.metas[-1][key] != self.metas[0][key] for key in ("ranks", "steps")):
                raise UserError(f"{path} is not of the same save as {first}")
        self._sizes = [{name: file.get_slice(name).get_shape()[0] for name in file.keys()} for file in self._files]  # noqa: SIM118
        self._folder, self.totals = folder, Counter[str]()
        """Elements of each whole tensor, by name."""
        for sizes in self._sizes:
            self.totals.update(sizes)

    def check(self, expected: Mapping[str, int]) -> None:
        """Raises UserError when `totals` are not those expected."""
        for name in sorted(self.totals.keys() | expected.keys()):
            if self.totals[name] != expected.get(name, 0):
                raise UserError(
                    f"{self._folder} is of another model: {name} has {self.totals[name]} elements there and "
                    f"{expected.get(name, 0)} here; give a checkpoint of this model"
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
        assert stop <= first, f"{name} ends at {first}, not at {stop} or later"


def _opened(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"{path} is missing: give the folder of a complete checkpoint")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}): use another checkpoint") from error


def _meta(file: Any, path: Path) -> dict[str, Any]:
    try:
        meta: dict[str, Any] = json.loads(file.metadata()[_META])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged (its description is not JSON): use another checkpoint") from error
    return meta
