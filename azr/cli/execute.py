"""``azr execute FILE.jsonl``: runs the programs of a file or a pipe in the sandbox, one result line per line.

Lines are read, run and answered as a stream: a bounded number is in flight, and answers are written in the
order of the lines as soon as all before them are.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, BinaryIO, get_args, get_type_hints

from azr.cli import json_lines
from azr.cli.json_lines import LineError
from azr.cli.options import Parser, seconds, whole
from azr.config import ExecutorConfig
from azr.errors import UserError
from azr.executor.pool import SandboxPool
from azr.executor.protocol import REPEATS

Lines = AsyncIterator[tuple[int, bytes | None]]
Answer = Callable[[int, bytes | None], Coroutine[Any, Any, str]]
"""The answer to a line, given its number and what stands there."""

_IN_FLIGHT = 32
"""Lines read ahead of the oldest unanswered one, per worker: enough to keep all busy behind one slow program."""
_DEFAULTS = ExecutorConfig()
_FAILURE = 1
_PIPE_CLOSED = 141
"""What a shell reports for a program that ended because its output is not read."""


def main(argv: Sequence[str]) -> int:
    """0: every line was answered; 1: reading or writing failed midway; 141: the reader left.

    Raises UserError for a user's mistake and KeyboardInterrupt on Ctrl-C.
    """
    options = parser().parse(argv)
    config = ExecutorConfig(
        backend=options.backend,
        workers=options.workers,
        wall_s=options.wall,
        memory_mb=options.memory_mb,
    )
    with _open(options.file) as source:
        try:
            asyncio.run(_execute(config, options.repeats, options.static_check, json_lines.read_lines(source.fileno())))
        except BrokenPipeError:
            return _PIPE_CLOSED
        except OSError as error:
            print(f"error: reading or writing failed: {error}", file=sys.stderr)
            return _FAILURE
    return 0


def parser() -> Parser:
    parser = Parser("execute", "Run the programs of a JSON-lines file in the sandbox and print one result per line.")
    parser.add_argument("file", metavar="FILE.jsonl", help="requests, or - for standard input")
    backends = get_args(get_type_hints(ExecutorConfig)["backend"])
    parser.add_argument("--backend", choices=backends, default=_DEFAULTS.backend, help="isolation of the programs")
    parser.add_argument(
        "--wall",
        type=seconds(0.01, 3600),
        default=_DEFAULTS.wall_s,
        metavar="S",
        help="time limit of a call, seconds",
    )
    parser.add_argument(
        "--memory-mb", type=whole(32, 2**20), default=_DEFAULTS.memory_mb, metavar="MB", help="memory limit, MiB"
    )
    parser.add_argument(
        "--repeats",
        type=whole(1, 64),
        default=REPEATS,
        metavar="N",
        help="runs in separate interpreters that must agree; 1 leaves determinism unchecked",
    )
    parser.add_argument(
        "--static-check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="refuse programs that name clocks, randomness, I/O or escape routes",
    )
    parser.add_argument(
        "--workers", type=whole(1, 256), default=_DEFAULTS.workers, metavar="N", help="programs that run at once"
    )
    return parser


def _open(name: str) -> BinaryIO:
    try:
        # Unbuffered: a descriptor is read directly, and what a buffer had read ahead would be missing there.
        return open(0, "rb", buffering=0, closefd=False) if name == "-" else open(name, "rb", buffering=0)
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}.") from error


async def _execute(config: ExecutorConfig, repeats: int, static_check: bool, lines: Lines) -> None:
    pool = SandboxPool(config, repeats=repeats)

    async def answer(number: int, line: bytes | None) -> str:
        try:
            asked = json_lines.parse(line)
        except LineError as error:
            return json_lines.refusal(number, error)
        result = await pool.execute(asked.request(repeats=repeats, static_check=static_check))
        return json_lines.answer(asked, result)

    try:
        await pool.start()
        print(f"programs run behind {pool.isolation}", file=sys.stderr)
        await answer_all(lines, answer, _IN_FLIGHT * config.workers)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        # Everything has its answer by now, or nothing waits for one any more.
        await pool.abort()


async def answer_all(lines: Lines, answer: Answer, in_flight: int, output: int = 1) -> None:
    """Answer the lines side by side, at most ``in_flight`` at once, and write the answers in their order.

    Raises an ExceptionGroup of what went wrong, once nothing is running any more.
    """
    waiting: asyncio.Queue[asyncio.Task[str] | None] = asyncio.Queue(in_flight)
    async with asyncio.TaskGroup() as group:

        async def ask() -> None:
            async for number, line in lines:
                await waiting.put(group.create_task(answer(number, line)))
            await waiting.put(None)

        group.create_task(ask())
        while (answering := await waiting.get()) is not None:
            await json_lines.write(output, (await answering).encode("ascii"))
