"""The runs of one request: how often a program runs, in which order its calls, and what its runs agree on.

The first run says what is suspect about the program. If that one ended well, the others follow side by side in other
interpreters, each with its calls in another order. One run is never compared with itself, so what depends on hashes,
addresses, clocks or chance differs, with the probabilities that docs/executor.md states.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
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


class Runs:
    """Submits the runs of a request one after another as their results ask for it; ``start`` it once."""

    def __init__(
        self,
        request: ExecutionRequest,
        limits: Limits,
        scheduler: Scheduler,
        codes: CodeCache,
        on_end: Callable[[Sequence[Outcome]], None],
    ) -> None:
        """``on_end`` is called once, with an outcome for each input."""
        self._request, self._limits, self._scheduler, self._codes = request, limits, scheduler, codes
        self._on_end = on_end
        self._loaded = codes.get(request.program, request.static_check)
        self._source = request.program.encode("utf-8", "surrogatepass")
        self._taken: set = set()
        self._calls: tuple[CallResult, ...] = ()
        self._agreed = [True] * len(request.inputs)
        self._waiting = 0
        """Runs that have not ended."""
        self._retried = False
        """Time ran out, perhaps because the machine is busy: all is done again, by the CPU clock."""
        self._ended = False

    def start(self) -> None:
        self._submit(range(len(self._request.inputs)), self._took_first, alone=self._retried)

    def _submit(self, order: Sequence[int], take: Callable[[list[CallResult]], None], *, alone: bool = False) -> None:
        """Run all calls, in this order; ``take`` gets their results in the request's own."""
        count = len(order)
        is_apart = count > 1 and self._loaded is not None and bool(self._loaded.suspicion & STATE)
        if self._loaded is not None and self._loaded.code:
            kind, program = Kind.CODE, self._loaded.code
        else:
            kind, program = Kind.SOURCE | (0 if self._request.static_check else Kind.UNCHECKED), self._source
            if count == self._request.repeats == 1 and not self._request.admitted:
                kind |= Kind.ONCE
        kind |= (Kind.APART if is_apart else 0) | (Kind.ALONE if self._retried else 0)

        def is_last(parts: Sequence[bytes]) -> bool:
            said = protocol.letter_of(parts[-1])
            if said in (Part.LOADED, Part.REASONS):
                return protocol.ends_reply(parts[-1], count, is_apart)
            if len(parts) < count:
                return False
            return sum(protocol.letter_of(part) != Part.LOADED for part in parts) == count

        def on_end(parts: list[bytes] | None) -> None:
            if self._ended:
                return
            if parts is None:
                self._finish([Outcome(_LOST, None)] * count)
                return
            self._took(parts, order, take)

        inputs = [self._request.inputs[index] for index in order]
        job = Job(
            request=protocol.request_frames(kind, program, inputs),
            order=crc32(self._source),
            is_last=is_last,
            on_end=on_end,
            taken=self._taken,
        )
        if alone:
            self._scheduler.submit_alone(job)
        else:
            self._scheduler.submit(job)

    def _took(self, parts: list[bytes], order: Sequence[int], take: Callable[[list[CallResult]], None]) -> None:
        words = [part for part in parts if protocol.letter_of(part) in (Part.LOADED, Part.REASONS)]
        calls = [part for part in parts if protocol.letter_of(part) not in (Part.LOADED, Part.REASONS)]
        for word in words:
            if protocol.letter_of(word) == Part.REASONS:
                self._refused(word)
                return
            if self._loaded is None:
                self._loaded = LoadedProgram(*protocol.read_loaded(word))
                self._codes.put(self._request.program, self._request.static_check, self._loaded)
        is_suspect = self._loaded is not None and self._loaded.suspicion and self._loaded.code
        is_task = self._request.admitted and self._request.static_check
        if len(calls) < len(order) or (words and is_suspect and is_task):
            # It was only loaded, for its calls must not share a process, or ran otherwise than when it was admitted.
            self._taken.clear()
            self._submit(order, take)
            return
        in_place = [b""] * len(order)
        for index, part in zip(order, calls, strict=True):
            in_place[index] = part
        take(list(protocol.read_calls(in_place, self._limits, self._calls)))

    def _refused(self, word: bytes) -> None:
        try:
            reasons = protocol.read_reasons(word)
        except protocol.ProtocolError as error:
            self._finish([Outcome(protocol.invalid(error, 0.0), None)] * len(self._request.inputs))
            return
        call = CallResult(status=CallStatus.REJECTED, error=reasons[0])
        self._finish([Outcome(call, None, reasons)] * len(self._request.inputs))

    def _took_first(self, calls: list[CallResult]) -> None:
        if self._request.repeats > 1:
            calls = [self._judge_time(call) for call in calls]
        self._calls = tuple(calls)
        if self._retries():
            return
        further = self._num_runs() - 1
        if further == 0 or not self._established:
            self._end()
            return
        self._waiting = further
        for number in range(further):
            self._submit(self._order(number), self._took_repeat)

    def _took_repeat(self, calls: list[CallResult]) -> None:
        self._waiting -= 1
        calls = [self._judge_time(call) for call in calls]
        # A repeat that ran out of time is no contradiction, for a busy machine may be to blame: the call is late.
        late = [call.status is CallStatus.TIMEOUT for call in calls]
        for index, (first, call) in enumerate(zip(self._calls, calls, strict=True)):
            self._agreed[index] &= late[index] or first.status is CallStatus.TIMEOUT or _agree(first, call)
        self._calls = tuple(call if out else first for first, call, out in zip(self._calls, calls, late, strict=True))
        if not all(self._agreed) or (self._waiting == 0 and not self._retries()):
            self._end()

    def _retries(self) -> bool:
        """Start anew, once and alone, if time ran out for a task or a proposal; return whether it did."""
        is_late = any(call.status is CallStatus.TIMEOUT for call in self._calls)
        if self._retried or not is_late or not (self._request.admitted or self._request.repeats > 1):
            return False
        self._retried = True
        self._taken.clear()
        self._agreed = [True] * len(self._agreed)
        self.start()
        return True

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

    def _end(self) -> None:
        established, has_company = self._request.repeats > 1 and self._established, len(self._calls) > 1
        self._finish(
            [
                Outcome(
                    call,
                    agreed if established else None,
                    caused_by_other_calls=call == protocol.TOO_MUCH or (has_company and not agreed),
                )
                for call, agreed in zip(self._calls, self._agreed, strict=True)
            ]
        )

    def _finish(self, outcomes: Sequence[Outcome]) -> None:
        self._ended = True
        self._on_end(outcomes)

    @property
    def _established(self) -> bool:
        return all(call.status in REPEATABLE for call in self._calls)


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
