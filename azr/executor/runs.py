"""The runs of one request: how often a program runs, in which order its calls, and what its runs agree on.

The first run says what is suspect about the program. If that one ended well, the others follow side by side in other
interpreters, each with its calls in another order. One run is never compared with itself, so what depends on hashes,
addresses, clocks or chance differs, with the probabilities that docs/executor.md states.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

from azr import values
from azr.execution import ADMITTED_SHARE, CallResult, CallStatus, ExecutionRequest
from azr.executor import protocol
from azr.executor.cache import REPEATABLE, CodeCache, LoadedProgram, Outcome
from azr.executor.protocol import Kind, Limits, Part
from azr.executor.scheduler import Job, Scheduler
from azr.executor.suspicion import ORDER, STATE, has_sets

_LOST = CallResult(status=CallStatus.LOST, error="the executor lost its sandbox twice while running this")
_SLOW = "it took more than half of the time limit in CPU time, so it might not end within it another time"


class _EndedError(Exception):
    """One run decided the request: it was refused, or the executor lost it."""

    def __init__(self, call: CallResult, reasons: tuple[str, ...] = ()) -> None:
        super().__init__(call.error)
        self.outcome = Outcome(call, None, reasons)


class Runs:
    """The runs of one request."""

    def __init__(self, request: ExecutionRequest, limits: Limits, scheduler: Scheduler, codes: CodeCache) -> None:
        self._request, self._limits, self._scheduler, self._codes = request, limits, scheduler, codes
        self._loaded = codes.get((request.program, request.static_check))
        self._source = request.program.encode("utf-8", "surrogatepass")
        self._taken: set = set()
        self._retried = False

    async def run(self) -> list[Outcome]:
        """Return an outcome for each input."""
        try:
            calls, agreed = await self._run_all()
            is_late = any(call.status is CallStatus.TIMEOUT for call in calls)
            if is_late and all(agreed) and (self._request.admitted or self._request.repeats > 1):
                # Perhaps because the machine is busy: all is done again, by the CPU clock, and alone at first.
                self._retried = True
                self._taken.clear()
                calls, agreed = await self._run_all()
        except _EndedError as end:
            return [end.outcome] * len(self._request.inputs)
        established, has_company = self._request.repeats > 1 and _is_established(calls), len(calls) > 1
        return [
            Outcome(
                call,
                agrees if established else None,
                caused_by_other_calls=call == protocol.TOO_MUCH or (has_company and not agrees),
            )
            for call, agrees in zip(calls, agreed, strict=True)
        ]

    async def _run_all(self) -> tuple[list[CallResult], list[bool]]:
        """Return what the calls brought, and whether all runs agree on each; the first disagreement ends it."""
        order = range(len(self._request.inputs))
        calls, agreed = await self._run(order, alone=self._retried), [True] * len(order)
        if self._request.repeats > 1:
            calls = [self._judge_time(call) for call in calls]
        if not _is_established(calls):
            return calls, agreed
        repeats = [asyncio.create_task(self._run(self._order(number), calls)) for number in range(self._num_runs() - 1)]
        try:
            for repeat in asyncio.as_completed(repeats):
                again = [self._judge_time(call) for call in await repeat]
                # A repeat that ran out of time is no contradiction, for a busy machine may be to blame: it is late.
                late = [call.status is CallStatus.TIMEOUT for call in again]
                for index, (first, call) in enumerate(zip(calls, again, strict=True)):
                    agreed[index] &= late[index] or first.status is CallStatus.TIMEOUT or _agree(first, call)
                calls = [call if out else first for first, call, out in zip(calls, again, late, strict=True)]
                if not all(agreed):
                    break
        finally:
            for repeat in repeats:
                repeat.cancel()
            await asyncio.gather(*repeats, return_exceptions=True)
        return calls, agreed

    async def _run(
        self, order: Sequence[int], first: Sequence[CallResult] = (), *, alone: bool = False
    ) -> list[CallResult]:
        """Run all calls in this order; return their results in the request's own. ``first``: those of the first run."""
        while True:
            words, calls = await self._submit(order, alone)
            for word in words:
                if protocol.letter_of(word) == Part.REASONS:
                    raise _refusal(word)
                if self._loaded is None:
                    self._loaded = LoadedProgram(*protocol.read_loaded(word))
                    key = self._request.program, self._request.static_check
                    self._codes.put(key, self._loaded, len(key[0]) + len(self._loaded.code))
            is_suspect = self._loaded is not None and self._loaded.suspicion and self._loaded.code
            is_task = self._request.admitted and self._request.static_check
            if len(calls) == len(order) and not (words and is_suspect and is_task):
                break
            # It was only loaded, for its calls must not share a process, or ran otherwise than when it was admitted.
            self._taken.clear()
            alone = False
        in_place = [b""] * len(order)
        for index, part in zip(order, calls, strict=True):
            in_place[index] = part
        return list(protocol.read_calls(in_place, self._limits, first))

    async def _submit(self, order: Sequence[int], alone: bool) -> tuple[list[bytes], list[bytes]]:
        """Return the parts of a reply about the program, and those about its calls."""
        count = len(order)
        is_apart = count > 1 and self._loaded is not None and bool(self._loaded.suspicion & STATE)
        if self._loaded is not None and self._loaded.code:
            kind, program = Kind.CODE, self._loaded.code
        else:
            kind, program = Kind.SOURCE | (0 if self._request.static_check else Kind.UNCHECKED), self._source
            if count == self._request.repeats == 1 and not self._request.admitted:
                kind |= Kind.ONCE
        kind |= (Kind.APART if is_apart else 0) | (Kind.ALONE if self._retried else 0)
        inputs = [self._request.inputs[index] for index in order]
        job = Job(
            request=protocol.request_frames(kind, program, inputs),
            order=crc32(self._source),
            count=count,
            is_apart=is_apart,
            taken=self._taken,
        )
        (self._scheduler.submit_alone if alone else self._scheduler.submit)(job)
        parts = await job.reply
        if parts is None:
            raise _EndedError(_LOST)
        about_program = [protocol.letter_of(part) in (Part.LOADED, Part.REASONS) for part in parts]
        pairs = list(zip(parts, about_program, strict=True))
        return [part for part, about in pairs if about], [part for part, about in pairs if not about]

    def _judge_time(self, call: CallResult) -> CallResult:
        """The call, as late if it took so long that it might be late another time."""
        if call.status in REPEATABLE and call.cpu_s > self._limits.wall_s * ADMITTED_SHARE:
            return replace(call, status=CallStatus.TIMEOUT, value=None, error=_SLOW)
        return call

    def _num_runs(self) -> int:
        repeats = self._request.repeats
        if repeats == 1:
            return 1
        suspected = self._loaded is None or bool(self._loaded.suspicion & ORDER)
        suspected = suspected or any(map(_states_sets, self._request.inputs))
        return repeats * protocol.SUSPECT_FACTOR if suspected else repeats

    def _order(self, number: int) -> list[int]:
        """Order of the calls in a repeat: backwards, then mixed, the same whenever this program is run."""
        order = list(range(len(self._request.inputs)))
        if number == 0:
            order.reverse()
        elif len(order) > 1:
            random.Random(crc32(self._source) + number).shuffle(order)
        return order


def _is_established(calls: Sequence[CallResult]) -> bool:
    return all(call.status in REPEATABLE for call in calls)


def _refusal(word: bytes) -> _EndedError:
    try:
        reasons = protocol.read_reasons(word)
    except protocol.ProtocolError as error:
        return _EndedError(protocol.invalid(error, 0.0))
    return _EndedError(CallResult(status=CallStatus.REJECTED, error=reasons[0]), reasons)


def _states_sets(text: str) -> bool:
    """Whether arguments hold a set, whose order may show in the result."""
    if "{" not in text and "set" not in text:
        return False
    try:
        return has_sets(values.parse_arguments(text))
    except values.PlainDataError:
        return False


def _agree(a: CallResult, b: CallResult) -> bool:
    """Whether two runs of one call say the same; values are compared as data, not as text."""
    if a.status is not b.status:
        return False
    if a.value is None or b.value is None:
        return a.error == b.error
    return a.value == b.value or values.equal(values.parse(a.value), values.parse(b.value))
