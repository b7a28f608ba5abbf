"""Cache of call results within a budget of bytes; a request for the very calls that are running joins them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from azr.execution import CallResult, CallStatus

_RECORD_BYTES = 500


class CallKey(NamedTuple):
    """Key of a call: calls with equal keys share a result."""

    program: str
    input: str
    static_check: bool
    repeats: int
    admitted: bool = False


REPEATABLE = (CallStatus.OK, CallStatus.RAISED)
"""Ends of a call that repeats are compared by."""
_DECIDED_ALONE = (*REPEATABLE, CallStatus.REJECTED, CallStatus.OUTPUT_TOO_LARGE)
"""Ends that a program brings about by itself; for the others a busy or small machine may be to blame."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one call."""

    call: CallResult
    deterministic: bool | None
    """Whether all repeats agreed; None if that was not established."""
    static_check: tuple[str, ...] = ()
    caused_by_other_calls: bool = False
    """Whether other calls of its request caused it."""

    def cacheable(self, repeats: int) -> bool:
        """Whether the program and its input alone decided it, and whether it is as certain as was asked for."""
        is_certain = repeats == 1 or self.deterministic is not None or bool(self.static_check)
        return is_certain and self.call.status in _DECIDED_ALONE and not self.caused_by_other_calls


class LoadedProgram(NamedTuple):
    """Checked and compiled program, cached so that neither is done again."""

    suspicion: int
    code: bytes
    """Marshalled; empty when it is too long."""


class CodeCache:
    """Programs that were loaded, least recently used leave first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._loaded: OrderedDict[tuple[str, bool], LoadedProgram] = OrderedDict()

    def get(self, program: str, static_check: bool) -> LoadedProgram | None:
        """Return the program reported by an earlier run of the source, with or without the static check."""
        known = self._loaded.get((program, static_check))
        if known is not None:
            self._loaded.move_to_end((program, static_check))
        return known

    def put(self, program: str, static_check: bool, loaded: LoadedProgram) -> None:
        if (program, static_check) not in self._loaded:
            self._loaded[program, static_check] = loaded
            self._bytes += _RECORD_BYTES + len(program) + len(loaded.code)
            while self._bytes > self._max_bytes:
                (oldest, _), dropped = self._loaded.popitem(last=False)
                self._bytes -= _RECORD_BYTES + len(oldest) + len(dropped.code)


class CallCache:
    """Least recently used outcomes leave first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._done: OrderedDict[CallKey, Outcome] = OrderedDict()
        self._running: dict[tuple[CallKey, ...], asyncio.Future[dict[CallKey, Outcome]]] = {}
        """By all calls of a run: one that had other company may end otherwise."""

    def get(self, key: CallKey) -> Outcome | None:
        """The remembered outcome, or None."""
        known = self._done.get(key)
        if known is not None:
            self._done.move_to_end(key)
        return known

    def running(self, keys: tuple[CallKey, ...]) -> asyncio.Future[dict[CallKey, Outcome]] | None:
        """The outcomes to come of calls that run together, these and no others, or None."""
        return self._running.get(keys)

    def begin(self, keys: tuple[CallKey, ...]) -> asyncio.Future[dict[CallKey, Outcome]]:
        """Announce calls that are about to run together."""
        self._running[keys] = asyncio.get_running_loop().create_future()
        return self._running[keys]

    def finish(self, keys: tuple[CallKey, ...], outcomes: Sequence[Outcome]) -> None:
        """Hand the outcomes to everyone who waits, and remember those that nothing but the call itself decided."""
        self._running.pop(keys).set_result(dict(zip(keys, outcomes, strict=True)))
        for key, outcome in zip(keys, outcomes, strict=True):
            if outcome.cacheable(key.repeats) and key not in self._done:
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
