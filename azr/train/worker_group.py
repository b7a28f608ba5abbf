"""A model role addressed as one object: its ranks are started, called and ended together, all with deadlines.

A rank is not replaced when it dies: its peers cannot go on without it, so the runtime starts everything again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import ray
from ray.actor import ActorHandle
from ray.exceptions import OutOfMemoryError

from azr.cluster.gpu_turns import leave_gpu
from azr.cluster.supervisor import DEATHS, SENTENCES, kill_and_wait, root_cause, unwrap_ray_error
from azr.config import Config
from azr.hardware import KERNEL_CACHES, TRAINER_MEMORY, Device
from azr.train.model_worker import ModelWorker

ACTOR_DEATH_GRACE_S = 10.0
"""A rank's peers may notice its death, as a broken connection, this much earlier than Ray does."""


class RankDied(RuntimeError):
    """A rank's process is gone, so the group is of no more use: end it and start another."""

    def __init__(self, model_role: str, rank: int, to: str, cause: Exception) -> None:
        super().__init__(f"{model_role} rank {rank} died while the driver waited for it to {to}: {root_cause(cause)}")
        self.model_role, self.rank = model_role, rank
        self.out_of_memory = isinstance(cause, OutOfMemoryError)


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The ranks of one model role, such as the policy. Make one with `start`, end it with `shutdown`."""

    model_role: str
    actors: tuple[ActorHandle, ...]
    visits_gpu: bool = False
    """Engines and other models share its GPUs: it is there only while it works, see `ModelWorker.offload`."""

    @classmethod
    async def start(
        cls,
        model_role: str,
        worker: type[ModelWorker],
        options: Sequence[Mapping[str, object]],
        config: Config,
        device: Device,
        gpus: asyncio.Lock | None = None,
    ) -> Self:
        """Start one actor per element of `options` (its Ray options) and build the model in them.

        `gpus`: of GPUs that engines and other models share; held while the model is built. It has left them on return.

        Raises TimeoutError when that takes longer than `timeout.start_s`, UserError for a user's mistake such as a
        wrong model path. Nothing is left running after an error.
        """
        remote = ray.remote(worker)
        # DeepSpeed picks its device and its build mode when it is imported, so the process must be born with them.
        memory = TRAINER_MEMORY if device == "cuda" else {}
        # Threads that spin while they wait would take the cores that the other roles compute on.
        variables = {"DS_ACCELERATOR": device, "DS_BUILD_OPS": "0", "OMP_WAIT_POLICY": "passive"}
        env = {"env_vars": {**variables, **KERNEL_CACHES, **memory}}
        actors = [
            remote.options(**share, runtime_env=env).remote(model_role, rank, len(options), device, config)
            for rank, share in enumerate(options)
        ]
        group = cls(model_role, tuple(actors), gpus is not None)
        limit = config.timeout.start_s
        try:
            (address,) = await group._wait({0: actors[0].create_store.remote()}, limit, "start")
            await group.call("init_process_group", address, timeout_s=limit, to="find each other")
            async with gpus or nullcontext():
                await group.call("build", timeout_s=limit, to="initialise")
                if gpus is not None:
                    await leave_gpu(group, limit)
        except BaseException:
            await group.shutdown()
            raise
        return group

    @property
    def size(self) -> int:
        return len(self.actors)

    async def call(self, method: str, *args: object, timeout_s: float, to: str | None = None) -> list[Any]:
        """Call the method with the same arguments on every rank; results in rank order.

        `to` says what the ranks do, for the message of the TimeoutError when `timeout_s` seconds pass. Raises RankDied
        when a rank's process is gone or goes meanwhile, even if a peer that waited for it failed first.
        """
        return await self.scatter(method, [args] * self.size, timeout_s=timeout_s, to=to)

    async def scatter(
        self, method: str, args: Sequence[tuple[object, ...]], *, timeout_s: float, to: str | None = None
    ) -> list[Any]:
        """Call the method with each rank's own arguments; results in rank order."""
        calls = zip(self.actors, args, strict=True)
        refs = {rank: getattr(actor, method).remote(*its) for rank, (actor, its) in enumerate(calls)}
        return await self._wait(refs, timeout_s, to or f"answer {method}")

    async def shutdown(self) -> None:
        """End the processes of this group, whatever they are doing, and wait until they are gone."""
        await kill_and_wait({f"{self.model_role} rank {rank}": actor for rank, actor in enumerate(self.actors)})

    async def _wait(self, refs: Mapping[int, Awaitable[Any]], timeout_s: float, to: str) -> list[Any]:
        ranks = {asyncio.ensure_future(ref): rank for rank, ref in refs.items()}
        try:
            _, pending = await asyncio.wait(ranks, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
            if pending and _may_follow_a_death(ranks):
                await asyncio.wait(pending, timeout=ACTOR_DEATH_GRACE_S, return_when=asyncio.FIRST_EXCEPTION)
            failed = {ranks[task]: error for task in ranks if task.done() and (error := task.exception()) is not None}
        finally:
            # Their outcome is of no more interest after a failure or a deadline, nor when this wait is cancelled.
            for task in ranks:
                task.cancel()
        for rank, error in failed.items():
            if isinstance(error, DEATHS):
                raise RankDied(self.model_role, rank, to, error) from error
        for error in failed.values():
            raise unwrap_ray_error(error) from error
        if pending:
            late = sorted(ranks[task] for task in pending)
            raise TimeoutError(f"the driver waited {timeout_s:g} s for {self.model_role} ranks {late} to {to}")
        return [task.result() for task in ranks]


def _may_follow_a_death(tasks: Iterable[asyncio.Future[Any]]) -> bool:
    """Whether a rank failed, and nothing shows that it did not just notice the death of a peer."""
    errors = [error for task in tasks if task.done() and (error := task.exception()) is not None]
    return bool(errors) and not any(isinstance(error, (*DEATHS, *SENTENCES)) for error in errors)
