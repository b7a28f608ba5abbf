"""Environments: what answers the model within a conversation, such as a tool that it calls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from azr.prompts.codec import PromptCodec  # It loads transformers, and the process of an environment comes here.
    from azr.records import Completion, Judgement


class EnvironmentFailed(Exception):
    """An environment cannot continue, through no fault of the model; the message says why. Its answer is ungraded."""


class Environment(AbstractAsyncContextManager["Environment"]):
    """One conversation's environment. `azr.answering.converse` opens one for each, as an async context manager.

    Example: ``async with PythonBlocks(codec, 4, execute) as environment: ids = await environment.respond(turn)``
    """

    role: Literal["user", "tool"] = "user"
    """As what its replies stand in the conversation."""

    def __init__(self, codec: PromptCodec, turns: int) -> None:
        """``turns``: most turns of the model; its last one is replied to by nobody."""
        self._codec, self._most = codec, turns
        self.parts: dict[str, bool | float] = {"turns": 0.0, "tool_calls": 0.0, "tool_errors": 0.0}
        """Counts that the answer's judgement states: turns of the model, its calls, and those that failed."""

    async def __aexit__(self, *_: object) -> None:
        """End what the conversation has started."""

    async def respond(self, turn: Completion) -> list[int] | None:
        """Return the tokens that follow a turn of the model; None when the conversation is over. Raises
        EnvironmentFailed."""
        self.parts["turns"] += 1
        replies = await self.reply(self._codec.response_text(turn))
        if not replies or self.parts["turns"] >= self._most:
            return None
        has_ended = turn.response_ids[-1] in self._codec.stops.token_ids  # and not with a stop string
        return self._codec.reply_ids(self.role, *replies, has_ended=has_ended)

    async def reply(self, text: str) -> Sequence[str]:
        """Return the replies to a turn's text, which has no end token; none end the conversation. Raises
        EnvironmentFailed."""
        raise NotImplementedError

    def count(self, *, failed: bool) -> None:
        """Count a call of a tool."""
        self.parts["tool_calls"] += 1
        self.parts["tool_errors"] += failed

    async def judgement(self) -> Judgement | None:
        """Return the environment's own judgement of the conversation; None where the problem's judges it."""
        return None
