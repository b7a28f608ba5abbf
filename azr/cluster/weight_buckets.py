"""How weights travel from a trainer to the engines: packed into buckets of shared memory.

The trainer packs named tensors into one block and hands out a `WeightBucket` each time the block is full. The bucket
is a small plain record: it says where the block is and what lies in it. Engines of the same node map the block, so no
weight passes through a message queue; to other nodes Ray's object store carries the bytes, once per node, and a
`RemoteBucketStaging` there puts them into shared memory again. A running digest over names, types, shapes and bytes
shows that all of it arrived, in order. `azr.cluster.weight_sync` has the whole timeline.

The block is anonymous memory (memfd): the kernel frees it when its writer closes it, exits or is killed, and a
container's small /dev/shm does not bound it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from blake3 import blake3

ALIGNMENT = 64
"""Every tensor starts at a multiple of this many bytes: a cache line, and enough for any element type."""


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Where one tensor lies in a block."""

    name: str
    dtype: str
    """Name of the torch type, e.g. ``bfloat16``."""
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the block."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class WeightBucket:
    """One filled block. Its bytes are valid until the writer is asked for the next bucket."""

    version: int
    """Version of the weights that this bucket is a part of."""
    shm_path: str
    """Path under which other processes of this node can open the block."""
    slots: tuple[TensorSlot, ...]
    digest: str
    """Digest of everything sent for this version up to and including this bucket."""
    index: int
    """0 for the first bucket of a version."""
    last: bool

    @property
    def nbytes(self) -> int:
        return sum(slot.nbytes for slot in self.slots)

    @property
    def padded_nbytes(self) -> int:
        """Bytes of the block up to the end of the last tensor, gaps included."""
        return max((slot.offset + slot.nbytes for slot in self.slots), default=0)


class WeightDigest:
    """Running BLAKE3 digest of named tensors; order, names, types, shapes and bytes all matter."""

    def __init__(self) -> None:
        self._hash = blake3()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take in one contiguous CPU tensor of any shape and type."""
        self._hash.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        self._hash.update(tensor.reshape(-1).view(torch.uint8).numpy().data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def read_bucket(bucket: WeightBucket) -> list[tuple[str, torch.Tensor]]:
    """Named CPU tensors of a bucket, in the order they were sent.

    The tensors are views of the writer's block: clone what must outlive the bucket. Writing to them does not reach
    the block. Raises ValueError when the block cannot be opened, which is so on another node than the writer's.
    """
    try:
        with open(bucket.shm_path, "rb") as file:
            block = torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    except OSError as error:
        raise ValueError(
            f"cannot open the weight block {bucket.shm_path} ({error.strerror}): "
            "its writer must be alive, on the same node and owned by the same user"
        ) from error
    return [(slot.name, _view(block, slot)) for slot in bucket.slots]


class SharedMemoryBucketWriter:
    """Packs weights of any number of versions into one reused block of shared memory.

    Each bucket is overwritten by the next one: let every engine load it before going on::

        for bucket in writer.pack(version, named_tensors):
            ...
    """

    def __init__(self, block_nbytes: int) -> None:
        """`block_nbytes`: size of the block. It grows when a single tensor is larger."""
        assert block_nbytes > 0, f"a block of {block_nbytes} bytes"
        self._block = _Block(block_nbytes)

    def pack(self, version: int, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[WeightBucket]:
        """Buckets that together hold all tensors, in order; the last one has ``last`` set and the final digest.

        `named_tensors` is consumed lazily and each tensor (any device, any strides) is copied before the next is
        asked for, so it may gather sharded parameters one at a time. Names must be unique within a version.
        """
        digest = WeightDigest()
        slots: list[TensorSlot] = []
        end, index = 0, 0
        for name, tensor in named_tensors:
            if slots and end + tensor.nbytes > self._block.size:
                yield WeightBucket(version, self._block.shm_path, tuple(slots), digest.hexdigest(), index, last=False)
                slots, end, index = [], 0, index + 1
            if tensor.nbytes > self._block.size:
                self._block.close()
                self._block = _Block(tensor.nbytes)
            slot = TensorSlot(name, _dtype_name(tensor.dtype), tuple(tensor.shape), end, tensor.nbytes)
            copy = _view(self._block.bytes, slot).copy_(tensor.detach())
            digest.add(name, copy)
            slots.append(slot)
            end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        yield WeightBucket(version, self._block.shm_path, tuple(slots), digest.hexdigest(), index, last=True)

    def bucket_bytes(self, bucket: WeightBucket) -> np.ndarray:
        """The bytes of the block that hold this bucket, the latest one: a view, for senders to other nodes."""
        return self._block.bytes[: bucket.padded_nbytes].numpy()

    def close(self) -> None:
        """Free the block. Buckets can no longer be opened; views that readers still hold stay valid."""
        self._block.close()


class RemoteBucketStaging:
    """Where buckets of another node's writer become readable on this one: in a block of its own, reused by each."""

    def __init__(self) -> None:
        self._block: _Block | None = None

    def stage(self, bucket: WeightBucket, block: np.ndarray) -> WeightBucket:
        """The bucket as this node's processes can read it, until the next one comes.

        `block` (N) uint8: what `SharedMemoryBucketWriter.bucket_bytes` gave.
        """
        if self._block is None or self._block.size < len(block):
            self.close()
            self._block = _Block(max(1, len(block)))
        self._block.bytes[: len(block)].numpy()[:] = block
        return replace(bucket, shm_path=self._block.shm_path)

    def close(self) -> None:
        if self._block is not None:
            self._block.close()
            self._block = None


class _Block:
    """Anonymous shared memory that other processes of this node open through this process's descriptor table."""

    def __init__(self, size: int) -> None:
        self.size = size
        # A file object, not a bare descriptor: dropping the last reference closes it.
        self._file = open(os.memfd_create("azr-weights"), "r+b", buffering=0)  # noqa: SIM115
        self._file.truncate(size)
        self.bytes = torch.frombuffer(mmap.mmap(self._file.fileno(), size), dtype=torch.uint8)
        self.shm_path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def close(self) -> None:
        self._file.close()
        self.bytes = self.bytes.new_empty(0)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _view(block: torch.Tensor, slot: TensorSlot) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, slot.dtype)
    return block[slot.offset : slot.offset + slot.nbytes].view(dtype).view(slot.shape)
