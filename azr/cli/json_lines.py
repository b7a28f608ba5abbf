"""The lines of ``azr execute``: read from a descriptor, understood as requests, answered, written to a descriptor.

Nothing here blocks the event loop for long: while it stood still, its own sandboxes would look silent.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from azr.errors import nearest
from azr.execution import MAX_INPUTS, CallStatus, ExecutionRequest, ExecutionResult

MAX_LINE_BYTES = 2**22
"""Longest line kept; it holds the longest request a pool accepts, escapes included."""
NONDETERMINISTIC = "nondeterministic"
"""What a request is when its calls gave different outcomes in different interpreters."""
_KEYS = ("id", "program", "inputs")
_CHUNK_BYTES = 2**16
_DECIMALS = 6


async def read_lines(descriptor: int) -> AsyncIterator[tuple[int, bytes | None]]:
    """Each line as soon as it is there, with its number from 1; None stands for one beyond ``MAX_LINE_BYTES``.

    A last line need not end in a newline. Raises OSError as reading does.
    """
    loop = asyncio.get_running_loop()
    number, start, too_long = 1, bytearray(), False
    while True:
        await _ready(descriptor, loop.add_reader, loop.remove_reader)
        if not (chunk := os.read(descriptor, _CHUNK_BYTES)):
            break
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield number, None if too_long or len(start) + len(end) > MAX_LINE_BYTES else bytes(start + end)
            number, start, too_long = number + 1, bytearray(), False
        start += rest
        if len(start) > MAX_LINE_BYTES:
            start, too_long = bytearray(), True
    if start or too_long:
        yield number, None if too_long else bytes(start)


async def write(descriptor: int, data: bytes) -> None:
    """Write all of it. Raises BrokenPipeError when the reader has closed the pipe."""
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        await _ready(descriptor, loop.add_writer, loop.remove_writer)
        # A pipe that is ready takes this much at once; more might block.
        rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]


async def _ready(descriptor: int, watch: Callable[..., None], unwatch: Callable[[int], bool]) -> None:
    ready = asyncio.Event()
    try:
        watch(descriptor, ready.set)
    except PermissionError:
        return  # A file or a device that is always ready: the kernel does not watch those.
    try:
        await ready.wait()
    finally:
        unwatch(descriptor)


class LineError(Exception):
    """A line that is no request; the message says why, without a full stop."""

    id_json = "null"
    """The line's id as far as it could be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLine:
    """What a well-formed line asks for."""

    id_json: str
    """The id as JSON text: it is only ever echoed."""
    program: str
    inputs: tuple[str, ...]

    def request(self, *, repeats: int, static_check: bool) -> ExecutionRequest:
        return ExecutionRequest(program=self.program, inputs=self.inputs, repeats=repeats, static_check=static_check)


def parse(line: bytes | None) -> RequestLine:
    """The request in a line; None stands for one that was too long to keep. Raises LineError."""
    message = _object(line)
    if "id" not in message:
        raise LineError("the key 'id' is missing")
    id_json = json.dumps(message["id"])
    try:
        _check(message)
    except LineError as error:
        error.id_json = id_json
        raise
    return RequestLine(id_json=id_json, program=message["program"], inputs=tuple(message["inputs"]))


def _object(line: bytes | None) -> dict[str, Any]:
    if line is None:
        raise LineError(f"the line is longer than {MAX_LINE_BYTES} bytes")
    if not line.strip():
        raise LineError("the line is empty")
    try:
        # A byte order mark begins a file, and a line where files were joined.
        text = line.decode("utf-8-sig")
        message = json.loads(text, object_pairs_hook=_without_doubles, parse_float=_finite, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise LineError("the line is not UTF-8") from error
    except RecursionError as error:
        raise LineError("the JSON is nested too deep") from error
    except json.JSONDecodeError as error:
        raise LineError(f"the line is not JSON: {error.msg} (column {error.colno})") from error
    except ValueError as error:
        raise LineError(f"the line is not JSON: {error}") from error
    if type(message) is not dict:
        raise LineError(f"the line is not a JSON object with the keys {', '.join(_KEYS)}")
    return message


def _check(message: dict[str, Any]) -> None:
    for key in message:
        if key not in _KEYS:
            close = nearest(key, _KEYS, least=0.6)
            hint = f"did you mean {close!r}?" if close else f"a line has {', '.join(_KEYS)} and nothing else"
            raise LineError(f"there is no key {key[:60]!r}; {hint}")
    if type(message.get("program")) is not str:
        raise LineError("the key 'program' must hold the program's text")
    inputs = message.get("inputs")
    if type(inputs) is not list or not all(type(text) is str for text in inputs):
        raise LineError("the key 'inputs' must hold a list of argument texts")
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise LineError(f"a program is called with 1 to {MAX_INPUTS} inputs, not {len(inputs)}")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    message = dict(pairs)
    if len(message) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return message


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def status(result: ExecutionResult) -> str:
    """One word for a request: the first of these that holds.

    ``rejected`` when the static check refused the program; ``nondeterministic`` when repeats disagreed; the status of
    the first call that is not ``ok``; ``ok``.
    """
    if result.static_check:
        return CallStatus.REJECTED.value
    if result.deterministic is False:
        return NONDETERMINISTIC
    return next((output.status for output in result.outputs if output.status is not CallStatus.OK), CallStatus.OK).value


def answer(line: RequestLine, result: ExecutionResult) -> str:
    """The result line of a request."""
    outputs = [
        {
            "status": output.status.value,
            "value": output.value,
            "error": output.error,
            "wall_s": round(output.wall_s, _DECIMALS),
        }
        for output in result.outputs
    ]
    return _line(line.id_json, status(result), outputs, result.deterministic, list(result.static_check))


def refusal(number: int, error: LineError) -> str:
    """The result line of line ``number``, which is no request: the same keys, and which line and why."""
    return _line(error.id_json, CallStatus.REJECTED.value, [], None, [], line=number, error=str(error))


def _line(
    id_json: str,
    status: str,
    outputs: list[dict[str, Any]],
    deterministic: bool | None,
    static_check: list[str],
    **more: Any,
) -> str:
    rest = {"status": status, "outputs": outputs, "deterministic": deterministic, "static_check": static_check, **more}
    # The id is put in as text: it may be nested as deep as a parser allows, which is deeper than a writer does.
    return f'{{"id": {id_json}, {json.dumps(rest)[1:]}\n'
