"""Ray actors under supervision: every call has a deadline, a dead actor is replaced, and a failure says its cause.

Engines (`azr.rollout.engine_group`) and the executor pool (`azr.cluster.executor_actor`) are `SupervisedActor`s, which
are replaced when they are lost. The ranks of a trainer (`azr.train.worker_group`) use only the functions below, for one
rank cannot be replaced alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

from azr.errors import UserError
from azr.processes import end_with
from azr.text import first_line

HEALTH_CHECK_S = 60.0
"""Interval of health checks during a long call."""
PING_S = 60.0
"""An actor that does not answer a ping within this time counts as dead."""
KILL_S = 30.0
"""Seconds within which a killed actor must be gone."""
DEATHS = (RayActorError, OutOfMemoryError)
"""Errors of a call whose actor is dead; the second says that Ray ended it for want of memory."""
SENTENCES = (UserError, ValueError, TimeoutError, OSError)
"""Exceptions whose message is one sentence, subclasses before their bases."""
log = logging.getLogger(__name__)


class ActorLost(RuntimeError):
    """An actor is dead or silent; the message names it and its known cause."""

    def __init__(self, message: str, actor: ActorHandle) -> None:
        super().__init__(message)
        self.actor = actor


class SupervisedActor:
    """One actor, replaced by a fresh one if it is lost.

    The actor's class has an async `start()`, and an async `ping()` that returns something but None while it is usable.
    """

    def __init__(
        self,
        name: str,
        create: Callable[[], Awaitable[ActorHandle]],
        *,
        start_timeout_s: float,
        max_restarts: int,
        bring_up_to_date: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`name`: in messages, e.g. ``rollout engine 0``. `create`: makes an actor that has not been started.

        `max_restarts`: restarts in a row without a success (`succeeded`). `bring_up_to_date`: called after the start
        of a fresh actor, which is replaced again if that raises ActorLost.
        """
        self.name = name
        self.actor: ActorHandle | None = None
        self.start_report: Any = None
        """Return value of the actor's `start`."""
        self.restarts = 0
        self.restarting = asyncio.Lock()
        """Held while the actor is replaced."""
        self._create, self._bring_up_to_date = create, bring_up_to_date
        self._start_timeout_s, self._max_restarts = start_timeout_s, max_restarts
        self._consecutive_failures = 0
        self._shared: SharedCalls | None = None
        self._ping: asyncio.Task[Any] | None = None

    async def start(self, when: asyncio.Future[None] | None = None) -> None:
        """Create the actor, and start it after `when`. Raises the error of its start, ActorLost if it dies during the
        start, and TimeoutError if it takes too long."""
        self.actor = await self._create()
        if when is not None:
            await asyncio.shield(when)
        try:
            # No health checks: while an actor loads a model it answers nothing else.
            self.start_report = await within(self.actor.start.remote(), self._start_timeout_s, self.name, "start")
        except DEATHS as error:
            raise ActorLost(f"{self.name} died when it was to start ({root_cause(error)})", self.actor) from error
        except RayTaskError as error:
            raise unwrap_ray_error(error) from error

    async def call(self, method: str, *args: object, timeout_s: float, to: str, **kwargs: object) -> Any:
        """Call the actor; `to` describes the call in messages. Raises ActorLost if it is dead or silent, TimeoutError
        if it lives and takes longer than `timeout_s`, and the errors of a living actor."""
        assert self.actor is not None, f"{self.name} was not started"
        answer = asyncio.ensure_future(getattr(self.actor, method).remote(*args, **kwargs))
        return await self._answered(answer, self.actor, timeout_s, to)

    async def call_together(self, method: str, *args: object, timeout_s: float, to: str, **kwargs: object) -> Any:
        """Call the actor through `SharedCalls`, which costs much less for many calls at once."""
        assert self.actor is not None, f"{self.name} was not started"
        if self._shared is None or self._shared.actor is not self.actor:
            self._shared = SharedCalls(self.actor)
        return await self._answered(self._shared.call(method, *args, **kwargs), self.actor, timeout_s, to)

    async def _answered(self, answer: asyncio.Future[Any], actor: ActorHandle, timeout_s: float, to: str) -> Any:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        try:
            while not (await asyncio.wait({answer}, timeout=min(HEALTH_CHECK_S, deadline - clock())))[0]:
                if await self._shared_ping(actor) is None:
                    raise ActorLost(f"{self.name} was silent for {PING_S:g} s when it was to {to}", actor)
                if clock() >= deadline:
                    raise TimeoutError(f"the driver waited {timeout_s:g} s for {self.name} to {to}")
            return answer.result()
        except DEATHS as error:
            raise ActorLost(f"{self.name} died when it was to {to} ({root_cause(error)})", actor) from error
        except RayTaskError as error:
            # A ValueError is the caller's mistake; anything else may be what a dying actor says last.
            if not isinstance(error, ValueError) and await ping(actor) is None:
                raise ActorLost(f"{self.name} failed to {to} ({root_cause(error)})", actor) from error
            raise unwrap_ray_error(error) from error
        finally:
            answer.cancel()

    async def _shared_ping(self, actor: ActorHandle) -> Any:
        """Ping the actor once for all calls that wait."""
        if actor is not self.actor:
            return await ping(actor)
        if self._ping is None or self._ping.done():
            self._ping = asyncio.create_task(ping(actor))
        return await asyncio.shield(self._ping)

    def succeeded(self) -> None:
        """Reset the count of restarts: the actor has done something useful."""
        self._consecutive_failures = 0

    async def restart(self, lost: ActorLost) -> None:
        """Replace the lost actor by a fresh one, unless that was done already. Raises RuntimeError after more than
        `max_restarts` in a row, and UserError if the fresh one refuses to start for a user's mistake."""
        async with self.restarting:
            while self.actor is lost.actor:
                self._consecutive_failures += 1
                if self._consecutive_failures > self._max_restarts:
                    raise RuntimeError(
                        f"{self.name} was lost {self._consecutive_failures} times and answered nothing in between; "
                        f"the last time: {lost}"
                    ) from lost
                if not any(node["Alive"] for node in await asyncio.to_thread(ray.nodes)):
                    raise UserError(
                        f"{lost}, and the Ray cluster has no node left for another one: start Ray again, then "
                        "continue with --resume."
                    ) from lost
                log.warning("%s; another one is started in its place", lost)
                await kill_and_wait({self.name: lost.actor})
                try:
                    try:
                        await self.start()
                    except UserError:
                        raise
                    except (RayError, *SENTENCES) as error:
                        assert self.actor is not None
                        why = f"{self.name} did not start again ({root_cause(error)})"
                        raise ActorLost(why, self.actor) from error
                    if self._bring_up_to_date is not None:
                        await self._bring_up_to_date()
                    self.restarts += 1
                except ActorLost as error:
                    lost = error


def end_with_raylet() -> None:
    """End this process, if it is one of Ray's workers, with the daemon that started it."""
    if (raylet := os.environ.get("RAY_RAYLET_PID")) is not None:
        end_with(int(raylet))


async def within(answer: Awaitable[Any], timeout_s: float, who: str, to: str) -> Any:
    """Wait for an actor's answer. Raises TimeoutError, which names actor and call, after `timeout_s`."""
    try:
        return await asyncio.wait_for(answer, timeout_s)
    except RayTaskError:
        raise  # also when it is, at the same time, the actor's own TimeoutError
    except TimeoutError as error:
        raise TimeoutError(f"the driver waited {timeout_s:g} s for {who} to {to}") from error


async def ping(actor: ActorHandle) -> Any:
    """Return the answer of the actor's `ping`; None if the actor is dead or silent."""
    try:
        return await asyncio.wait_for(actor.ping.remote(), PING_S)
    except (RayError, TimeoutError):
        return None


async def kill_and_wait(actors: Mapping[str, ActorHandle]) -> None:
    """Kill the actors and wait until they are gone. Ray ends their child processes too. Raises TimeoutError, which
    names the late ones, after `KILL_S`."""
    for actor in actors.values():
        ray.kill(actor)
    gone = {asyncio.ensure_future(_until_dead(actor)): name for name, actor in actors.items()}
    _, alive = await asyncio.wait(gone, timeout=KILL_S)
    for task in alive:
        task.cancel()
    if alive:
        names = ", ".join(sorted(gone[task] for task in alive))
        raise TimeoutError(f"the driver waited {KILL_S:g} s for {names} to end")


async def _until_dead(actor: ActorHandle) -> None:
    """Ping until the actor is dead: a killed actor may still answer a few calls."""
    with contextlib.suppress(*DEATHS):
        while True:
            with contextlib.suppress(RayTaskError):  # its process lives, and what it needs does not
                await actor.ping.remote()
            await asyncio.sleep(0.05)


def root_cause(error: BaseException) -> str:
    """Return the cause in one line, without the tracebacks that Ray adds per actor on the way."""
    while isinstance(error, RayTaskError):
        error = error.cause
    if isinstance(error, OutOfMemoryError):
        return "Ray ended it because this machine's memory was nearly full"
    return first_line(error)


def unwrap_ray_error(error: BaseException) -> BaseException:
    """Return the error for the driver: one of `SENTENCES` as itself, without Ray's traceback."""
    cause = error
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    return next((kind(str(cause)) for kind in SENTENCES if isinstance(cause, kind)), error)


MOST_TOGETHER = 64
"""Most calls in a message, so that the first of many does not wait for the last."""
Call = tuple[int, str, tuple[Any, ...], dict[str, Any]]
"""Number, method, positional and keyword arguments of a call."""
Answer = tuple[int, Any, RayTaskError | None]
"""Number, result and error of a call."""


class TakesSharedCalls:
    """Base of an actor's class whose async methods can be called by `SharedCalls`; it ends with its raylet."""

    linger_s = 0.02
    """Seconds that finished answers wait for running calls to finish."""

    def __init__(self) -> None:
        end_with_raylet()
        self._shared_running: set[asyncio.Task[None]] = set()
        self._shared_finished: list[Answer] = []
        self._shared_messages = 0
        self._shared_moved = asyncio.Event()
        """Set when a call has finished or another message has arrived."""

    async def exchange(self, calls: Sequence[Call]) -> list[Answer]:
        """Start these calls and return the answers of all finished calls, earlier ones too.

        Waits until a call has finished or the next message arrives.
        """
        running = self._shared_running
        self._shared_messages += 1
        message = self._shared_messages
        self._shared_moved.set()  # the message before this one waits no more
        for call in calls:
            task = asyncio.create_task(self._answer(*call))
            running.add(task)
            task.add_done_callback(running.discard)
        while not self._shared_finished and running and self._shared_messages == message:
            self._shared_moved.clear()
            await self._shared_moved.wait()
            if self._shared_finished and running and self._shared_messages == message:
                await asyncio.sleep(self.linger_s)
        finished, self._shared_finished = self._shared_finished, []
        return finished

    async def _answer(self, number: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            answer: Answer = number, await getattr(self, method)(*args, **kwargs), None
        except Exception as error:
            answer = number, None, RayTaskError(method, traceback.format_exc(), error)
        self._shared_finished.append(answer)
        self._shared_moved.set()


class SharedCalls:
    """Client of one actor whose calls are batched: many share a message to it, and many answers share one back.

    A Ray call costs its caller a third of a millisecond or more, whatever it carries. Calls made in the same turn of
    the event loop are therefore one message. Its answer holds every call that has finished meanwhile, of any message.
    While calls are unanswered, one message waits at the actor.
    """

    def __init__(self, actor: ActorHandle) -> None:
        self.actor = actor
        self._numbers = itertools.count()
        self._unsent: list[Call] = []
        self._unanswered: dict[int, asyncio.Future[Any]] = {}
        self._messages: set[asyncio.Task[None]] = set()

    def call(self, method: str, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Call the actor; returns and raises as a Ray call does. Cancelling the call does not stop the actor."""
        loop = asyncio.get_running_loop()
        number, answer = next(self._numbers), loop.create_future()
        self._unanswered[number] = answer
        self._unsent.append((number, method, args, kwargs))
        if len(self._unsent) == 1:
            loop.call_soon(self._send)
        elif len(self._unsent) == MOST_TOGETHER:
            self._send()
        return answer

    def _send(self, *, asks_for_answers: bool = False) -> None:
        calls, self._unsent = self._unsent, []
        if not calls and not asks_for_answers:
            return
        try:
            answers = self.actor.exchange.remote(calls)
        except Exception as error:  # an argument that cannot be sent, or an actor that takes no shared calls
            self._fail([number for number, *_ in calls], error)
            return
        message = asyncio.create_task(self._exchange(answers))
        self._messages.add(message)
        # After the calls that these answers bring about, which then share a message.
        message.add_done_callback(self._returned)

    async def _exchange(self, message: Any) -> None:
        try:
            answers: list[Answer] = await message
        except Exception as error:  # the actor is dead, or cannot say what it has to say
            self._fail(list(self._unanswered), error)
            return
        for number, value, failure in answers:
            if number not in self._unanswered or (future := self._unanswered.pop(number)).done():
                continue
            if failure is None:
                future.set_result(value)
            else:
                future.set_exception(failure.as_instanceof_cause())

    def _fail(self, numbers: Sequence[int], error: Exception) -> None:
        for number in numbers:
            if not (future := self._unanswered.pop(number)).done():
                future.set_exception(error)

    def _returned(self, message: asyncio.Task[None]) -> None:
        self._messages.discard(message)
        # A message is cancelled when the run has ended, and one more would start a Ray cluster anew.
        if self._unanswered and not self._messages and not message.cancelled():
            self._send(asks_for_answers=True)
