"""The actors of a run, started together and ended together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Self

import ray
from ray.actor import ActorHandle

from azr.cluster.placement import Placement, place, start_ray
from azr.concurrency import Phase, awaited, task_group
from azr.config import Config
from azr.executor.actor import ExecutorPool
from azr.executor.pool import ExecutorStats
from azr.records import ExecutionRequest, ExecutionResult
from azr.rollout.group import EngineGroup
from azr.train.critic import CriticWorker
from azr.train.group import RoleGroup
from azr.train.policy import PolicyWorker
from azr.train.reference import ReferenceWorker
from azr.train.worker import RoleWorker


class RemoteExecutor:
    """The executor pool as its callers see it."""

    def __init__(self, actor: ActorHandle, timeout_s: float) -> None:
        self._actor, self._timeout_s = actor, timeout_s
        self._counted: Counter[str] = Counter()
        self.walls = ""
        """One line on what stands around model-written code."""

    @classmethod
    async def start(cls, config: Config) -> Self:
        """Raises ValueError when no wall around model-written code holds on this machine."""
        make: Any = ExecutorPool  # Ray's decorator hides `remote` from type checkers
        executor = cls(make.remote(config.executor), config.rollout.generate_timeout_s)
        executor.walls = await executor._within(executor._actor.start.remote(), "start its sandboxes")
        return executor

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """Raises TimeoutError when the pool does not answer in time."""
        return await self._within(self._actor.execute.remote(request), "run a program")

    async def new_counts(self) -> dict[str, float]:
        """What happened since the last time it was asked: requests, inputs, restarts, calls, calls by status.

        ``cache_hits`` of ``inputs`` calls needed no run; ``hit_rate`` is their share.
        """
        total: ExecutorStats = await self._within(self._actor.stats.remote(), "report its counters")
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

    async def _within(self, call: Awaitable[Any], to: str) -> Any:
        try:
            return await asyncio.wait_for(awaited(call), self._timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"the driver waited {self._timeout_s:g} s for the executor pool to {to}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Everything that runs beside the driver."""

    placement: Placement
    engines: EngineGroup
    executor: RemoteExecutor
    policy: RoleGroup
    critic: RoleGroup | None
    reference: RoleGroup | None

    @classmethod
    async def start(cls, config: Config, phase: Phase) -> Self:
        """Starts Ray if need be, reserves resources and starts every actor the config calls for.

        Raises ValueError for what a user can mend, TimeoutError with the name of whoever did not come up in time.
        """
        with phase("start Ray"):
            start_ray(config.cluster)
        try:
            with phase("reserve resources"):
                placement = await place(config)
            return await cls._start_actors(config, placement, phase)
        except BaseException:
            ray.shutdown()
            raise

    @classmethod
    async def _start_actors(cls, config: Config, placement: Placement, phase: Phase) -> Self:
        async def role(name: str, worker: type[RoleWorker]) -> RoleGroup:
            options = [placement.options(rank) for rank in range(config.train.data_parallel)]
            with phase(f"start {name}"):
                return await RoleGroup.start(name, worker, options, config, placement.device)

        async def rollout_engines() -> EngineGroup:
            width = config.rollout.tensor_parallel
            with phase("start engines"):
                return await EngineGroup.start(
                    config, [placement.options(number * width) for number in range(config.rollout.engines)]
                )

        async def executor_pool() -> RemoteExecutor:
            with phase("start executor"):
                return await RemoteExecutor.start(config)

        async with task_group() as starting:
            engines = starting.create_task(rollout_engines())
            executor = starting.create_task(executor_pool())
            policy = starting.create_task(role("policy", PolicyWorker))
            critic = starting.create_task(role("critic", CriticWorker)) if config.algorithm.needs_critic else None
            reference = None
            if config.algorithm.needs_reference:
                reference = starting.create_task(role("reference", ReferenceWorker))
        return cls(
            placement=placement,
            engines=engines.result(),
            executor=executor.result(),
            policy=policy.result(),
            critic=critic.result() if critic else None,
            reference=reference.result() if reference else None,
        )

    async def stop(self) -> None:
        """Ends every actor, gives the resources back and leaves Ray."""
        roles = [role for role in (self.policy, self.critic, self.reference) if role is not None]
        try:
            self.executor.kill()
            await asyncio.gather(self.engines.shutdown(), *(role.shutdown() for role in roles), return_exceptions=True)
        finally:
            self.placement.remove()
            ray.shutdown()
