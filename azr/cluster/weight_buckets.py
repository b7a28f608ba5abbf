"""Buckets of a weight sync: weights packed into parts of a memory block, and the two ends of their way.

The policy's `Outbox` packs named tensors into a block and yields a `WeightBucket`, a small record of the block's
address and content, each time a half of it is full; meanwhile the engines load the other. In every worker process an
`Inbox` finds the bytes. Each transfer (`azr.cluster.weight_transfers`) has its own two ends and kind of memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from blake3 import blake3
from torch import Tensor

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle
    from torch.distributed import ProcessGroup

CPU = torch.device("cpu")
ALIGNMENT = 64
"""Every tensor starts at a multiple of this many bytes: a cache line, and enough for any element type."""
CHUNK_WORDS = 8192
"""8-byte words in one sum of `WeightDigest`."""


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Position of one tensor in a bucket, in bytes from its start. `dtype`: torch's name, e.g. ``bfloat16``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


Part = list[tuple[TensorSlot, Tensor]]
"""Tensors of a bucket and their slots."""


@dataclass(frozen=True, slots=True)
class WeightBucket:
    """One filled part of a block. Its bytes are valid until the writer makes the next bucket but one."""

    version: int
    transfer: str
    source: dict[str, str]
    """Address of the block, in the transfer's own terms; may be empty after a version's first bucket."""
    start: int
    """Bytes from the start of the block."""
    slots: tuple[TensorSlot, ...]
    digest: str
    """Digest of this version's buckets up to and including this one, see `WeightDigest`."""
    full_check: bool
    """Whether the digest covers all bytes."""
    index: int
    """0 for the first bucket of a version."""
    last: bool

    @property
    def nbytes(self) -> int:
        return sum(slot.nbytes for slot in self.slots)

    @property
    def padded_nbytes(self) -> int:
        """Bytes of the bucket up to the end of the last tensor, gaps included."""
        return max((slot.offset + slot.nbytes for slot in self.slots), default=0)

    def region(self, block: Tensor) -> Tensor:
        """Return a view of the bucket's bytes, gaps included, in a block (N) uint8."""
        return block[self.start : self.start + self.padded_nbytes]

    def tensors(self, region: Tensor) -> list[tuple[str, Tensor]]:
        """Return the named tensors of the bucket in the order they were sent, as views of its bytes."""
        return [(slot.name, _view(region, slot)) for slot in self.slots]


class WeightDigest:
    """Running digest of buckets in order, on any device: 64 hex digits, comparable only for equal `full`.

    Names, types, shapes, places and order are hashed in full. With `full` a bucket's bytes are hashed by BLAKE3 on the
    host. Otherwise the sum modulo 2^64 of each 64 KiB is hashed, read as 8-byte words, which the device computes as
    fast as it reads. The sums show every change of bits within one word, any exchange or shift between sums, and other
    damage but for one case in 2^64. They do not show words that changed places within 64 KiB, nor changes made to keep
    a sum; a transfer does neither by accident.
    """

    def __init__(self, *, full: bool = False) -> None:
        self._hash, self._full = blake3(max_threads=blake3.AUTO), full

    def add(self, slots: Sequence[TensorSlot], region: Tensor) -> None:
        """Add a bucket's bytes, (N) uint8 from an address that 8 divides: a few operations, however many tensors."""
        self._hash.update("\0".join(f"{slot.name} {slot.dtype} {slot.shape} {slot.offset}" for slot in slots).encode())
        value = region if self._full else _sums(region)
        self._hash.update(value.cpu().view(torch.uint8).numpy().data)

    def hexdigest(self) -> str:
        """Return the digest of all that was added."""
        return self._hash.hexdigest()


def _sums(flat: Tensor) -> Tensor:
    """Return int64 sums, modulo 2^64, of the 8-byte words of each chunk of (N) uint8 and of the remaining bytes."""
    words, rest = flat[: len(flat) // 8 * 8].view(torch.int64), flat[len(flat) // 8 * 8 :]
    whole = len(words) // CHUNK_WORDS * CHUNK_WORDS
    parts = [words[:whole].view(-1, CHUNK_WORDS), words[whole:].view(1, -1), rest.view(1, -1)]
    sums = [part.sum(1, dtype=torch.int64) for part in parts if part.numel()]
    return torch.cat(sums) if sums else words


class Block:
    """Memory of this process, writable; transfers derive blocks from it that engines can read."""

    source: dict[str, str]
    """Address for `WeightBucket.source`."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.bytes, self.source = torch.empty(nbytes, dtype=torch.uint8, device=device), {}

    def close(self) -> None:
        """Free the block. Its buckets can no longer be opened; views of readers stay valid."""
        self.bytes = self.bytes.new_empty(0)


@dataclass(frozen=True, slots=True)
class Receiver:
    """Engine that is ready for buckets."""

    name: str
    actor: ActorHandle
    node: str
    """Ray's id of its node."""


class Outbox:
    """Sender in a rank: packs any number of versions into a block, whose halves buckets fill in turn.

    All ranks make one; those that send use it for every push.
    """

    transfer: str
    every_rank = False
    """Whether every rank sends its own copy of the weights, or only rank 0. Only rank 0 calls engines."""
    keeps_block = False
    """Whether the block is kept for the next push."""
    source_once = False
    """Whether the first bucket of a version alone carries the block's address."""
    block: Block | None = None
    bucket_nbytes = 0
    """Size of a half of the block."""
    loading: Mapping[ObjectRef, str]
    """Answers of the engines that load the newest bucket, with their names."""

    def __init__(self, device: torch.device = CPU, control: ProcessGroup | None = None, engine_gpus: int = 1) -> None:
        """`device`: the rank's. `control`: process group of all ranks on the host; None for a single rank.
        `engine_gpus`: worker processes of each engine."""
        self.device, self.control, self.engine_gpus = device, control, engine_gpus
        self.leads = control is None or control.rank() == 0

    def allocate(self, nbytes: int) -> Block:
        """Return memory that the receivers can reach; a collective if every rank sends."""
        raise NotImplementedError

    def open(self, bucket_nbytes: int, receivers: Sequence[Receiver] = (), timeout_s: float = 0.0) -> Self:
        """Prepare a push, also after one that failed half-way; a collective if every rank sends. `bucket_nbytes`: at
        least that of the largest tensor. `timeout_s`: for what engines do with a bucket."""
        assert bucket_nbytes > 0, f"a bucket of {bucket_nbytes} bytes"
        self.receivers, self.timeout_s, self.loading = receivers, timeout_s, {}
        if not self.keeps_block or self.bucket_nbytes < bucket_nbytes:
            self.close()  # after a failed push: its engines might still have been reading; those here now are not
            self.block = self.allocate(2 * _aligned(bucket_nbytes))
            self.bucket_nbytes = _aligned(bucket_nbytes)
        return self

    def pack(
        self, version: int, groups: Iterable[Iterable[tuple[str, Tensor]]], *, full_check: bool = False
    ) -> Iterator[WeightBucket]:
        """Yield buckets that together hold all tensors, in order; the last one has ``last`` set and the final digest.

        `groups` is consumed lazily. A group's tensors (any device, any strides) are copied before the next group is
        taken, so it may gather sharded parameters a group at a time; no bucket holds tensors of two. Names must be
        unique within a version. Only rank 0, which announces the buckets, computes digests.
        """
        assert self.block is not None, "the outbox is not open"
        digest, parts, index = WeightDigest(full=full_check), self._parts(groups), 0
        part = next(parts, None)
        assert part is not None, "no group of weights"
        while part is not None:
            start, slots = index % 2 * self.bucket_nbytes, tuple(slot for slot, _ in part)
            source = {} if self.source_once and index else self.block.source
            bucket = WeightBucket(version, self.transfer, source, start, slots, "", full_check, index, last=False)
            region = bucket.region(self.block.bytes)
            _fill(region, part)
            if self.leads:
                digest.add(slots, region)
            part, index = next(parts, None), index + 1
            yield replace(bucket, digest=digest.hexdigest(), last=part is None)

    def _parts(self, groups: Iterable[Iterable[tuple[str, Tensor]]]) -> Iterator[Part]:
        """Yield the tensors of each group in parts that fit a half."""
        for group in groups:
            part: Part = []
            end = 0
            for name, tensor in group:
                nbytes = _aligned(tensor.nbytes)
                assert nbytes <= self.bucket_nbytes, f"{name} is larger than a bucket"
                if part and end + nbytes > self.bucket_nbytes:
                    yield part
                    part, end = [], 0
                dtype = str(tensor.dtype).removeprefix("torch.")
                part.append((TensorSlot(name, dtype, tuple(tensor.shape), end, tensor.nbytes), tensor.detach()))
                end += nbytes
            yield part

    def meet(self) -> None:
        """Wait until every sending rank is here and its writes have reached its block."""

    def deliver(self, bucket: WeightBucket) -> dict[ObjectRef, str]:
        """Rank 0: let every engine load the bucket. Returns their answers, with the engines' names."""
        return {receiver.actor.load_bucket.remote(bucket): receiver.name for receiver in self.receivers}

    def close(self) -> None:
        """Free the block, if there is one."""
        if self.block is not None:
            self.block.close()
        self.block, self.bucket_nbytes = None, 0


class Inbox:
    """Receiver in a worker process."""

    def __init__(self, device: torch.device) -> None:
        """`device`: the model's."""
        self.device = device

    def connect(self, info: Mapping[str, Any], parallel: Any) -> None:
        """Meet the sender before the first bucket. `parallel`: vLLM's ParallelConfig."""
        raise NotImplementedError(f"{type(self).__name__} needs no connection")

    def take(self, bucket: WeightBucket, *, keep: bool) -> Tensor:
        """Return the bucket's bytes, (N) uint8, on the device; to `keep`, or else valid as long as the bucket is.

        The device may still be copying: synchronise it before the bucket counts as loaded. Raises ValueError if the
        bucket cannot be reached from here.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release the sender's memory: the last bucket is loaded, or another update begins."""


def _fill(region: Tensor, part: Part) -> None:
    """Copy tensors into their slots, all at once."""
    # What a block held before is not in the digest, nor is it the same on all ranks.
    gaps = [region[slot.offset + slot.nbytes : _aligned(slot.offset + slot.nbytes)] for slot, _ in part]
    if gaps := [gap for gap in gaps if len(gap)]:
        torch._foreach_zero_(gaps)
    if part:
        torch._foreach_copy_([_view(region, slot) for slot, _ in part], [tensor for _, tensor in part])


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _view(region: Tensor, slot: TensorSlot) -> Tensor:
    dtype: torch.dtype = getattr(torch, slot.dtype)
    return region[slot.offset : slot.offset + slot.nbytes].view(dtype).view(slot.shape)
