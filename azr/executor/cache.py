"""Cache of call results and of loaded programs, each within a budget of bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from azr.execution import CallResult, CallStatus

_RECORD_BYTES = 500
"""Memory of an entry beside its texts."""
K = TypeVar("K")
V = TypeVar("V")


REPEATABLE = (CallStatus.OK, CallStatus.RAISED)
"""Ends of a call that repeats are compared by."""
DECIDED_ALONE = (*REPEATABLE, CallStatus.REJECTED, CallStatus.OUTPUT_TOO_LARGE)
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


class Cache(Generic[K, V]):
    """Values within a budget of bytes; those that were not used for the longest time leave first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: K, value: V, num_bytes: int) -> None:
        """Remember a value, unless there is one; ``num_bytes``: of key and value."""
        if key not in self._values:
            self._values[key] = value, num_bytes + _RECORD_BYTES
            self._bytes += num_bytes + _RECORD_BYTES
            while self._bytes > self._max_bytes:
                self._bytes -= self._values.popitem(last=False)[1][1]


CodeCache = Cache[tuple[str, bool], tuple[int, bytes]]
"""Suspicion and marshalled code, by source and whether it was held to the static check."""
