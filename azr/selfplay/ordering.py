"""What keeps results independent of who finishes first: turns by index, and sorting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from azr.records import Completion, Sample


def sort_trajectories(trajectories: Sequence[Sample]) -> list[Sample]:
    """Sorted by what they are, which decides how they are packed and in which order gradients are added."""
    return sorted(trajectories, key=lambda t: (t.kind, t.role, t.group, *_sampled(t.completion), t.trace_tokens))


def _sampled(completion: Completion) -> tuple[bytes, _Numbers]:
    """Compares as the lists of token ids and logprobs do: big-endian bytes are in the order of what they stand for."""
    return completion.response_ids.astype(">i4").tobytes(), _Numbers(completion.logprobs)


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """Compares as a list, which is made only where it is asked for: hardly two responses have the same ids."""

    array: npt.NDArray[np.float32]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbers) and np.array_equal(self.array, other.array)

    def __lt__(self, other: _Numbers) -> bool:
        return bool(self.array.tolist() < other.array.tolist())


class OrderedGate:
    """Lets callers pass one at a time, in any order or ``ordered`` by their indices; then each from 0 on must come."""

    def __init__(self, ordered: bool) -> None:
        self._ordered, self._num_passed = ordered, 0
        self._moved = asyncio.Condition()

    @asynccontextmanager
    async def turn(self, index: int) -> AsyncIterator[None]:
        """Waits until it is this index's turn."""
        async with self._moved:
            await self._moved.wait_for(lambda: not self._ordered or self._num_passed == index)
            yield
            self._num_passed += 1
            self._moved.notify_all()
