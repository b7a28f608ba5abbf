"""Remembers what calls did, within a budget of bytes, and joins identical calls that are still running."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from azr.records import CallResult, CallStatus

_RECORD_BYTES = 500


class CallKey(NamedTuple):
    """What makes two calls the same."""

    program: str
    input: str
    static_check: bool
    repeats: int


REPEATABLE = (CallStatus.OK, CallStatus.RAISED)
"""Ends of a call that repeats are compared by."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one call."""

    call: CallResult
    deterministic: bool | None
    """Whether all repeats said the same; None when that was not established."""
    static_check: tuple[str, ...] = ()

    @property
    def cacheable(self) -> bool:
        """A lost sandbox says nothing, and for a timeout a busy machine may be to blame: the next one tries again."""
        return self.call.status not in (CallStatus.LOST, CallStatus.TIMEOUT)


class CallCache:
    """Least recently used outcomes leave first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._done: OrderedDict[CallKey, Outcome] = OrderedDict()
        self._running: dict[CallKey, asyncio.Future[Outcome]] = {}
        self.hits = 0

    def get(self, key: CallKey) -> asyncio.Future[Outcome] | Outcome | None:
        """The remembered outcome, the future of one that is running, or None."""
        known = self._done.get(key)
        if known is not None:
            self._done.move_to_end(key)
        found = known or self._running.get(key)
        self.hits += found is not None
        return found

    def begin(self, key: CallKey) -> asyncio.Future[Outcome]:
        """Announce a call that is about to run."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._running[key] = future
        return future

    def finish(self, key: CallKey, outcome: Outcome) -> None:
        """Hand the outcome to everyone who waits for it, and remember it if it is worth that.

        A call that another one of its program kept from being repeated is not: it would pass for checked later.
        """
        self._running.pop(key).set_result(outcome)
        unchecked = key.repeats > 1 and outcome.deterministic is None and outcome.call.status in REPEATABLE
        if outcome.cacheable and not unchecked:
            self._done[key] = outcome
            self._bytes += _size(key, outcome)
            while self._bytes > self._max_bytes:
                self._bytes -= _size(*self._done.popitem(last=False))

    async def drain(self) -> None:
        """Wait until nothing is running."""
        if self._running:
            await asyncio.wait(self._running.values())


def _size(key: CallKey, outcome: Outcome) -> int:
    return _RECORD_BYTES + sum(map(len, (key.program, key.input, *outcome.static_check, outcome.call.value or "")))
