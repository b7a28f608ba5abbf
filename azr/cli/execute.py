"""``azr execute FILE.jsonl``: runs the programs of a file or a pipe in the sandbox, one result line per line.

Lines are read, run and answered as a stream: a bounded number is in flight, and answers are written in the
order of the lines as soon as all before them are. Nothing here blocks the event loop for long: while it stood still,
its own sandboxes would look silent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, NoReturn, get_args, get_type_hints

from azr.cli.options import Parser, number, whole
from azr.config import ExecutorConfig
from azr.errors import UserError, nearest
from azr.execution import MAX_INPUTS, CallStatus, ExecutionRequest, ExecutionResult
from azr.executor.pool import SandboxPool
from azr.executor.protocol import REPEATS

Lines = AsyncIterator[tuple[int, bytes | None]]
MAX_LINE_BYTES = 2**22
"""Longest line kept; it holds the longest request a pool accepts, escapes included."""
NONDETERMINISTIC = "nondeterministic"
"""Status of a request whose calls gave different outcomes in different interpreters."""
_KEYS = ("id", "program", "inputs")
_CHUNK_BYTES = 2**16
_IN_FLIGHT = 32
"""Lines read ahead of the oldest unanswered one, per worker: enough to keep all busy behind one slow program."""
_DEFAULTS = ExecutorConfig()
_PIPE_CLOSED = 141
"""Exit code that a shell reports for a program whose output is not read."""


def main(argv: Sequence[str]) -> int:
    """0: every line was answered; 1: reading or writing failed midway; 141: the reader left. Raises UserError for a
    user's mistake and KeyboardInterrupt on Ctrl-C."""
    options = parser().parse(argv)
    config = ExecutorConfig(
        backend=options.backend, workers=options.workers, wall_s=options.wall, memory_mb=options.memory_mb
    )
    with _open(options.file) as source:
        try:
            asyncio.run(_execute(config, options.repeats, options.static_check, read_lines(source.fileno())))
        except BrokenPipeError:
            return _PIPE_CLOSED
        except OSError as error:
            print(f"error: reading or writing failed: {error}", file=sys.stderr)
            return 1
    return 0


def parser() -> Parser:
    parser = Parser("execute", "Run the programs of a JSON-lines file in the sandbox and print one result per line.")
    parser.add_argument("file", metavar="FILE.jsonl", help="requests, or - for standard input")
    backends = get_args(get_type_hints(ExecutorConfig)["backend"])
    parser.add_argument("--backend", choices=backends, default=_DEFAULTS.backend, help="isolation of the programs")
    wall, memory, workers = _DEFAULTS.wall_s, _DEFAULTS.memory_mb, _DEFAULTS.workers
    seconds = number("a number of seconds from 0.01 to 3600", lambda value: 0.01 <= value <= 3600)
    parser.add_argument("--wall", type=seconds, default=wall, metavar="S", help="time limit of a call, seconds")
    parser.add_argument("--memory-mb", type=whole(32, 2**20), default=memory, metavar="MB", help="memory limit, MiB")
    agreeing = "runs in separate interpreters, which must agree; 1 does not check determinism"
    parser.add_argument("--repeats", type=whole(1, 64), default=REPEATS, metavar="N", help=agreeing)
    refused = "refuse programs that use clocks, randomness, I/O or escape routes"
    parser.add_argument("--static-check", action=argparse.BooleanOptionalAction, default=True, help=refused)
    parallel = "programs that run in parallel"
    parser.add_argument("--workers", type=whole(1, 256), default=workers, metavar="N", help=parallel)
    return parser


def _open(name: str) -> BinaryIO:
    try:
        # Unbuffered: a descriptor is read directly, and what a buffer had read ahead would be missing there.
        return open(0, "rb", buffering=0, closefd=False) if name == "-" else open(name, "rb", buffering=0)
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}.") from error


async def _execute(config: ExecutorConfig, repeats: int, static_check: bool, lines: Lines) -> None:
    pool = SandboxPool(config, repeats=repeats, answers=not static_check)

    async def reply(number: int, line: bytes | None) -> str:
        try:
            id_json, request = parse(line)
        except LineError as error:
            return refusal(number, error)
        result = await pool.execute(replace(request, repeats=repeats, static_check=static_check))
        return answer(id_json, result)

    try:
        await pool.start()
        print(f"programs run behind {pool.isolation}", file=sys.stderr)
        await answer_all(lines, reply, _IN_FLIGHT * config.workers)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        # Everything has its answer by now, or nothing waits for one any more.
        await pool.abort()


async def answer_all(
    lines: Lines, reply: Callable[[int, bytes | None], Coroutine[Any, Any, str]], in_flight: int, output: int = 1
) -> None:
    """Answer the lines side by side, at most ``in_flight`` at once, and write the answers in their order.

    ``reply``: the answer to a line, given its number and what stands there.
    Raises an ExceptionGroup of what went wrong, once nothing is running any more.
    """
    waiting: asyncio.Queue[asyncio.Task[str] | None] = asyncio.Queue(in_flight)
    async with asyncio.TaskGroup() as group:

        async def ask() -> None:
            async for number, line in lines:
                await waiting.put(group.create_task(reply(number, line)))
            await waiting.put(None)

        group.create_task(ask())
        while (answering := await waiting.get()) is not None:
            await write(output, (await answering).encode("ascii"))


async def read_lines(descriptor: int) -> AsyncIterator[tuple[int, bytes | None]]:
    """Each line as soon as it is there, with its number from 1; None stands for one beyond ``MAX_LINE_BYTES``. A last
    line need not end in a newline. Raises OSError as reading does."""
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


def parse(line: bytes | None) -> tuple[str, ExecutionRequest]:
    """Return the id of a line as JSON text, for it is only ever echoed, and its request; None stands for a line that
    was too long to keep. Raises LineError."""
    message = _object(line)
    if "id" not in message:
        raise LineError("the key 'id' is missing")
    id_json = json.dumps(message["id"])
    try:
        _check(message)
    except LineError as error:
        error.id_json = id_json
        raise
    return id_json, ExecutionRequest(program=message["program"], inputs=tuple(message["inputs"]))


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
            close = nearest(key, _KEYS)
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
    """One word for a request: the first of these that holds. ``rejected`` when the static check refused the program;
    ``nondeterministic`` when repeats disagreed; the status of the first call that is not ``ok``; ``ok``."""
    if result.static_check:
        return CallStatus.REJECTED.value
    if result.deterministic is False:
        return NONDETERMINISTIC
    return next((output.status for output in result.outputs if output.status is not CallStatus.OK), CallStatus.OK).value


def answer(id_json: str, result: ExecutionResult) -> str:
    outputs = [
        {"status": each.status.value, "value": each.value, "error": each.error, "wall_s": round(each.wall_s, 6)}
        for each in result.outputs
    ]
    rest = {"deterministic": result.deterministic, "static_check": list(result.static_check)}
    return _line(id_json, status=status(result), outputs=outputs, **rest)


def refusal(number: int, error: LineError) -> str:
    """The result line of line ``number``, which is no request: the same keys, and which line and why."""
    rest: dict[str, Any] = {"outputs": [], "deterministic": None, "static_check": [], "line": number}
    return _line(error.id_json, status=CallStatus.REJECTED.value, **rest, error=str(error))


def _line(id_json: str, **rest: Any) -> str:
    # The id is put in as text: it may be nested as deep as a parser allows, which is deeper than a writer does.
    return f'{{"id": {id_json}, {json.dumps(rest)[1:]}\n'
