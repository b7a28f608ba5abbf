"""A model role addressed as one object: its ranks are started, called and ended together, all with deadlines.

A rank is not replaced when it dies: its peers cannot continue without it, so the runtime starts everything again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import ray
import torch
import torch.distributed as dist
from ray.actor import ActorHandle
from ray.exceptions import OutOfMemoryError, RayError

from azr.cluster.gpu_turns import leave_gpu
from azr.cluster.supervisor import DEATHS, SENTENCES, kill_and_wait, root_cause, unwrap_ray_error
from azr.config import Config
from azr.errors import UserError
from azr.hardware import KERNEL_CACHES, TRAINER_MEMORY, Device, flight_recorder
from azr.train.model_worker import LOOK_GROUP, ModelWorker, Whereabouts

ACTOR_DEATH_GRACE_S = 10.0
"""A rank's peers may notice its death, as a broken connection, this much earlier than Ray does."""
LOOK_AFTER = 0.7
"""Share of a deadline after which ranks that have not answered are asked what they are doing: before a collective
fails, see `azr.train.model_worker.COLLECTIVE_SHARE`, and its process may end."""
LOOK_S = 10.0
"""A rank that does not say within this time what it is doing holds Python's lock, or is stopped."""
SILENT = Whereabouts(collectives=-1, stack="it does not answer", place="where it does not answer")
DEAD_CONTEXTS = (torch.AcceleratorError, dist.DistBackendError)
"""Errors of CUDA and NCCL after which a process can use its GPU no more, though it lives."""

log = logging.getLogger(__name__)


class RankDied(RuntimeError):
    """A rank's process, or what it had on its GPU, is gone: end the group and start another."""

    def __init__(self, model_role: str, rank: int, to: str, cause: Exception, where: str = "") -> None:
        """`where`: what the ranks were doing, if they were asked."""
        waited = f"{model_role} rank {rank} died while the driver waited for it to {to}: {root_cause(cause)}"
        super().__init__(waited + where)
        self.model_role, self.rank = model_role, rank
        self.out_of_memory = isinstance(cause, OutOfMemoryError)


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The ranks of one model role, such as the policy. Make one with `start`, end it with `shutdown`."""

    model_role: str
    actors: tuple[ActorHandle, ...]
    visits_gpu: bool = False
    """Engines and other models share its GPUs: it is there only while it works, see `ModelWorker.offload`."""
    devices: tuple[str, ...] = ()
    """Name of each rank's device, such as ``GPU 3 of 10.0.0.2``."""

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
        remote = ray.remote(concurrency_groups={LOOK_GROUP: 1})(worker)
        # DeepSpeed picks its device and its build mode when it is imported, so the process must be born with them.
        memory = TRAINER_MEMORY | flight_recorder(model_role) if device == "cuda" else {}
        # Threads that spin while they wait would take the cores that the other roles compute on.
        variables = {"DS_ACCELERATOR": device, "DS_BUILD_OPS": "0", "OMP_WAIT_POLICY": "passive"}
        env = {"env_vars": {**variables, **KERNEL_CACHES, **memory}}
        actors = [
            remote.options(**share, runtime_env=env).remote(model_role, rank, len(options), device, config)
            for rank, share in enumerate(options)
        ]
        group = cls(model_role, tuple(actors), gpus is not None, ("its GPU",) * len(actors))
        limit = config.timeout.start_s
        try:
            (address,) = await group._wait({0: actors[0].create_store.remote()}, limit, "start")
            devices = await group.call("init_process_group", address, timeout_s=limit, to="find each other")
            group = replace(group, devices=tuple(devices))
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
        known = (*DEATHS, *SENTENCES, *DEAD_CONTEXTS, torch.OutOfMemoryError)
        started, where, failed, pending = time.monotonic(), "", dict[int, BaseException](), set(ranks)
        waits = [LOOK_AFTER * timeout_s, (1 - LOOK_AFTER) * timeout_s, ACTOR_DEATH_GRACE_S]
        try:
            while pending and waits:
                _, pending = await asyncio.wait(pending, timeout=waits.pop(0), return_when=asyncio.FIRST_EXCEPTION)
                done = [task for task in ranks if task not in pending]
                failed = {ranks[task]: error for task in done if (error := task.exception()) is not None}
                if failed and not any(isinstance(error, known) for error in failed.values()):
                    waits = waits[-1:]  # a rank that failed may just have noticed the death of a peer
                elif not failed and pending and len(waits) == 2:
                    where = await self._where({ranks[task] for task in pending}, to)
                else:
                    break
        finally:
            # Their outcome is of no more interest after a failure or a deadline, nor when this wait is cancelled.
            for task in ranks:
                task.cancel()
        for rank, error in failed.items():
            if isinstance(error, torch.OutOfMemoryError):
                raise UserError(
                    f"{self.model_role} rank {rank} ran out of memory on {self.devices[rank]} when it was to {to}: "
                    "lower train.tokens_per_micro_batch, set train.gradient_checkpointing to full, train.shard to "
                    "offload or train.lora.rank, as azr plan proposes, or end other processes on that GPU. --resume "
                    "continues from the last checkpoint."
                ) from error
        for rank, error in failed.items():
            if isinstance(error, (*DEATHS, *DEAD_CONTEXTS)):
                raise RankDied(self.model_role, rank, to, error, where) from error
        waited_s, late = round(time.monotonic() - started, 1), sorted(ranks[task] for task in pending)
        waited = f"the driver waited {waited_s:g} s for {self.model_role} ranks {late} to {to}{where}"
        for error in failed.values():
            if where and late and not isinstance(error, SENTENCES):  # a collective fails because of those that are late
                raise TimeoutError(f"{waited} ({root_cause(error)})") from error
            raise unwrap_ray_error(error) from error
        if late:
            raise TimeoutError(waited)
        return [task.result() for task in ranks]

    async def _where(self, ranks: Iterable[int], to: str) -> str:
        """Ask these ranks what they are doing, and log it. Return the end of a sentence on those that no collective of
        the others has, or on all if there are none."""

        async def ask(rank: int) -> Whereabouts:
            try:
                found: Whereabouts = await asyncio.wait_for(self.actors[rank].whereabouts.remote(), LOOK_S)
            except (RayError, TimeoutError):
                return SILENT
            return found

        ordered = sorted(ranks)
        found = dict(zip(ordered, await asyncio.gather(*map(ask, ordered)), strict=True))
        for rank, its in found.items():
            log.warning("%s rank %d takes long to %s:\n%s", self.model_role, rank, to, its.stack)
        most = max(its.collectives for its in found.values())
        outside = [rank for rank, its in found.items() if its.collectives < most]
        said = ", ".join(f"rank {rank} is {found[rank].place}" for rank in (outside or ordered)[:4])
        return f"; outside of the others' collective, {said}" if outside else f"; {said}"
