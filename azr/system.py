"""The actors of a run, started together and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import ray

from azr.answering import Generate
from azr.cluster.executor_actor import RemoteExecutor
from azr.cluster.gpu_turns import GpuTurns, leave_gpu, shares_gpus
from azr.cluster.placement import Placement, place, start_ray
from azr.cluster.push_choice import decide_push
from azr.cluster.weight_sync import WeightSync
from azr.concurrency import Phase, task_group
from azr.config import Config
from azr.evaluation.standalone import Evaluation
from azr.records import Stops
from azr.rollout.engine_group import EngineGroup, EnginePlacement
from azr.train.model_worker import ModelWorker
from azr.train.policy import CriticWorker, PolicyWorker
from azr.train.worker_group import WorkerGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """All processes of a run but the driver. Make one with `start`, end it with `stop`."""

    placement: Placement
    engines: EngineGroup
    executor: RemoteExecutor
    policy: WorkerGroup
    critic: WorkerGroup | None
    reference: WorkerGroup | None
    turns: GpuTurns
    """Hands the GPUs, and the policy's weights, to the engines and back."""

    @property
    def trained(self) -> list[WorkerGroup]:
        """Models with an optimizer."""
        return [self.policy, self.critic] if self.critic is not None else [self.policy]

    @classmethod
    async def start(cls, config: Config, stops: Stops, phase: Phase, from_step: int = 0) -> Self:
        """Start Ray or join its cluster, reserve resources and start every actor that the config needs. End Ray after
        an error.

        `from_step`: step of the checkpoint that the run continues from. Raises UserError for what a user can put right,
        and TimeoutError with the name of an actor that did not start in time.
        """
        with phase("start Ray"):
            await start_ray(config.cluster, config.num_gpus, config.timeout.start_s)
        try:
            with phase("reserve resources"):
                placement = await place(config)
            config = replace(config, train=replace(config.train, dtype=placement.dtype))
            shared = shares_gpus(config, placement.device)
            config = decide_push(config, placement.device)
            workers: dict[str, type[ModelWorker]] = {"policy": PolicyWorker}
            if config.algorithm.needs_critic:
                workers["critic"] = CriticWorker
            if config.has_reference:
                workers["reference"] = PolicyWorker
            executor = RemoteExecutor(
                config.executor, config.timeout.generate_s, seed=config.run.seed if config.run.deterministic else None
            )

            gpus = asyncio.Lock() if shared else None

            async def start_model(name: str, worker: type[ModelWorker]) -> WorkerGroup:
                options = [placement.options(bundle) for bundle in placement.trainers]
                with phase(f"start {name}"):
                    return await WorkerGroup.start(name, worker, options, config, placement.device, gpus)

            async def start_executor() -> None:
                with phase("start executor"):
                    await executor.start()

            async with task_group() as starting:
                starting.create_task(start_executor())
                models = {name: starting.create_task(start_model(name, worker)) for name, worker in workers.items()}
                # vLLM measures how much of a GPU is free, and fails when that changes meanwhile.
                first = models.values() if shared else ()
                engines = starting.create_task(start_engines(config, stops, placement, phase, from_step, after=first))
        except BaseException:
            ray.shutdown()
            raise
        started = {name: model.result() for name, model in models.items()}
        policy = started.pop("policy")
        # Weights go from the policy to the engines, and GPUs are handed over.
        weights = engines.result().weights = WeightSync(policy, engines.result().slots, config.timeout.train_s)
        turns = GpuTurns(
            engines=engines.result(),
            weights=weights,
            policy=policy,
            others=list(started.values()),
            shares_gpus=shared,
            timeout_s=config.timeout.train_s,
        )
        return cls(
            placement=placement,
            engines=engines.result(),
            executor=executor,
            policy=policy,
            critic=started.get("critic"),
            reference=started.get("reference"),
            turns=turns,
        )

    async def load(self, folder: Path, timeout_s: float) -> None:
        """Load the trained models' state from a checkpoint, while the engines sleep.

        Of models that visit the GPU, one is there at a time. The policy comes last and stays: its weights are pushed
        next.
        """
        for group in reversed(self.trained):
            await group.call("load_checkpoint", str(folder.absolute()), timeout_s=timeout_s, to="load their state")
            if group.visits_gpu and group is not self.policy:
                await leave_gpu(group, timeout_s)

    async def stop(self) -> None:
        """End every actor, give the resources back and leave Ray."""
        try:
            self.executor.kill()
            ending = [model.shutdown() for model in (*self.trained, self.reference) if model is not None]
            await asyncio.gather(self.engines.shutdown(), *ending, return_exceptions=True)
        finally:
            self.placement.remove()
            ray.shutdown()


@asynccontextmanager
async def serve_by_ray(evaluation: Evaluation) -> AsyncIterator[Generate]:
    """Serve an evaluation with `rollout.engines` engines, each an actor of Ray; they end with the block. Raises
    UserError when there are not enough GPUs, or the cluster does not answer."""
    config = evaluation.engine_config
    # Without trainers it reserves no more than its engines take.
    alone, shared = replace(config.train, data_parallel=1), replace(config.cluster, colocate=True)
    config = replace(config, train=alone, cluster=shared)
    await start_ray(config.cluster, config.num_gpus, config.timeout.start_s)
    async with AsyncExitStack() as started:
        started.callback(ray.shutdown)
        placement = await place(config)
        started.callback(placement.remove)
        engines = await start_engines(config, evaluation.model.codec.stops, placement, lambda name: nullcontext())
        started.push_async_callback(engines.shutdown)
        yield engines.generate


async def start_engines(
    config: Config,
    stops: Stops,
    placement: Placement,
    phase: Phase,
    from_step: int = 0,
    after: Iterable[Awaitable[WorkerGroup]] = (),
) -> EngineGroup:
    """Start the engines of a placement: their processes at once, their models when `after` is done."""
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
        engines = EngineGroup(config, stops, places, from_step)
        await engines.start(beginning)
        return engines
