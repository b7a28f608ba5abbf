"""Cache of call results and of loaded programs, each within a budget of bytes."""

from __future__ import annotations

from collections import OrderedDict
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

    def get(self, key: CallKey) -> Outcome | None:
        """The remembered outcome, or None."""
        known = self._done.get(key)
        if known is not None:
            self._done.move_to_end(key)
        return known

    def put(self, key: CallKey, outcome: Outcome) -> None:
        """Remember an outcome if nothing but the call itself decided it."""
        if outcome.cacheable(key.repeats) and key not in self._done:
            self._done[key] = outcome
            self._bytes += _size(key, outcome)
            while self._bytes > self._max_bytes:
                self._bytes -= _size(*self._done.popitem(last=False))


def _size(key: CallKey, outcome: Outcome) -> int:
    return _RECORD_BYTES + sum(map(len, (key.program, key.input, *outcome.static_check, outcome.call.value or "")))
