"""Tool calls as chat templates have models write them, and the Python tool."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from azr.config import RolloutConfig
from azr.environments import Environment, EnvironmentFailed
from azr.execution import CallStatus
from azr.graders import OpenExecutor
from azr.graders.sandboxed import script_output
from azr.tasks.base import Run
from azr.tasks.blocks import PYTHON, blocks
from azr.tasks.prompts import PYTHON_KEEPS, PYTHON_NOTE, PYTHON_REPLY, THOUGHT
from azr.text import clipped, without_middle

if TYPE_CHECKING:
    from azr.prompts.chat_template import Tool, Turn
    from azr.prompts.codec import PromptCodec

_CODE = {"code": {"type": "string", "description": "The program."}}
_TAKES = {"type": "object", "properties": _CODE, "required": ["code"]}
_MARK = re.compile(
    r"(?:<tool_call>\s*)?<function=(?P<tag>[^<>\s]+)>(?P<body>(?:(?!<function=).)*?)</function>"
    r"|(?:<tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>)\s*(?:```(?:json)?\s*)?"
    r"(?:(?P<name>[\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{))?"
    rf"|(?P<thought>{THOUGHT})", re.DOTALL
)  # fmt: skip
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>\n?((?:(?!<parameter=).)*?)\n?</parameter>", re.DOTALL)
_BARE = re.compile(r'\{\s*"(?:type|name|function)"\s*:')
_JSON = json.JSONDecoder(strict=False)  # models leave line ends in their texts
MAX_CALLS = 8
"""Most calls that one turn may make."""
MAX_OUTPUT = 100_000
"""Most characters of a program's output that leave the sandbox."""
MAX_REPLY = 2_000
"""Most characters of an output that the model sees; the middle of a longer one is left out."""
Call = Callable[[Mapping[str, Any]], Awaitable[tuple[str, bool]]]
"""Takes arguments by name; returns what it answers, and whether it failed."""


def added(turns: Sequence[Turn], text: str) -> tuple[Turn, ...]:
    """Return a conversation whose last turn has one more paragraph."""
    return (*turns[:-1], {**turns[-1], "content": f"{turns[-1]['content']}\n\n{text}"})


def told(turns: tuple[Turn, ...], tools: str) -> tuple[tuple[Turn, ...], Sequence[Tool]]:
    """Return a conversation, and the tools that the chat template writes into it, as `rollout.tools` has them."""
    if tools == "none":
        return turns, ()
    if tools in PYTHON_KEEPS:
        return added(turns, f"{PYTHON_NOTE} {PYTHON_KEEPS[tools]}"), ()
    about = f"Run a Python program, and return what it prints. {PYTHON_KEEPS[tools.removesuffix('_calls')]}"
    return turns, ({"type": "function", "function": {"name": "python", "description": about, "parameters": _TAKES}},)


def on_record(rollout: RolloutConfig) -> dict[str, str]:
    """Return what an evaluation's protocol says of the tool; nothing without one."""
    return {} if rollout.tools == "none" else {"tools": f"{rollout.tools}, {rollout.turns} turns"}


@asynccontextmanager
async def open_tool(
    rollout: RolloutConfig, codec: PromptCodec, answers: OpenExecutor
) -> AsyncIterator[Callable[[], Environment] | None]:
    """Yield what makes the environment of each conversation with the Python tool; None without one. ``answers``: as
    `azr.graders.open_graders` takes it."""
    if rollout.tools == "none":
        yield None
        return
    has_calls = rollout.tools.endswith("_calls")
    if codec.template is not None:  # what it cannot write shows at once
        codec.check_replies("tool" if has_calls else "user")
    async with answers() as executor:

        def begin() -> Environment:
            tool = python_tool(executor.execute, keeps=rollout.tools.startswith("notebook"))
            if has_calls:
                return ToolCalls(codec, rollout.turns, {"python": tool})
            return PythonBlocks(codec, rollout.turns, tool)

        yield begin


class Unreadable(ValueError):
    """Raised for text that begins a call and is none; the message completes a sentence."""


def find_calls(text: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return name and arguments of every call in a turn of the model, as Qwen, Hermes, Llama and Mistral write them,
    after its last thought that ends outside of a call. Raises Unreadable."""
    calls, trouble, at, start = list[tuple[str, Mapping[str, Any]]](), None, 0, 0
    while mark := _MARK.search(text, at):
        at = mark.end()
        if mark["thought"]:
            calls, trouble, start = [], None, at
            continue
        try:
            if mark["tag"]:
                value: Any = {"name": mark["tag"], "arguments": dict(_PARAMETER.findall(mark["body"]))}
            else:
                value, at = _json_at(text, at)
                value = {"name": mark["name"], "arguments": value} if mark["name"] else value
            calls += map(_call, value if isinstance(value, list) else [value])
        except Unreadable as error:
            trouble = error
    if trouble is not None:
        raise trouble
    if at == start and _BARE.match(text := text[start:].strip()):  # Llama's, without a mark
        value, _ = _json_at(text, 0)
        return [_call(value)] if {"arguments", "parameters"} & {*value} else []  # an answer may be JSON, too
    return calls


def _json_at(text: str, start: int) -> tuple[Any, int]:
    try:
        return _JSON.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise Unreadable("it is not JSON") from error


def _call(value: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name", value.get("function")) if isinstance(value, dict) else None
    arguments = value.get("arguments", value.get("parameters", {})) if isinstance(value, dict) else None
    if isinstance(arguments, str):  # OpenAI's form, JSON in JSON
        arguments, _ = _json_at(arguments.strip(), 0)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Unreadable("it is not an object with name and arguments")
    return name, arguments


class ToolCalls(Environment):
    """Replies to calls of the chat template's form."""

    role: Literal["user", "tool"] = "tool"

    def __init__(self, codec: PromptCodec, turns: int, tools: Mapping[str, Call]) -> None:
        super().__init__(codec, turns)
        self._tools = tools

    async def reply(self, text: str) -> Sequence[str]:
        try:
            calls = find_calls(text)
        except Unreadable as error:
            self.count(failed=True)
            return [f"The call cannot be read: {error}."]
        replies = list[str]()
        for name, arguments in calls[:MAX_CALLS]:
            tool, unknown = self._tools.get(name), f"There is no tool {clipped(name)}: {', '.join(self._tools)}."
            said, failed = await tool(arguments) if tool else (unknown, True)
            self.count(failed=failed)
            replies.append(said)
        if len(calls) > MAX_CALLS:
            replies[-1] += f"\nOf {len(calls)} calls in one turn the first {MAX_CALLS} were made."
        return replies


class PythonBlocks(Environment):
    """Runs the block of Python with which a turn ends, and replies with its output. Needs no tools in the template."""

    def __init__(self, codec: PromptCodec, turns: int, tool: Call) -> None:
        super().__init__(codec, turns)
        self._tool = tool

    async def reply(self, text: str) -> Sequence[str]:
        if (source := last_block(text)) is None:
            return ()
        said, failed = await self._tool({"code": source})
        self.count(failed=failed)
        return [f"Output:\n{said}\n\n{PYTHON_REPLY}"]


def last_block(text: str) -> str | None:
    """Return the Python block with which a text ends; None if it ends otherwise."""
    text = text.replace("\r\n", "\n").rstrip()
    for block in blocks(text)[-1:]:
        is_last = block.lines.stop > text.count("\n") and text.endswith(("```", "~~~"))
        if is_last and block.closed and block.language in PYTHON:
            return block.content
    return None


def python_tool(execute: Run, *, keeps: bool) -> Call:
    """Return the Python tool of one conversation, which replies with what a program prints and the error that ends it;
    if it ``keeps``, programs before it run first, but those that failed. Raises EnvironmentFailed if one is lost."""
    before = list[str]()

    async def run(arguments: Mapping[str, Any]) -> tuple[str, bool]:
        if not isinstance(source := arguments.get("code"), str):
            return "python takes the argument code, a text.", True
        said, call = await script_output(execute, [*before, source], MAX_OUTPUT)
        if call.status is CallStatus.LOST:
            raise EnvironmentFailed("the executor lost a call of the Python tool")
        if said is None:
            return f"The program ended without output: {call.error or call.status.value}.", True
        printed, error = said
        if keeps and not error:
            before.append(source)
        lines = [without_middle(printed, MAX_REPLY // 2).rstrip("\n"), without_middle(error, MAX_REPLY // 4)]
        return "\n".join(filter(None, lines)) or "The program printed nothing.", bool(error)

    return run
