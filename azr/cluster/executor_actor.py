"""The sandbox pool as a Ray actor: every process of a run shares one pool and one cache, and a dead one is replaced."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from azr.cluster.supervisor import ActorLost, SupervisedActor, TakesSharedCalls
from azr.config import ExecutorConfig
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.executor.pool import SandboxPool

MAX_ATTEMPTS = 3
"""Attempts per request: two pools may die over it."""
MAX_RESTARTS = 5
"""Restarts of the pool in a row without an answer. A run without an executor would learn nothing."""


@ray.remote(num_cpus=0, max_concurrency=4096)
class ExecutorPool(TakesSharedCalls):
    """``ExecutorPool.remote(config.executor)``. The actor never forks: it starts fresh interpreters.

    If the actor is killed, its sandboxes end by themselves, because their input ends.
    """

    linger_s = 0.002
    """Most programs take a few milliseconds."""

    def __init__(self, config: ExecutorConfig, **options: Any) -> None:
        """``options``: see `SandboxPool`."""
        super().__init__()
        self._pool = SandboxPool(config, **options)
        self._counted = Counter[str]()

    async def start(self) -> str:
        """Start the sandboxes and say what isolates them. Raises UserError when none can be had here."""
        await self._pool.start()
        return self._pool.isolation

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        return await self._pool.execute(request)

    async def take_stats(self) -> dict[str, int]:
        """Return the pool's counts since the last call."""
        counts, before = Counter(self._pool.stats()), self._counted
        self._counted = counts
        return {name: count - before[name] for name, count in counts.items()}

    async def ping(self) -> bool:
        return True


class RemoteExecutor(SupervisedActor):
    """Client of the executor pool. Call `start` first and `kill` last.

    `start` raises UserError if no isolation backend works here. `start_report` says what isolates model-written code.
    """

    def __init__(self, config: ExecutorConfig, timeout_s: float, **options: Any) -> None:
        """`timeout_s`: deadline of every call. `options`, such as `seed`: see `SandboxPool`."""
        super().__init__("the executor pool", self._create_actor, start_timeout_s=timeout_s, max_restarts=MAX_RESTARTS)
        self._config, self._timeout_s, self._options = config, timeout_s, options

    async def _create_actor(self) -> ActorHandle:
        pool: Any = ExecutorPool  # Ray's decorator hides `remote` from type checkers
        # Where the run was started and checked; on another node there may be no isolation.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        return pool.options(scheduling_strategy=here).remote(self._config, **self._options)

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """Run the request and return its result; all of its calls are `lost` if `MAX_ATTEMPTS` pools died over it.
        Raises TimeoutError if a living pool does not answer in time, and RuntimeError if pools keep dying."""
        for _ in range(MAX_ATTEMPTS):
            try:
                result: ExecutionResult = await self.call_together(
                    "execute", request, timeout_s=self._timeout_s, to="run a program"
                )
            except ActorLost as lost:
                await self.restart(lost)
            else:
                self.succeeded()
                return result
        call = CallResult(status=CallStatus.LOST, error=f"the executor died {MAX_ATTEMPTS} times while running this")
        return ExecutionResult(outputs=(call,) * len(request.inputs))

    async def stats_delta(self) -> dict[str, float]:
        """Return the counts since the last call: requests, inputs, restarts, calls, calls by status.

        ``restarts`` counts sandboxes. ``cache_hits`` of ``inputs`` calls needed no run; ``hit_rate`` is their share.
        The counts of a pool that died after the last call are missing.
        """
        try:
            counts = await self.call("take_stats", timeout_s=self._timeout_s, to="report its counters")
        except ActorLost as lost:
            await self.restart(lost)
            return await self.stats_delta()
        return {**counts, "hit_rate": counts["cache_hits"] / max(1, counts["inputs"])}

    def kill(self) -> None:
        """Kill the pool; its sandboxes end by themselves when their input ends."""
        ray.kill(self.actor)
