"""Which zygote runs a request next: places in a fixed set of slots, each with a hash seed of its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from azr.executor.connection import Connection, WorkerLostError
from azr.executor.protocol import Limits

_START_ATTEMPTS = 3


@dataclass(slots=True, eq=False)
class Slot:
    """A place for one zygote, which is replaced when it is lost."""

    hash_seed: int
    prefix: tuple[str, ...]
    limits: Limits
    load: int = 0
    """Requests sent or about to be."""
    reserved: bool = False
    """Kept for one request that already lost a zygote."""
    starts: int = 0
    connection: Connection | None = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def connect(self) -> Connection:
        """The running zygote, started anew if need be. Raises WorkerLostError, ValueError as it does."""
        async with self._starting:
            if self.connection is None or self.connection.lost:
                self.connection = await self._open()
            return self.connection

    async def _open(self) -> Connection:
        for attempt in range(1, _START_ATTEMPTS + 1):
            self.starts += 1
            try:
                return await Connection.open(self.prefix, self.hash_seed, self.limits)
            except WorkerLostError:
                if attempt == _START_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")


class Slots:
    """Hands out places, the least loaded slot first, at most ``window`` per slot."""

    def __init__(self, slots: list[Slot], window: int) -> None:
        self.slots = slots
        self._window = window
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def place(self, exclude: Collection[Slot]) -> AsyncIterator[Slot]:
        """A place in the least loaded slot that is not in ``exclude``."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._free(exclude, self._window) is not None)
            slot = self._free(exclude, self._window)
            assert slot is not None
            slot.load += 1
        try:
            yield slot
        finally:
            async with self._freed:
                slot.load -= 1
                self._freed.notify_all()

    @asynccontextmanager
    async def whole(self, exclude: Collection[Slot]) -> AsyncIterator[Slot]:
        """A slot for one request alone: it takes nothing new from now on, and is given once it is empty."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._free(exclude, math.inf) is not None)
            slot = self._free(exclude, math.inf)
            assert slot is not None
            slot.reserved = True
        try:
            async with self._freed:
                await self._freed.wait_for(lambda: slot.load == 0)
            yield slot
        finally:
            async with self._freed:
                slot.reserved = False
                self._freed.notify_all()

    def _free(self, exclude: Collection[Slot], limit: float) -> Slot | None:
        free = [slot for slot in self.slots if slot not in exclude and slot.load < limit and not slot.reserved]
        return min(free, key=lambda slot: slot.load, default=None)
