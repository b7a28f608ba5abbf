"""The executor pool's actor as its callers see it: one that dies is replaced, and every wait has a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable
from typing import Any, Self

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError

from azr.concurrency import as_coroutine
from azr.config import ExecutorConfig
from azr.executor.actor import ExecutorPool
from azr.executor.pool import ExecutorStats
from azr.records import CallResult, CallStatus, ExecutionRequest, ExecutionResult

MOST_ISSUES = 3
"""Times that one request is tried: it may lose two pools."""
MOST_DEATHS = 5
"""Of pools that answered nothing; a run without an executor would learn nothing."""
PING_S = 60.0
"""A pool that is late with an answer and does not even count within this time is dead."""
log = logging.getLogger(__name__)


class PoolLost(RuntimeError):
    """The pool's actor is dead or silent."""


class RemoteExecutor:
    """Make one with `start`, end it with `kill`."""

    def __init__(self, config: ExecutorConfig, timeout_s: float, deterministic: bool = False) -> None:
        """`timeout_s`: for every answer of the pool. `deterministic`: see `SandboxPool`."""
        self._config, self._timeout_s, self._deterministic = config, timeout_s, deterministic
        self._actor = self._make()
        self._replacing = asyncio.Lock()
        self._deaths = 0
        self._counted: Counter[str] = Counter()
        self.restarts = 0
        """Pools replaced so far because they had died."""
        self.walls = ""
        """One line on what stands around model-written code."""

    @classmethod
    async def start(cls, config: ExecutorConfig, timeout_s: float, deterministic: bool = False) -> Self:
        """Raises ValueError when no wall around model-written code holds on this machine."""
        executor = cls(config, timeout_s, deterministic)
        await executor._begin()
        return executor

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """What became of the request; every call of it is `lost` when pool after pool died over it.

        Raises TimeoutError when a living pool does not answer in time, and RuntimeError when pools die again and
        again.
        """
        for _ in range(MOST_ISSUES):
            actor = self._actor
            try:
                result = await self._answer(actor, actor.execute.remote(request), "run a program")
            except PoolLost as error:
                await self._replace(actor, error)
            else:
                self._deaths = 0
                return result
        lost = CallResult(status=CallStatus.LOST, error=f"the executor died {MOST_ISSUES} times while running this")
        return ExecutionResult(outputs=(lost,) * len(request.inputs))

    async def stats_delta(self) -> dict[str, float]:
        """What happened since the last time it was asked: requests, inputs, restarts, calls, calls by status.

        ``restarts`` are those of sandboxes. ``cache_hits`` of ``inputs`` calls needed no run; ``hit_rate`` is their
        share. What a pool counted between the last question and its death is unknown.
        """
        actor = self._actor
        try:
            total: ExecutorStats = await self._answer(actor, actor.stats.remote(), "report its counters")
        except PoolLost as error:
            await self._replace(actor, error)
            return await self.stats_delta()
        counts = Counter({"requests": total.requests, "inputs": total.inputs})
        counts.update({"cache_hits": total.cache_hits, "restarts": total.restarts})
        counts["calls"] = sum(total.calls.values())
        counts.update({str(status): number for status, number in total.calls.items()})
        new = {name: number - self._counted[name] for name, number in counts.items()}
        self._counted = counts
        return new | {"hit_rate": new["cache_hits"] / max(1, new["inputs"])}

    def kill(self) -> None:
        """Ends the pool at once; its sandboxes end by themselves when nobody is left to read from."""
        ray.kill(self._actor)

    def _make(self) -> ActorHandle:
        make: Any = ExecutorPool  # Ray's decorator hides `remote` from type checkers
        return make.remote(self._config, deterministic=self._deterministic)

    async def _begin(self) -> None:
        self.walls = await self._within(self._actor.start.remote(), self._timeout_s, "start its sandboxes")

    async def _replace(self, dead: ActorHandle, cause: PoolLost) -> None:
        """Start another pool in the place of a dead one, unless that was done already."""
        async with self._replacing:
            while self._actor is dead:
                self._deaths += 1
                if self._deaths > MOST_DEATHS:
                    raise RuntimeError(f"the executor pool died {MOST_DEATHS} times in a row; at last {cause}")
                log.warning("%s; another one is started in its place", cause)
                ray.kill(dead)
                self._actor, self._counted = self._make(), Counter()
                try:
                    await self._begin()
                    self.restarts += 1
                except RayActorError:
                    dead, cause = self._actor, PoolLost("the executor pool died while it started its sandboxes")

    async def _answer(self, actor: ActorHandle, call: Awaitable[Any], to: str) -> Any:
        try:
            return await self._within(call, self._timeout_s, to)
        except RayActorError as error:
            raise PoolLost(f"the executor pool died when it was to {to}") from error
        except TimeoutError:
            if await _answers(actor):
                raise
            raise PoolLost(f"the executor pool was silent for {self._timeout_s:g} s when it was to {to}") from None

    async def _within(self, call: Awaitable[Any], timeout_s: float, to: str) -> Any:
        try:
            return await asyncio.wait_for(as_coroutine(call), timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"the driver waited {timeout_s:g} s for the executor pool to {to}") from error


async def _answers(actor: ActorHandle) -> bool:
    try:
        await asyncio.wait_for(as_coroutine(actor.stats.remote()), PING_S)
    except (RayError, TimeoutError):
        return False
    return True
