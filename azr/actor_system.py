"""The actors of a run, started together and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import ray

from azr.cluster.executor_actor import RemoteExecutor
from azr.cluster.gpu_turns import GpuTurns, take_turns
from azr.cluster.placement import Placement, place
from azr.cluster.weight_sync import PushReport, WeightSync
from azr.cluster.weight_transfers import decide_push
from azr.concurrency import Phase, task_group
from azr.config import Config
from azr.records import Stops
from azr.rollout.engine_group import EngineGroup, EnginePlacement
from azr.train.critic import CriticWorker
from azr.train.model_worker import ModelWorker
from azr.train.policy import PolicyWorker, ReferenceWorker
from azr.train.worker_group import WorkerGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSystem:
    """Everything that runs beside the driver."""

    placement: Placement
    engines: EngineGroup
    weights: WeightSync
    """Keeps the engines' weights those of the policy."""
    executor: RemoteExecutor
    policy: WorkerGroup
    critic: WorkerGroup | None
    reference: WorkerGroup | None
    turns: GpuTurns

    async def trainers_turn(self, phase: Phase) -> None:
        """Engines leave the GPUs to the trainers, who may change the policy from now on."""
        await self.turns.trainers_turn(phase)

    async def engines_turn(self, version: int, phase: Phase) -> PushReport:
        """Trainers leave the GPUs to the engines, which sample with the policy as it is now, as that version."""
        return await self.turns.engines_turn(version, phase)

    @classmethod
    async def start(cls, config: Config, stops: Stops, phase: Phase, from_step: int) -> Self:
        """Reserves resources of the Ray that runs and starts every actor the config calls for; ends Ray after an error.

        ``from_step``: the step that the run goes on from. Raises UserError for what a user can put right, TimeoutError
        with the name of what did not come up in time.
        """
        try:
            with phase("reserve resources"):
                placement = await place(config)
            decided = replace(config, train=replace(config.train, dtype=placement.dtype))
            decided = decide_push(decided, placement.device)
            return await cls._start_actors(decided, stops, placement, phase, from_step)
        except BaseException:
            ray.shutdown()
            raise

    @classmethod
    async def _start_actors(
        cls, config: Config, stops: Stops, placement: Placement, phase: Phase, from_step: int
    ) -> Self:
        shared = take_turns(config, placement.device)

        async def role(name: str, worker: type[ModelWorker]) -> WorkerGroup:
            options = [placement.options(bundle) for bundle in placement.trainers]
            with phase(f"start {name}"):
                return await WorkerGroup.start(name, worker, options, config, placement.device, shared)

        async with task_group() as starting:
            executor = starting.create_task(_start_executor(config, phase))
            policy = starting.create_task(role("policy", PolicyWorker))
            critic = starting.create_task(role("critic", CriticWorker)) if config.algorithm.needs_critic else None
            reference = None
            if config.has_reference:
                reference = starting.create_task(role("reference", ReferenceWorker))
            first = [task for task in (policy, critic, reference) if task is not None] if shared else []
            # vLLM measures how much of a GPU is free, and fails when that changes meanwhile.
            engines = starting.create_task(start_engines(config, stops, placement, phase, from_step, after=first))
        weights = WeightSync(policy.result(), engines.result().slots, config.timeout.train_s)
        engines.result().weights = weights
        return cls(
            placement=placement,
            engines=engines.result(),
            weights=weights,
            executor=executor.result(),
            policy=policy.result(),
            critic=critic.result() if critic else None,
            reference=reference.result() if reference else None,
            turns=GpuTurns(
                engines=engines.result(),
                weights=weights,
                policy=policy.result(),
                others=[other.result() for other in (critic, reference) if other],
                take_turns=shared,
                timeout_s=config.timeout.train_s,
            ),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSystem:
    """Engines that hold the model as it is on disk, and the executor: what proposing takes, without any trainer."""

    placement: Placement
    engines: EngineGroup
    executor: RemoteExecutor

    @classmethod
    async def start(cls, config: Config, stops: Stops, phase: Phase) -> Self:
        """As `ActorSystem.start`."""
        try:
            with phase("reserve resources"):
                placement = await place(config)
            decided = replace(config, train=replace(config.train, dtype=placement.dtype))
            async with task_group() as starting:
                engines = starting.create_task(start_engines(decided, stops, placement, phase))
                executor = starting.create_task(_start_executor(decided, phase))
            return cls(placement=placement, engines=engines.result(), executor=executor.result())
        except BaseException:
            ray.shutdown()
            raise

    async def stop(self) -> None:
        """Ends every actor, gives the resources back and leaves Ray."""
        try:
            self.executor.kill()
            await self.engines.shutdown()
        finally:
            self.placement.remove()
            ray.shutdown()


async def start_engines(
    config: Config,
    stops: Stops,
    placement: Placement,
    phase: Phase,
    from_step: int = 0,
    after: Iterable[Awaitable[WorkerGroup]] = (),
) -> EngineGroup:
    """The engines of a placement, begun when ``after`` are there; ``phase``: see `ActorSystem.start`."""
    places = [
        EnginePlacement(placement.options(bundles[0]), partial(placement.gpus, bundles))
        for bundles in placement.engines
    ]
    with ExitStack() as measured:

        async def begin() -> None:
            await asyncio.gather(*after)
            measured.enter_context(phase("start engines"))

        beginning = asyncio.create_task(begin())
        measured.callback(beginning.cancel)
        return await EngineGroup.start(config, stops, places, from_step, when=beginning)


async def _start_executor(config: Config, phase: Phase) -> RemoteExecutor:
    with phase("start executor"):
        seed = config.run.seed if config.run.deterministic else None
        return await RemoteExecutor.start(config.executor, config.timeout.generate_s, seed=seed)
