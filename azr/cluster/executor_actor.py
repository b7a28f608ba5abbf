"""The sandbox pool as a Ray actor: every process of a run shares one pool and one cache, and a dead one is replaced."""

from __future__ import annotations

from collections import Counter
from typing import Any, Self

import ray
from ray.actor import ActorHandle

from azr.cluster.shared_calls import TakesSharedCalls
from azr.cluster.supervisor import ActorLost, SupervisedActor
from azr.config import ExecutorConfig
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.executor.pool import ExecutorStats, SandboxPool

MAX_ATTEMPTS = 3
"""Times that one request is tried: it may lose two pools."""
MAX_RESTARTS = 5
"""Of pools that answered nothing; a run without an executor would learn nothing."""


@ray.remote(num_cpus=0, max_concurrency=4096)
class ExecutorPool(TakesSharedCalls):
    """``ExecutorPool.remote(config.executor)``. The actor never forks: it starts fresh interpreters.

    When the actor is killed its sandboxes end by themselves, because their input ends.
    """

    linger_s = 0.002
    """Most programs take a few milliseconds."""

    def __init__(self, config: ExecutorConfig, **options: Any) -> None:
        """``options``: see `SandboxPool`."""
        self._pool = SandboxPool(config, **options)

    async def start(self) -> str:
        """Start the sandboxes and say what isolates them. Raises UserError when none can be had here."""
        await self._pool.start()
        return self._pool.isolation

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        return await self._pool.execute(request)

    async def stats(self) -> ExecutorStats:
        return self._pool.stats()

    async def ping(self) -> bool:
        """Answers while the process lives."""
        return True


class RemoteExecutor:
    """The executor pool as its callers see it. Make one with `start`, end it with `kill`."""

    def __init__(self, config: ExecutorConfig, timeout_s: float, **options: Any) -> None:
        """`timeout_s`: for every answer of the pool. `options`, such as `seed`: see `SandboxPool`."""
        self._config, self._timeout_s, self._options = config, timeout_s, options
        self._pool = SupervisedActor(
            "the executor pool", self._create_actor, start_timeout_s=timeout_s, max_restarts=MAX_RESTARTS
        )
        self._counted: tuple[ActorHandle | None, Counter[str]] = None, Counter()
        """The pool that was last asked for its counters, and its answer."""

    @classmethod
    async def start(cls, config: ExecutorConfig, timeout_s: float, **options: Any) -> Self:
        """As the constructor. Raises UserError when no isolation of model-written code works on this machine."""
        executor = cls(config, timeout_s, **options)
        await executor._pool.start()
        return executor

    async def _create_actor(self) -> ActorHandle:
        pool: Any = ExecutorPool  # Ray's decorator hides `remote` from type checkers
        return pool.remote(self._config, **self._options)

    @property
    def isolation(self) -> str:
        """One line on what isolates model-written code."""
        return self._pool.start_report

    @property
    def restarts(self) -> int:
        """Pools replaced so far because they had died."""
        return self._pool.restarts

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """What became of the request; every call of it is `lost` when pool after pool died over it.

        Raises TimeoutError when a living pool does not answer in time, and RuntimeError when pools die again and
        again.
        """
        for _ in range(MAX_ATTEMPTS):
            try:
                result: ExecutionResult = await self._pool.call_together(
                    "execute", request, timeout_s=self._timeout_s, to="run a program"
                )
            except ActorLost as lost:
                await self._pool.restart(lost)
            else:
                self._pool.succeeded()
                return result
        call = CallResult(status=CallStatus.LOST, error=f"the executor died {MAX_ATTEMPTS} times while running this")
        return ExecutionResult(outputs=(call,) * len(request.inputs))

    async def stats_delta(self) -> dict[str, float]:
        """What happened since the last time it was asked: requests, inputs, restarts, calls, calls by status.

        ``restarts`` are those of sandboxes. ``cache_hits`` of ``inputs`` calls needed no run; ``hit_rate`` is their
        share. What a pool counted between the last question and its death is unknown.
        """
        actor = self._pool.actor
        try:
            total: ExecutorStats = await self._pool.call("stats", timeout_s=self._timeout_s, to="report its counters")
        except ActorLost as lost:
            await self._pool.restart(lost)
            return await self.stats_delta()
        counts = Counter({"requests": total.requests, "inputs": total.inputs})
        counts.update({"cache_hits": total.cache_hits, "restarts": total.restarts})
        counts["calls"] = sum(total.calls.values())
        counts.update({str(status): count for status, count in total.calls.items()})
        counted_actor, before = self._counted
        if counted_actor is not actor:
            before = Counter()
        self._counted = actor, counts
        delta = {name: count - before[name] for name, count in counts.items()}
        return delta | {"hit_rate": delta["cache_hits"] / max(1, delta["inputs"])}

    def kill(self) -> None:
        """Ends the pool at once; its sandboxes end by themselves when they have no one left to read from."""
        ray.kill(self._pool.actor)
