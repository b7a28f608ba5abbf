"""Users' environments: classes that are named ``FILE.py:CLASS`` or ``MODULE:CLASS`` and run in processes that can be
killed.

Each conversation has an object of the class, whose methods may be coroutines. ``reset(row)``, or ``reset(**row)``,
begins it and may return a text, which is added to the row's question. Then either ``step(response)`` replies to every
turn of the model, with None at the conversation's end, or all other public methods are tools, called as the model says.
``reward()`` returns a number at the end, or a dict with a ``score`` and named numbers; without it the row's grader
judges the last turn. A ``step`` with the return type tuple pays for turns; without ``reward()`` the sum is the reward.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from azr.environments import Environment, EnvironmentFailed
from azr.environments.tool_calls import MAX_REPLY, ToolCalls
from azr.errors import UserError
from azr.graders.own import SCORE, load_grader
from azr.isolated import OwnFunctions, WorkerError, ask_once
from azr.records import Judgement
from azr.tasks.base import Verdict
from azr.text import clipped, without_middle

if TYPE_CHECKING:
    from azr.prompts.codec import PromptCodec  # It loads transformers, which a plan does not need.

PROCESSES = 4
"""Processes of a run, each with the objects of many conversations; one that hangs ends those of its process."""
_MODULE = "azr.environments.serving"
_NO_TEXT = ("integer", "number", "boolean", "array", "object")


@cache
def described(name: str) -> dict[str, Any]:
    """Return what a class has: its ``tools`` as JSON schemas, and whether it ``steps``, ``rewards`` and ``sums`` turns.

    Raises UserError if it cannot be loaded, or a tool lacks types or docstring.
    """
    if not inspect.isclass(found := load_grader(name) if ":" in name else None) or not hasattr(found, "reset"):
        raise UserError(f"{name} is not a FILE.py:CLASS whose class has a method reset: see docs/environments.md.")
    about: dict[str, Any] = _said(name, ("describe",), {}, ": docs/environments.md shows what its tools need")
    if not about["steps"] and not about["tools"]:
        raise UserError(f"{name} has neither a method step nor tools: add one; docs/environments.md shows both.")
    return about


def try_environment(name: str, row: Mapping[str, Any]) -> None:
    """Begin a conversation about a row. Raises UserError if `reset` fails over it, or returns no text."""
    hint = " for its first row: docs/environments.md says what reset gets, and --data.fields renames fields"
    _said(name, (), {"conversation": 0, "do": "reset", "row": row}, hint)


def _said(name: str, more: Sequence[str], message: Mapping[str, Any], hint: str) -> Any:
    named = f"The environment {name}"
    try:
        return ask_once(named, _MODULE, (name, *more), message)
    except WorkerError as trouble:
        raise UserError(f"{named} {trouble}{hint}.") from trouble


class OwnEnvironments(contextlib.AbstractAsyncContextManager["OwnEnvironments"]):
    """Processes of an environment: ``async with OwnEnvironments("guess.py:Guess", codec, 4) as environments``."""

    def __init__(self, name: str, codec: PromptCodec, turns: int) -> None:
        self._named, self.codec, self.turns, self.about = f"the environment {name}", codec, turns, described(name)
        self._processes = [OwnFunctions(_MODULE, (name,), 1) for _ in range(PROCESSES)]
        self._numbers = itertools.count()

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            await process.end()

    def open(self, row: Mapping[str, Any], opening: str | None) -> Environment:
        """Return the environment of one conversation about a row. ``opening``: as `opening` has returned it."""
        return _Own(self, partial(self._ask, next(self._numbers)), row, opening)

    async def opening(self, row: Mapping[str, Any]) -> str | None:
        """Return the text that `reset` adds to a row's question; None if it fails, as the row's conversations do."""
        number, text = next(self._numbers), None
        for what in ("reset", "close"):
            with contextlib.suppress(EnvironmentFailed):
                said = await self._ask(number, what, row=row)
                text = said or "" if what == "reset" else text
        return text

    async def _ask(self, number: int, what: str, **rest: Any) -> Any:
        message = {"conversation": number, "do": what, **rest}
        try:
            return await self._processes[number % PROCESSES].call(
                self._named, message, costs="answers that talk to it are not trained on"
            )
        except WorkerError as trouble:
            raise EnvironmentFailed(f"{self._named} {trouble}") from trouble


class _Own(ToolCalls):
    """A conversation with an object in another process."""

    def __init__(
        self, of: OwnEnvironments, ask: Callable[..., Awaitable[Any]], row: Mapping[str, Any], opening: str | None
    ) -> None:
        tools = {each["function"]["name"]: partial(self._call, each["function"]) for each in of.about["tools"]}
        super().__init__(of.codec, of.turns, tools)
        self._ask, self._row, self._about, self._opening, self._begun = ask, row, of.about, opening, False
        if of.about["steps"]:
            self.role = "user"

    async def __aexit__(self, *_: object) -> None:
        if self._begun:
            with contextlib.suppress(EnvironmentFailed):
                await self._ask("close")

    async def reply(self, text: str) -> Sequence[str]:
        await self._begin()
        if not self._about["steps"]:
            return await super().reply(text)
        said, paid = await self._ask("step", text=text)
        if paid is not None:
            self.parts[f"turn_{self.parts['turns']:g}"] = paid
        return () if said is None else [without_middle(said, MAX_REPLY // 2)]

    async def judgement(self) -> Judgement | None:
        if not self._about["rewards"]:
            return None
        await self._begin()
        turns = sum(value for name, value in self.parts.items() if name.startswith("turn_"))
        said = {SCORE: turns, "parts": {}} if self._about["sums"] else await self._ask("reward")
        score, parts = said[SCORE], said["parts"]
        if score is None:
            return Judgement(verdict=Verdict.UNGRADED, parts=parts, reason="no_reward")
        return Judgement(verdict=Verdict.RIGHT if score >= 1 else Verdict.WRONG, parts=parts, score=score)

    async def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        text = await self._ask("reset", row=self._row) or ""
        if self._opening is None:
            raise EnvironmentFailed("the environment could not begin when the prompt was written")
        if text != self._opening:
            raise UserError(
                f"The environment begins one row by {clipped(self._opening)!r} and by {clipped(text)!r}: what reset "
                "draws must follow from the row, for answers to one prompt are compared."
            )

    async def _call(self, tool: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[str, bool]:
        takes, given = tool["parameters"]["properties"], dict(arguments)
        for name, value in arguments.items():
            if isinstance(value, str) and takes.get(name, {}).get("type") in _NO_TEXT:
                with contextlib.suppress(ValueError):  # tags give every argument as text
                    given[name] = json.loads(value)
        said, failed = await self._ask("call", name=tool["name"], arguments=given)
        return without_middle(said, MAX_REPLY // 2), failed
