"""The sandbox pool as a Ray actor, so that every process of a run shares one pool and one cache."""

from __future__ import annotations

from collections.abc import Sequence

import ray

from azr.config import ExecutorConfig
from azr.executor.pool import ExecutorStats, SandboxPool
from azr.records import ExecutionRequest, ExecutionResult


@ray.remote(num_cpus=0, max_concurrency=4096)
class ExecutorPool:
    """``ExecutorPool.remote(config.executor)``. The actor never forks: it starts fresh interpreters.

    When the actor is killed its sandboxes end by themselves, because their input ends.
    """

    def __init__(self, config: ExecutorConfig, *, deterministic: bool = False) -> None:
        self._pool = SandboxPool(config, deterministic=deterministic)

    async def start(self) -> str:
        """Start the sandboxes and say which walls stand around them. Raises ValueError when no wall holds."""
        await self._pool.start()
        return self._pool.walls

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        return await self._pool.execute(request)

    async def execute_many(self, requests: Sequence[ExecutionRequest]) -> list[ExecutionResult]:
        return await self._pool.execute_many(requests)

    async def stats(self) -> ExecutorStats:
        return self._pool.stats()

    async def close(self) -> None:
        """Finish what runs and end every sandbox process."""
        await self._pool.close()
