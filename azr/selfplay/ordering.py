"""Make results independent of the order in which work finishes: turns by index, and sorting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from azr.records import Completion, Sample


def sort_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Sort by content, which decides how samples are packed and in which order gradients are added."""
    return sorted(samples, key=lambda t: (t.kind, t.role, t.group, *_sampled(t.completion), t.trace_tokens))


def _sampled(completion: Completion) -> tuple[bytes, _Numbers]:
    """Return a sort key in the order of the lists of token ids and logprobs; big-endian bytes sort like numbers."""
    return completion.response_ids.astype(">i4").tobytes(), _Numbers(completion.logprobs)


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """Sorts like a list, which is made only for a comparison: few responses have the same ids."""

    array: npt.NDArray[np.float32]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbers) and np.array_equal(self.array, other.array)

    def __lt__(self, other: _Numbers) -> bool:
        return bool(self.array.tolist() < other.array.tolist())


class OrderedGate:
    """Lets callers pass one at a time: in any order, or ``ordered`` by index, where every index from 0 on must come."""

    def __init__(self, ordered: bool) -> None:
        self._ordered, self._num_passed = ordered, 0
        self._moved = asyncio.Condition()

    @asynccontextmanager
    async def turn(self, index: int) -> AsyncIterator[None]:
        """Wait for the turn of this index."""
        async with self._moved:
            await self._moved.wait_for(lambda: not self._ordered or self._num_passed == index)
            yield
            self._num_passed += 1
            self._moved.notify_all()
