"""Batched calls of one actor: many calls share a message to it, and many answers share a message back.

A Ray call costs its caller a third of a millisecond or more, whatever it carries. Calls made in the same turn of the
event loop are therefore one message. Its answer holds every call that has finished meanwhile, of any message. While
calls are unanswered, one message waits at the actor.
"""

from __future__ import annotations

import asyncio
import itertools
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.actor import ActorHandle
from ray.exceptions import RayTaskError

MOST_TOGETHER = 64
"""Most calls in a message, so that the first of many does not wait for the last."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a method."""

    number: int
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """Result or error of one call."""

    number: int
    value: Any = None
    error: RayTaskError | None = None


@dataclass(slots=True)
class _Desk:
    """Server state: running calls and finished answers."""

    running: set[asyncio.Task[None]] = field(default_factory=set)
    finished: list[Answer] = field(default_factory=list)
    messages: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a call has finished or another message has arrived."""


class TakesSharedCalls:
    """Base of an actor's class whose async methods can be called by `SharedCalls`."""

    linger_s = 0.02
    """Seconds that finished answers wait for running calls to finish."""
    _desk: _Desk | None = None

    async def exchange(self, calls: Sequence[Call]) -> list[Answer]:
        """Start these calls and return the answers of all finished calls, earlier ones too.

        Waits until a call has finished or the next message arrives.
        """
        if self._desk is None:
            self._desk = _Desk()
        desk = self._desk
        desk.messages += 1
        message = desk.messages
        desk.moved.set()  # the message before this one waits no more
        for call in calls:
            task = asyncio.create_task(self._answer(desk, call))
            desk.running.add(task)
            task.add_done_callback(desk.running.discard)
        while not desk.finished and desk.running and desk.messages == message:
            desk.moved.clear()
            await desk.moved.wait()
            if desk.finished and desk.running and desk.messages == message:
                await asyncio.sleep(self.linger_s)
        finished, desk.finished = desk.finished, []
        return finished

    async def _answer(self, desk: _Desk, call: Call) -> None:
        try:
            answer = Answer(call.number, await getattr(self, call.method)(*call.args, **call.kwargs))
        except Exception as error:
            answer = Answer(call.number, error=RayTaskError(call.method, traceback.format_exc(), error))
        desk.finished.append(answer)
        desk.moved.set()


class SharedCalls:
    """Client of one actor."""

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
        self._unsent.append(Call(number, method, args, kwargs))
        if len(self._unsent) == 1:
            loop.call_soon(self._send_unsent)
        elif len(self._unsent) == MOST_TOGETHER:
            self._send()
        return answer

    def _send_unsent(self) -> None:
        if self._unsent:
            self._send()

    def _send(self) -> None:
        calls, self._unsent = self._unsent, []
        try:
            answers = self.actor.exchange.remote(calls)
        except Exception as error:  # an argument that cannot be sent, or an actor that takes no shared calls
            self._fail([call.number for call in calls], error)
            return
        message = asyncio.create_task(self._exchange(answers))
        self._messages.add(message)
        message.add_done_callback(self._returned)

    async def _exchange(self, message: Any) -> None:
        try:
            answers: list[Answer] = await message
        except Exception as error:  # the actor is dead, or cannot say what it has to say
            self._fail(list(self._unanswered), error)
            return
        for answer in answers:
            if answer.number not in self._unanswered or (future := self._unanswered.pop(answer.number)).done():
                continue
            if answer.error is None:
                future.set_result(answer.value)
            else:
                future.set_exception(answer.error.as_instanceof_cause())

    def _fail(self, numbers: Sequence[int], error: Exception) -> None:
        for number in numbers:
            if not (future := self._unanswered.pop(number)).done():
                future.set_exception(error)

    def _returned(self, message: asyncio.Task[None]) -> None:
        self._messages.discard(message)
        if self._unanswered and not self._messages:
            self._send()
