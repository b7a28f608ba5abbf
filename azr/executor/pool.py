"""The sandbox pool: runs model-written programs in zygotes and says what each call did.

The pool is the trusted side. It never runs or evaluates a program's text and never sends an expected value
anywhere: callers compare what comes back. Every request gets exactly one result, whatever happens below.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from azr import values
from azr.config import ExecutorConfig
from azr.executor import protocol, walls
from azr.executor.cache import ResultCache
from azr.executor.connection import WorkerLostError
from azr.executor.slots import Slot, Slots
from azr.records import CallResult, CallStatus, ExecutionRequest, ExecutionResult

_WINDOW = 2
_REQUEST_WALLS = 8
_CACHE_BYTES = 64 * 2**20
_ATTEMPTS = 2
_RETRY_S = 0.2
_REPEATABLE = (CallStatus.OK, CallStatus.RAISED)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStats:
    """Counts since the pool was made."""

    requests: int
    cache_hits: int
    restarts: int
    """Zygotes replaced after they were lost."""
    calls: dict[str, int] = field(default_factory=dict)
    """Calls actually run or refused, by status."""


class SandboxPool:
    """``async with SandboxPool(config) as pool: await pool.execute(request)``."""

    def __init__(self, config: ExecutorConfig) -> None:
        """Raises ValueError for settings that cannot hold. Nothing is started yet."""
        if not 0 < config.output_bytes <= values.MAX_BYTES:
            raise ValueError(f"executor.output_bytes must be between 1 and {values.MAX_BYTES}.")
        if config.workers < 1 or config.repeats < 1 or config.wall_s <= 0:
            raise ValueError("executor.workers and executor.repeats must be at least 1 and executor.wall_s positive.")
        self._config = config
        self._limits = protocol.Limits(
            wall_s=config.wall_s,
            request_s=_REQUEST_WALLS * config.wall_s,
            memory_mb=config.memory_mb,
            output_bytes=config.output_bytes,
            banned_modules=tuple(config.banned_modules),
        )
        self._slots: Slots | None = None
        self.walls = ""
        """One line on what stands around model-written code, and why nothing stronger; known once started."""
        self._starting = asyncio.Lock()
        self._cache = ResultCache(_CACHE_BYTES)
        self._requests = 0
        self._calls: Counter[str] = Counter()
        self._closed = False

    async def __aenter__(self) -> SandboxPool:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Choose the walls and start the zygotes; ``execute`` does so by itself.

        Raises ValueError when the walls do not hold on this machine.
        """
        assert not self._closed, "the pool is closed"
        async with self._starting:
            if self._slots is not None:
                return
            chosen = await asyncio.to_thread(walls.choose, self._config.backend)
            self.walls = chosen.reason
            # Repeats need interpreters with different hash seeds, even when few programs run at once.
            count = max(self._config.workers, self._config.repeats)
            slots = [Slot(hash_seed=1 + n, prefix=chosen.prefix, limits=self._limits) for n in range(count)]
            started = await asyncio.gather(*(slot.connect() for slot in slots), return_exceptions=True)
            problem = next((outcome for outcome in started if isinstance(outcome, BaseException)), None)
            if problem is not None:
                await _close(slots)
                raise problem
            self._slots = Slots(slots, _WINDOW)

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """What became of every call of the request. Raises ValueError only for requests no program could meet."""
        self._check(request)
        await self.start()
        self._requests += 1
        return await self._cache.get(request, lambda: self._run(request))

    async def execute_many(self, requests: Iterable[ExecutionRequest]) -> list[ExecutionResult]:
        """Results in the order of the requests, which run side by side."""
        return list(await asyncio.gather(*map(self.execute, requests)))

    def stats(self) -> ExecutorStats:
        slots = self._slots.slots if self._slots else []
        return ExecutorStats(
            requests=self._requests,
            cache_hits=self._cache.hits,
            restarts=sum(max(0, slot.starts - 1) for slot in slots),
            calls=dict(self._calls),
        )

    async def close(self) -> None:
        """Finish what runs, then end every process. Safe to call again."""
        await self._cache.drain()
        self._closed = True
        if self._slots is not None:
            await _close(self._slots.slots)

    def _check(self, request: ExecutionRequest) -> None:
        most = max(self._config.workers, self._config.repeats)
        if not 1 <= request.repeats <= most:
            raise ValueError(f"A request may have 1 to {most} repeats, not {request.repeats}: raise executor.repeats.")
        if not 1 <= len(request.inputs) <= protocol.MAX_INPUTS:
            raise ValueError(f"A request must have 1 to {protocol.MAX_INPUTS} inputs, not {len(request.inputs)}.")

    def _too_long(self, request: ExecutionRequest) -> str | None:
        if _bytes(request.program) > self._config.source_bytes:
            return f"the program is longer than {self._config.source_bytes} bytes"
        if sum(map(_bytes, request.inputs)) > protocol.MAX_INPUT_BYTES:
            return f"the inputs are longer than {protocol.MAX_INPUT_BYTES} bytes"
        return None

    async def _run(self, request: ExecutionRequest) -> ExecutionResult:
        refusal = self._too_long(request)
        if refusal is not None:
            result = ExecutionResult(outputs=(_same(CallStatus.REJECTED, refusal),) * len(request.inputs))
        else:
            result = await self._run_repeats(request)
        self._calls.update(output.status.value for output in result.outputs)
        return result

    async def _run_repeats(self, request: ExecutionRequest) -> ExecutionResult:
        """Repeats run one after another, so that a program that fails at once costs one run."""
        used: list[Slot] = []
        first = await self._run_once(request, used)
        deterministic = True
        for _ in range(1, request.repeats):
            if not deterministic or not all(output.status in _REPEATABLE for output in first.outputs):
                break
            again = await self._run_once(request, used)
            if again.lost:
                return again
            deterministic = all(map(_agree, first.outputs, again.outputs))
        established = request.repeats > 1 and all(output.status in _REPEATABLE for output in first.outputs)
        return ExecutionResult(
            outputs=first.outputs, screen=first.screen, deterministic=deterministic if established else None
        )

    async def _run_once(self, request: ExecutionRequest, used: list[Slot]) -> ExecutionResult:
        """One run in a slot that is not in ``used``; the slot that ran it is added there."""
        assert self._slots is not None
        message = {"program": request.program, "inputs": list(request.inputs), "screen": request.screen}
        for attempt in range(_ATTEMPTS):
            if attempt:
                # What took one sandbox often takes its neighbours; give their ends time to be noticed.
                await asyncio.sleep(_RETRY_S)
            async with self._slots.whole(used) if attempt else self._slots.place(used) as slot:
                try:
                    connection = await slot.connect()
                    reply = await connection.call(message, _WINDOW * self._limits.request_s)
                    outputs, screen = protocol.read_reply(reply, len(request.inputs), self._limits.output_bytes)
                except (WorkerLostError, protocol.ProtocolError) as error:
                    _log.warning("a sandbox was lost: %s", error)
                    continue
                used.append(slot)
                return ExecutionResult(outputs=outputs, screen=screen)
        lost = _same(CallStatus.LOST, "the executor lost its sandbox twice while running this")
        return ExecutionResult(outputs=(lost,) * len(request.inputs))


async def _close(slots: list[Slot]) -> None:
    await asyncio.gather(*(slot.connection.close() for slot in slots if slot.connection is not None))


def _same(status: CallStatus, error: str) -> CallResult:
    return CallResult(status=status, error=error)


def _agree(a: CallResult, b: CallResult) -> bool:
    """Whether two runs of one call say the same; values are compared as data, not as text."""
    if a.status is not b.status:
        return False
    if a.value is None or b.value is None:
        return a.error == b.error
    return a.value == b.value or values.equal(values.parse(a.value), values.parse(b.value))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
