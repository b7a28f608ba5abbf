"""The runs of one request: how often a program runs, in which order its calls, what its runs agree on, and caches.

The first run says what is suspect about the program. If that one ended well, the others follow side by side in other
interpreters, each with its calls in another order. One run is never compared with itself, so what depends on hashes,
addresses, clocks or chance differs, with the probabilities that docs/executor.md states.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar
from zlib import crc32

from azr import values
from azr.execution import ADMITTED_SHARE, CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.executor import protocol
from azr.executor.protocol import Kind, Limits, Part
from azr.executor.scheduler import Job, Scheduler
from azr.executor.suspicion import ORDER, STATE, has_sets

_LOST = CallResult(status=CallStatus.LOST, error="the executor lost its sandbox twice while running this")
_SLOW = "it took more than half of the time limit in CPU time, so it might not end within it another time"

_RECORD_BYTES = 500
"""Memory of an entry beside its texts."""
K = TypeVar("K")
V = TypeVar("V")


REPEATABLE = (CallStatus.OK, CallStatus.RAISED)
"""Ends of a call that repeats are compared by."""
DECIDED_ALONE = (*REPEATABLE, CallStatus.REJECTED, CallStatus.OUTPUT_TOO_LARGE)
"""Ends that a program brings about by itself; for the others a busy or small machine may be to blame."""


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


class _EndedError(Exception):
    """One run decided each call of the request, as the result says: it was refused, or the executor lost it."""


class Runs:
    """The runs of one request."""

    def __init__(self, request: ExecutionRequest, limits: Limits, scheduler: Scheduler, codes: CodeCache) -> None:
        self._request, self._limits, self._scheduler, self._codes = request, limits, scheduler, codes
        self._loaded = codes.get((request.program, request.static_check))  # suspicion and marshalled code
        self._source = request.program.encode("utf-8", "surrogatepass")
        self._taken: set = set()
        self._retried = False

    async def run(self) -> list[ExecutionResult]:
        """Return a result of one call for each input."""
        repeats = self._request.repeats
        try:
            calls, agreed = await self._run_all()
            is_late = any(call.status is CallStatus.TIMEOUT for call in calls)
            if is_late and all(agreed) and (self._request.admitted or repeats > 1):
                # Perhaps because the machine is busy: all is done again, by the CPU clock, and alone at first.
                self._retried = True
                self._taken.clear()
                calls, agreed = await self._run_all()
        except _EndedError as end:
            return list(end.args) * len(self._request.inputs)
        established = repeats > 1 and _is_established(calls)
        return [
            ExecutionResult(outputs=(call,), deterministic=agrees if established else None)
            for call, agrees in zip(calls, agreed, strict=True)
        ]

    async def _run_all(self) -> tuple[list[CallResult], list[bool]]:
        """Return what the calls brought, and whether all runs agree on each; the first disagreement ends it."""
        order, repeats = list(range(len(self._request.inputs))), self._request.repeats
        calls, agreed = await self._run(order, alone=self._retried), [True] * len(order)
        if repeats == 1 or not _is_established(calls):
            return calls, agreed
        if self._loaded is None or self._loaded[0] & ORDER or any(map(_states_sets, self._request.inputs)):
            repeats *= protocol.SUSPECT_FACTOR
        # Backwards, then mixed, the same whenever this program is run.
        orders = [order[::-1], *(order.copy() for _ in range(repeats - 2))]
        for number, mixed in enumerate(orders[1:], 1):
            if len(order) > 1:
                random.Random(crc32(self._source) + number).shuffle(mixed)
        runs = [asyncio.create_task(self._run(each, calls)) for each in orders]
        try:
            for run in asyncio.as_completed(runs):
                again = await run
                # A repeat that ran out of time is not a contradiction, for a busy machine may be to blame: it is late.
                late = [call.status is CallStatus.TIMEOUT for call in again]
                for index, (first, call) in enumerate(zip(calls, again, strict=True)):
                    agreed[index] &= late[index] or first.status is CallStatus.TIMEOUT or self._agree(first, call)
                calls = [call if out else first for first, call, out in zip(calls, again, late, strict=True)]
                if not all(agreed):
                    break
        finally:
            for each in runs:
                each.cancel()
            await asyncio.gather(*runs, return_exceptions=True)
        return calls, agreed

    async def _run(
        self, order: Sequence[int], first: Sequence[CallResult] = (), *, alone: bool = False
    ) -> list[CallResult]:
        """Run all calls in this order; return their results in the request's own. ``first``: those of the first run."""
        is_task = self._request.admitted and self._request.static_check
        while True:
            job = self._job(order)
            self._scheduler.submit(job, alone=alone)
            if (parts := await job.reply) is None:
                raise _EndedError(ExecutionResult(outputs=(_LOST,)))
            about = [part for part in parts if protocol.letter_of(part) in (Part.LOADED, Part.REASONS)]
            for part in about:
                self._learn(part)
            is_suspect = self._loaded is not None and all(self._loaded)
            if len(parts) - len(about) == len(order) and not (about and is_suspect and is_task):
                break
            # It was only loaded, for its calls must not share a process, or ran otherwise than when it was admitted.
            self._taken.clear()
            alone = False
        in_place = dict(zip(order, (part for part in parts if part not in about), strict=True))
        calls = protocol.read_calls([in_place[index] for index in range(len(order))], self._limits, first)
        slow_s = self._limits.wall_s * ADMITTED_SHARE if self._request.repeats > 1 else math.inf
        return [
            replace(call, status=CallStatus.TIMEOUT, value=None, error=_SLOW)
            if call.status in REPEATABLE and call.cpu_s > slow_s
            else call
            for call in calls
        ]

    def _agree(self, a: CallResult, b: CallResult) -> bool:
        """Whether two runs of one call say the same; values are compared as data, not as text."""
        if a.status is not b.status:
            return False
        if a.value is None or b.value is None:
            return a.error == b.error
        most = max(self._limits.output_bytes, values.MAX_BYTES)
        return a.value == b.value or values.equal(*(values.parse(text, max_bytes=most) for text in (a.value, b.value)))

    def _job(self, order: Sequence[int]) -> Job:
        request, count = self._request, len(order)
        suspected, code = self._loaded or (0, b"")
        is_apart = count > 1 and bool(suspected & STATE)
        if code:
            kind, program = Kind.CODE, code
        else:
            kind, program = Kind.SOURCE | (0 if request.static_check else Kind.UNCHECKED), self._source
            if count == request.repeats == 1 and not request.admitted:
                kind |= Kind.ONCE
        kind |= (Kind.APART if is_apart else 0) | (Kind.ALONE if self._retried else 0)
        frames = protocol.request_frames(kind, program, [request.inputs[index] for index in order])
        return Job(request=frames, order=crc32(self._source), count=count, is_apart=is_apart, taken=self._taken)

    def _learn(self, part: bytes) -> None:
        """Remember what is suspect about the program, and its code. Raises _EndedError if it is refused."""
        if protocol.letter_of(part) == Part.REASONS:
            try:
                reasons = protocol.read_reasons(part)
            except protocol.ProtocolError as error:
                raise _EndedError(ExecutionResult(outputs=(protocol.invalid(error, 0.0),))) from error
            refused = CallResult(status=CallStatus.REJECTED, error=reasons[0])
            raise _EndedError(ExecutionResult(outputs=(refused,), static_check=reasons))
        if self._loaded is None:
            self._loaded = protocol.read_loaded(part)
            key = self._request.program, self._request.static_check
            self._codes.put(key, self._loaded, len(key[0]) + len(self._loaded[1]))


def _is_established(calls: Sequence[CallResult]) -> bool:
    return all(call.status in REPEATABLE for call in calls)


def _states_sets(text: str) -> bool:
    """Whether arguments hold a set, whose order may show in the result."""
    if "{" not in text and "set" not in text:
        return False
    try:
        return has_sets(values.parse_arguments(text))
    except values.PlainDataError:
        return False
