"""Buckets of a weight sync: weights packed into parts of a memory block.

The trainer packs named tensors into a block and yields a `WeightBucket`, a small record of the block's address and
content, each time a half of it is full; meanwhile the engines load the other. The transfer decides the kind of memory
and how engines reach it (`azr.cluster.weight_transfers`). A running digest shows that everything arrived in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from blake3 import blake3

ALIGNMENT = 64
"""Every tensor starts at a multiple of this many bytes: a cache line, and enough for any element type."""
CHUNK_WORDS = 8192
"""8-byte words in one sum of `WeightDigest`."""


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Position of one tensor in a bucket."""

    name: str
    dtype: str
    """Name of the torch type, e.g. ``bfloat16``."""
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the bucket."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class WeightBucket:
    """One filled part of a block. Its bytes are valid until the writer makes the next bucket but one."""

    version: int
    """Version of the weights in this bucket."""
    transfer: str
    """Name of the transfer in `azr.cluster.weight_transfers`."""
    source: dict[str, str]
    """Address of the block, in the transfer's own terms."""
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

    def region(self, block: torch.Tensor) -> torch.Tensor:
        """Return a view of the bucket's bytes, gaps included, in a block (N) uint8."""
        return block[self.start : self.start + self.padded_nbytes]

    def tensors(self, region: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
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

    def add(self, slots: Sequence[TensorSlot], region: torch.Tensor) -> None:
        """Add a bucket's bytes, (N) uint8 from an address that 8 divides: a few operations, however many tensors."""
        self._hash.update("\0".join(f"{slot.name} {slot.dtype} {slot.shape} {slot.offset}" for slot in slots).encode())
        value = region if self._full else _sums(region)
        self._hash.update(value.cpu().view(torch.uint8).numpy().data)

    def hexdigest(self) -> str:
        """Return the digest of all that was added."""
        return self._hash.hexdigest()


def _sums(flat: torch.Tensor) -> torch.Tensor:
    """Return int64 sums, modulo 2^64, of the 8-byte words of each chunk of (N) uint8 and of the remaining bytes."""
    words, rest = flat[: len(flat) // 8 * 8].view(torch.int64), flat[len(flat) // 8 * 8 :]
    whole = len(words) // CHUNK_WORDS * CHUNK_WORDS
    parts = [words[:whole].view(-1, CHUNK_WORDS), words[whole:].view(1, -1), rest.view(1, -1)]
    sums = [part.sum(1, dtype=torch.int64) for part in parts if part.numel()]
    return torch.cat(sums) if sums else words


class Block:
    """Memory of this process; transfers derive blocks from it that engines can read."""

    bytes: torch.Tensor
    """(N) uint8, writable."""
    source: dict[str, str]
    """Address for `WeightBucket.source`."""

    def __init__(self, nbytes: int, device: torch.device | str = "cpu") -> None:
        self.bytes, self.source = torch.empty(nbytes, dtype=torch.uint8, device=device), {}

    def close(self) -> None:
        self.bytes = self.bytes.new_empty(0)


class BucketWriter:
    """Packs weights of any number of versions into one reused block, whose halves buckets fill in turn."""

    def __init__(self, transfer: str, allocate: Callable[[int], Block], bucket_nbytes: int) -> None:
        """`bucket_nbytes`: size of a half of the block, at least that of the largest tensor."""
        assert bucket_nbytes > 0, f"a bucket of {bucket_nbytes} bytes"
        self._transfer, self.bucket_nbytes = transfer, _aligned(bucket_nbytes)
        self.block = allocate(2 * self.bucket_nbytes)

    def pack(
        self,
        version: int,
        groups: Iterable[Iterable[tuple[str, torch.Tensor]]],
        *,
        full_check: bool = False,
        with_digest: bool = True,
    ) -> Iterator[WeightBucket]:
        """Yield buckets that together hold all tensors, in order; the last one has ``last`` set and the final digest.

        `groups` is consumed lazily. A group's tensors (any device, any strides) are copied before the next group is
        taken, so it may gather sharded parameters a group at a time; no bucket holds tensors of two. Names must be
        unique within a version. `with_digest`: False on ranks that fill their block but announce no bucket.
        """
        digest = WeightDigest(full=full_check)
        filled: WeightBucket | None = None
        for index, named in enumerate(self._that_fit(groups)):
            if filled is not None:
                yield filled
            slots = self._fill(index % 2, named)
            start = index % 2 * self.bucket_nbytes
            filled = WeightBucket(
                version, self._transfer, self.block.source, start, slots, "", full_check, index, False
            )
            if with_digest:
                digest.add(slots, filled.region(self.block.bytes))
            filled = replace(filled, digest=digest.hexdigest())
        assert filled is not None, "no group of weights"
        yield replace(filled, last=True)

    def _that_fit(
        self, groups: Iterable[Iterable[tuple[str, torch.Tensor]]]
    ) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Yield each group in parts that fit a half."""
        for group in groups:
            part: list[tuple[str, torch.Tensor]] = []
            end = 0
            for name, tensor in group:
                if part and end + tensor.nbytes > self.bucket_nbytes:
                    yield part
                    part, end = [], 0
                part.append((name, tensor.detach()))
                end += _aligned(tensor.nbytes)
            yield part

    def _fill(self, half: int, named: Sequence[tuple[str, torch.Tensor]]) -> tuple[TensorSlot, ...]:
        """Copy the tensors into a half of the block, all at once."""
        slots, end = [], 0
        for name, tensor in named:
            dtype = str(tensor.dtype).removeprefix("torch.")
            slots.append(TensorSlot(name, dtype, tuple(tensor.shape), end, tensor.nbytes))
            end += _aligned(tensor.nbytes)
        assert end <= self.bucket_nbytes, f"{named[-1][0]} is larger than a bucket"
        region = self.block.bytes[half * self.bucket_nbytes :]
        # What a block held before is not in the digest, nor is it the same on all ranks.
        gaps = [region[slot.offset + slot.nbytes : _aligned(slot.offset + slot.nbytes)] for slot in slots]
        if gaps := [gap for gap in gaps if len(gap)]:
            torch._foreach_zero_(gaps)
        if slots:
            torch._foreach_copy_([_view(region, slot) for slot in slots], [tensor for _, tensor in named])
        return tuple(slots)

    def close(self) -> None:
        """Free the block. Buckets can no longer be opened; views of readers stay valid."""
        self.block.close()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _view(region: torch.Tensor, slot: TensorSlot) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, slot.dtype)
    return region[slot.offset : slot.offset + slot.nbytes].view(dtype).view(slot.shape)
