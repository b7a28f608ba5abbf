"""One engine's place in the group: whom to ask there, how long to wait, and how to tell a death from a refusal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError, RayTaskError

from azr.concurrency import as_coroutine
from azr.config import Config
from azr.rollout.engine import RolloutEngine

MOST_CALLS = 10_000
"""Calls a Ray actor may have in flight; the engine queues them itself."""
WATCH_S = 60.0
"""A call that takes longer has its engine asked, as often, whether it is still there."""
PING_S = 60.0
"""An engine that does not say within this time that it is there counts as dead."""
END_S = 30.0


class EngineLost(RuntimeError):
    """An engine is dead or silent; the message says which, and what came to light."""


async def what_ray_gives() -> tuple[int, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Berth:
    """Where an engine, and whoever replaces it, lives in the cluster."""

    options: Mapping[str, object] = field(default_factory=dict)
    """Ray options of its actor."""
    find_gpus: Callable[[], Awaitable[tuple[int, ...]]] = what_ray_gives
    """Numbers of its GPUs on its node when it starts; none when what Ray gives its actor is all it has."""


@dataclass(slots=True, eq=False)
class Seat:
    """A place for one engine, which is replaced when it is lost."""

    number: int
    config: Config
    berth: Berth
    actor: ActorHandle
    busy: int = 0
    """Samples in flight."""
    deaths: int = 0
    """Since the last success."""
    lost: EngineLost | None = None
    """Why nobody sits here until the engines wake."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the engine is replaced."""

    async def call(self, method: str, *args: object, timeout_s: float, to: str, **kwargs: object) -> Any:
        """What the engine answers.

        Raises EngineLost when it is dead or silent, TimeoutError when it lives and takes longer than `timeout_s`, and
        whatever a living engine raises.
        """
        actor = self.actor
        answer = asyncio.ensure_future(as_coroutine(getattr(actor, method).remote(*args, **kwargs)))
        try:
            return await self._watched(answer, actor, timeout_s, to)
        except RayActorError as error:
            raise EngineLost(f"rollout engine {self.number} died when it was to {to} ({first_line(error)})") from error
        except RayTaskError as error:
            # A refusal is the asker's mistake; anything else may be what a dying engine says last.
            if not isinstance(error, ValueError) and not await answers(actor):
                raise EngineLost(f"rollout engine {self.number} failed to {to} ({first_line(error)})") from error
            raise
        finally:
            answer.cancel()

    async def _watched(self, answer: asyncio.Future[Any], actor: ActorHandle, timeout_s: float, to: str) -> Any:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        while not answer.done():
            await asyncio.wait({answer}, timeout=min(WATCH_S, deadline - clock()))
            if answer.done():
                break
            if not await answers(actor):
                raise EngineLost(f"rollout engine {self.number} was silent for {PING_S:g} s when it was to {to}")
            if clock() >= deadline:
                raise TimeoutError(f"the driver waited {timeout_s:g} s for rollout engine {self.number} to {to}")
        return answer.result()

    async def begin(self) -> None:
        """Start the engine. Not watched meanwhile: loading a model keeps its actor from answering anything else."""
        limit = self.config.timeout.start_s
        try:
            await asyncio.wait_for(as_coroutine(self.actor.start.remote()), limit)
        except RayTaskError:
            raise
        except TimeoutError as error:
            raise TimeoutError(f"the driver waited {limit:g} s for rollout engine {self.number} to start") from error

    async def begin_anew(self) -> None:
        """End whoever sits here, with all its processes, and start another. EngineLost when that one dies as well."""
        await end(self.actor, self.number)
        try:
            self.actor, self.lost = await make(self.config, self.number, self.berth), None
            await self.begin()
        except (RayError, TimeoutError) as error:
            raise EngineLost(f"rollout engine {self.number} did not start anew ({first_line(error)})") from error


async def make(config: Config, number: int, berth: Berth) -> ActorHandle:
    """An engine that has still to be started. Raises TimeoutError when the cluster has no GPUs for it in time."""
    limit = config.timeout.start_s
    try:
        gpus = await asyncio.wait_for(berth.find_gpus(), limit)
    except TimeoutError as error:
        raise TimeoutError(f"the driver waited {limit:g} s for the GPUs of rollout engine {number}") from error
    return (
        ray.remote(RolloutEngine)
        .options(**berth.options, max_concurrency=MOST_CALLS)
        .remote(
            config.model.path,
            config.rollout,
            generate_timeout_s=config.timeout.generate_s,
            dtype=config.train.dtype,
            seed=config.run.seed + number,
            deterministic=config.run.deterministic,
            gpus=gpus,
        )
    )


async def answers(actor: ActorHandle) -> bool:
    """Whether the engine and its core process are there."""
    return await served_version(actor) is not None


async def served_version(actor: ActorHandle) -> int | None:
    """Of the weights that the engine's core process serves; None when it or its actor is dead or silent."""
    try:
        return await asyncio.wait_for(as_coroutine(actor.ping.remote()), PING_S)
    except (RayError, TimeoutError):
        return None


async def end(actor: ActorHandle, number: int) -> None:
    """Kill the actor and wait until it is gone; Ray ends what it had started, the core process, along with it."""
    ray.kill(actor)
    try:
        await asyncio.wait_for(_until_dead(actor), END_S)
    except TimeoutError as error:
        raise TimeoutError(f"the driver waited {END_S:g} s for rollout engine {number} to end") from error


async def _until_dead(actor: ActorHandle) -> None:
    """An actor may still answer a few calls between the order to die and its death."""
    with contextlib.suppress(RayActorError):
        while True:
            with contextlib.suppress(RayTaskError):  # it lives, and its core process does not
                await actor.ping.remote()
            await asyncio.sleep(0.05)


def first_line(error: BaseException) -> str:
    """The cause in one line, without the tracebacks that Ray wraps around it, one per actor on the way."""
    while isinstance(error, RayTaskError):
        error = error.cause
    return (str(error).strip() or type(error).__name__).splitlines()[0]
