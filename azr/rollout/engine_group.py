"""All engines of a run addressed as one: requests go to the least busy, engines that die are replaced.

What an engine had not answered when it died is asked again, of whichever engine is free. Every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar

import ray
from ray.actor import ActorHandle

from azr.concurrency import as_coroutine, task_group
from azr.config import Config
from azr.records import Completion
from azr.rollout.engine_slot import Berth, EngineLost, Seat, answers, first_line, make, served_version

MOST_ISSUES = 3
"""Times that one request, or one push, is tried: it may lose two engines."""
MOST_DEATHS = 3
"""Of one engine without any success in between; a run on such an engine would never end."""
SHUTDOWN_S = 30.0
log = logging.getLogger(__name__)
Report = TypeVar("Report")


class EngineGroup:
    """The rollout engines of a run. Make one with `start`, end it with `shutdown`."""

    def __init__(self, config: Config, actors: Sequence[ActorHandle], berths: Sequence[Berth] | None = None) -> None:
        """`berths`: where each actor lives, for those that will have to replace it."""
        self._config = config
        places = zip(berths or [Berth()] * len(actors), actors, strict=True)
        self._seats = [Seat(number, config, *place) for number, place in enumerate(places)]
        self._requests = itertools.count(1)
        self._version = 0
        self._reload: Callable[[ActorHandle], Awaitable[object]] | None = None
        """Sends the weights of that version; None before the first push and while the policy may have newer ones."""
        self.restarts = 0
        """Engines replaced so far because they had died."""

    @classmethod
    async def start(cls, config: Config, berths: Sequence[Berth]) -> Self:
        """One engine per berth.

        Raises TimeoutError when one is not ready within `timeout.start_s`. Nothing is left running after an
        error.
        """
        actors = await asyncio.gather(*(make(config, number, berth) for number, berth in enumerate(berths)))
        group = cls(config, actors, berths)
        try:
            async with task_group() as starting:
                for seat in group._seats:
                    starting.create_task(seat.begin())
        except BaseException:
            await group.shutdown()
            raise
        return group

    @property
    def actors(self) -> tuple[ActorHandle, ...]:
        """The engines as they are now; one that dies is replaced by another."""
        return tuple(seat.actor for seat in self._seats)

    async def generate(
        self,
        prompt_ids: list[int],
        *,
        n: int,
        max_tokens: int,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> list[Completion]:
        """`n` samples from the engine with the fewest requests in flight, at the rollout temperature if none is given.

        Only evaluation, whose answers are never trained on, gives one; 0 is greedy. `seed` decides which samples in a
        deterministic run, whichever engine draws them, and is left out in others: it would cost time without making
        them repeatable. Raises RuntimeError when engines died over this request again and again, or one engine over
        everything.
        """
        if temperature is None:
            temperature = self._config.rollout.temperature
        return await self._ask(prompt_ids, n, max_tokens, temperature, seed)

    async def _ask(
        self, prompt_ids: list[int], n: int, max_tokens: int, temperature: float, seed: int | None
    ) -> list[Completion]:
        request = next(self._requests)
        # The engine's own deadline comes first; this one is for an engine that does not answer at all.
        limit = self._config.timeout.generate_s + 10
        for issue in itertools.count(1):
            seat = await self._free_seat()
            actor = seat.actor
            seat.busy += n
            try:
                completions = await seat.call(
                    "generate",
                    prompt_ids,
                    n=n,
                    max_tokens=max_tokens,
                    temperature=temperature,
                    seed=seed if self._config.run.deterministic else None,
                    timeout_s=limit,
                    to="generate",
                )
            except EngineLost as error:
                if issue == MOST_ISSUES:
                    raise RuntimeError(
                        f"request {request} ({len(prompt_ids)} prompt tokens, {n} samples) is given up, because "
                        f"{issue} engines were lost over it; the last: {error}"
                    ) from error
                cause = error
            else:
                seat.deaths = 0
                return completions
            finally:
                seat.busy -= n
            # One of those who lost this engine replaces it; the others look for a free one.
            if not seat.lock.locked():
                await self._replace(seat, actor, cause)
        raise AssertionError("unreachable")

    async def _free_seat(self) -> Seat:
        while True:
            free = [seat for seat in self._seats if not seat.lock.locked()]
            if free:
                return min(free, key=lambda seat: seat.busy)
            async with self._seats[0].lock:
                pass

    async def _replace(self, seat: Seat, dead: ActorHandle, cause: EngineLost) -> None:
        """Put a new engine in the place of a dead one, unless that was done already.

        Raises RuntimeError when engines die there again and again.
        """
        async with seat.lock:
            while seat.actor is dead:
                seat.deaths += 1
                if seat.deaths >= MOST_DEATHS:
                    raise RuntimeError(
                        f"rollout engine {seat.number} was lost {seat.deaths} times and answered nothing in between; "
                        f"the last time: {cause}"
                    ) from cause
                log.warning("%s; another one is started in its place", cause)
                try:
                    await seat.begin_anew()
                    await self._equip(seat)
                    self.restarts += 1
                except EngineLost as error:
                    dead, cause = seat.actor, error

    async def _equip(self, seat: Seat) -> None:
        """Bring a new engine to the weights of the others; EngineLost when it dies over that."""
        if self._reload is None:
            if self._version:
                # The policy has moved on: the next push brings what is to be sampled from, and nothing is until then.
                await seat.call(
                    "begin_update",
                    self._version + 1,
                    timeout_s=self._config.timeout.start_s,
                    to="await its weights",
                )
            return
        try:
            await self._reload(seat.actor)
        except Exception as error:  # the sender's own, whatever that may be: who is to blame shows when asked
            if await answers(seat.actor):
                raise
            raise EngineLost(f"rollout engine {seat.number} died over its weights ({first_line(error)})") from error

    async def push(self, version: int, send: Callable[[int, Sequence[ActorHandle]], Awaitable[Report]]) -> Report:
        """Have `send(version, actors)` send new weights to every engine; returns what it returns.

        It is called anew, for the engines that do not have this version yet, when one died meanwhile. An engine that
        dies later is sent these weights by it too, until the engines are put to sleep. Raises what `send` raises when
        no engine is to blame or engines die again and again.
        """
        self._version, self._reload = version, None
        due = self._seats
        for issue in itertools.count(1):
            try:
                report = await send(version, [seat.actor for seat in due])
                break
            except Exception as error:  # the sender's own, whatever that may be: who is to blame shows when asked
                if issue == MOST_ISSUES or not await self._replace_the_dead(version, error):
                    raise
            versions = await self._served_versions()
            due = [seat for seat, served in versions.items() if served != version]
        for seat in self._seats:
            seat.deaths = 0
        self._reload = lambda actor: send(version, [actor])
        return report

    async def _replace_the_dead(self, version: int, error: Exception) -> bool:
        """After this error in a push; whether there were any."""
        lost = [seat for seat, served in (await self._served_versions()).items() if served is None]
        async with task_group() as replacing:
            for seat in lost:
                cause = f"rollout engine {seat.number} died over weight version {version} ({first_line(error)})"
                replacing.create_task(self._replace(seat, seat.actor, EngineLost(cause)))
        return bool(lost)

    async def _served_versions(self) -> dict[Seat, int | None]:
        served = await asyncio.gather(*(served_version(seat.actor) for seat in self._seats))
        return dict(zip(self._seats, served, strict=True))

    async def sleep(self) -> None:
        """Finish what is being generated and, on a GPU, leave the memory to the trainers.

        What dies over it is replaced by `wake`.
        """
        self._reload = None
        async with task_group() as sleeping:
            for seat in self._seats:
                sleeping.create_task(self._sleep(seat))

    async def _sleep(self, seat: Seat) -> None:
        async with seat.lock:
            try:
                await seat.call("sleep", timeout_s=self._config.timeout.generate_s, to="sleep")
            except EngineLost as error:
                # A new engine would take the memory that the trainers are about to need.
                seat.lost = error
                ray.kill(seat.actor)

    async def wake(self) -> None:
        """End `sleep`; a GPU engine then needs its weights pushed."""
        async with task_group() as waking:
            for seat in self._seats:
                waking.create_task(self._wake(seat))

    async def _wake(self, seat: Seat) -> None:
        try:
            if seat.lost is not None:
                raise seat.lost
            await seat.call("wake", timeout_s=self._config.timeout.start_s, to="wake")
        except EngineLost as error:
            await self._replace(seat, seat.actor, error)

    async def shutdown(self) -> None:
        """Stop every engine and its processes."""
        ended = asyncio.gather(
            *(as_coroutine(actor.shutdown.remote()) for actor in self.actors), return_exceptions=True
        )
        with contextlib.suppress(TimeoutError):  # those that are late are killed all the same
            await asyncio.wait_for(ended, SHUTDOWN_S)
        for actor in self.actors:
            ray.kill(actor)
