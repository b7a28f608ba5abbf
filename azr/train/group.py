"""A role addressed as one object: its ranks are started, called and ended together, and every wait has a deadline."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from azr.concurrency import awaited
from azr.config import Config
from azr.train.worker import Device, RoleWorker

SHUTDOWN_S = 30.0


@dataclass(frozen=True, slots=True)
class RoleGroup:
    """The ranks of one role, e.g. the policy. Make one with `start`, end it with `shutdown`."""

    role: str
    actors: tuple[ActorHandle, ...]

    @classmethod
    async def start(
        cls,
        role: str,
        worker: type[RoleWorker],
        options: Sequence[Mapping[str, object]],
        config: Config,
        device: Device,
    ) -> Self:
        """Start one actor per element of `options` (its Ray options) and build the role's model in them.

        Raises TimeoutError when that takes longer than `train.init_timeout_s`, ValueError for a user's mistake such
        as a wrong model path. Nothing is left running after an error.
        """
        remote = ray.remote(worker)
        # DeepSpeed picks its device and its build mode when it is imported, so the process must be born with them.
        env = {"env_vars": {"DS_ACCELERATOR": device, "DS_BUILD_OPS": "0"}}
        actors = [
            remote.options(**share, runtime_env=env).remote(role, rank, len(options), device, config)
            for rank, share in enumerate(options)
        ]
        group = cls(role, tuple(actors))
        try:
            address = await group._wait({0: actors[0].host_store.remote()}, config.train.init_timeout_s, "start")
            await group.call("join", address[0], timeout_s=config.train.init_timeout_s, to="find each other")
            await group.call("build", timeout_s=config.train.init_timeout_s, to="initialise")
        except BaseException:
            await group.shutdown()
            raise
        return group

    @property
    def size(self) -> int:
        return len(self.actors)

    async def call(self, method: str, *args: object, timeout_s: float, to: str | None = None) -> list[Any]:
        """Call the method with the same arguments on every rank; results in rank order.

        `to` says what the ranks do, for the message of the TimeoutError when `timeout_s` seconds pass.
        """
        return await self.scatter(method, [args] * self.size, timeout_s=timeout_s, to=to)

    async def scatter(
        self, method: str, args: Sequence[tuple[object, ...]], *, timeout_s: float, to: str | None = None
    ) -> list[Any]:
        """Call the method with each rank's own arguments; results in rank order."""
        assert len(args) == self.size, f"{len(args)} argument tuples for {self.size} {self.role} ranks"
        refs = {
            rank: getattr(actor, method).remote(*own)
            for rank, (actor, own) in enumerate(zip(self.actors, args, strict=True))
        }
        return await self._wait(refs, timeout_s, to or f"answer {method}")

    async def shutdown(self) -> None:
        """End the processes of this group, whatever they are doing, and wait until they are gone."""
        for actor in self.actors:
            ray.kill(actor)
        gone = [asyncio.ensure_future(_until_dead(actor)) for actor in self.actors]
        _, alive = await asyncio.wait(gone, timeout=SHUTDOWN_S)
        if alive:
            raise TimeoutError(f"the driver waited {SHUTDOWN_S:g} s for {len(alive)} {self.role} ranks to end")

    async def _wait(self, refs: Mapping[int, Awaitable[Any]], timeout_s: float, to: str) -> list[Any]:
        ranks = {asyncio.ensure_future(awaited(ref)): rank for rank, ref in refs.items()}
        try:
            done, pending = await asyncio.wait(ranks, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            # Nobody will ask what became of these: not after a failure or a deadline, nor when this wait is cancelled.
            for task in ranks:
                task.cancel()
        for task in done:
            if (error := task.exception()) is not None:
                raise _explained(error, self.role, ranks[task], to) from error
        if pending:
            late = sorted(ranks[task] for task in pending)
            raise TimeoutError(f"the driver waited {timeout_s:g} s for {self.role} ranks {late} to {to}")
        return [task.result() for task in ranks]


async def _until_dead(actor: ActorHandle) -> None:
    """An actor may still answer a few calls between the order to die and its death."""
    with contextlib.suppress(RayActorError):
        while True:
            await actor.ping.remote()
            await asyncio.sleep(0.05)


def _explained(error: BaseException, role: str, rank: int, to: str) -> BaseException:
    """The error as the driver should see it: a user's mistake as itself, a death with the name of the dead."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, ValueError):
        return ValueError(str(error.cause))
    if isinstance(error, RayActorError):
        return RuntimeError(f"{role} rank {rank} died while the driver waited for it to {to}: {error}")
    return error
