"""Run the programs of a JSON-lines file in the sandbox and print one result per line, in the order of the lines."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from io import FileIO
from select import select
from typing import Annotated, Any

import msgspec

import azr
from azr.cli.options import Parser, number, whole
from azr.concurrency import task_group
from azr.config import ExecutorConfig
from azr.errors import UserError
from azr.execution import MAX_INPUTS, CallStatus, ExecutionRequest
from azr.executor import backends, protocol
from azr.text import parse_object

Inputs = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_INPUTS)]
Line: Any = msgspec.defstruct("Line", [("id", Any), ("program", str), ("inputs", Inputs)], forbid_unknown_fields=True)


def main(argv: Sequence[str]) -> int:
    options = vars(parser().parse(argv))
    file, checks = options.pop("file"), {name: options.pop(name) for name in ("repeats", "static_check")}
    try:
        source = FileIO(0 if file == "-" else file, closefd=file != "-")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from error
    asyncio.run(_execute(source, ExecutorConfig(**options), checks))
    return 0


def parser() -> Parser:
    parser = Parser("execute", __doc__)
    default, add = ExecutorConfig(), parser.add_argument
    seconds = number("a number of seconds from 0.01 to 3600", lambda value: 0.01 <= value <= 3600)
    add("file", metavar="FILE.jsonl", help="requests, or - for standard input")
    add("--backend", choices=("auto", *backends.BACKENDS), default=default.backend, help="isolation of the programs")
    add("--wall", dest="wall_s", type=seconds, default=default.wall_s, metavar="S", help="time limit of a call")
    add("--memory-mb", type=whole(32, 2**20), default=default.memory_mb, metavar="MB", help="memory limit, MiB")
    add("--repeats", type=whole(1, 64), default=protocol.REPEATS, metavar="N", help="separate runs, which must agree")
    add("--static-check", action=argparse.BooleanOptionalAction, default=True, help="refuse clocks, randomness and I/O")
    add("--workers", type=whole(1, 256), default=default.workers, metavar="N", help="programs that run in parallel")
    return parser


async def _execute(source: FileIO, config: ExecutorConfig, checks: dict[str, Any]) -> None:
    async def start_all(number: int = 0, rest: bytes = b"", chunk: bytes | None = b"...") -> None:
        while chunk:
            if (await asyncio.to_thread(select, [source], [], [], 0.5))[0]:  # Ctrl-C waits for this thread
                chunk = source.read(2**16)
                *lines, rest = (rest + (chunk or b"\n" * bool(rest))).split(b"\n")
                for line in lines:
                    number += 1
                    await results.put(group.create_task(_answer(pool, line, number, checks)))
        await results.put(None)

    results: asyncio.Queue[asyncio.Task[str] | None] = asyncio.Queue(32 * config.workers)
    pool = azr.SandboxPool(config, repeats=checks["repeats"], answers=not checks["static_check"])
    async with pool, task_group() as group:
        print(f"programs run behind {pool.isolation}", file=sys.stderr)
        group.create_task(start_all())
        while (result := await results.get()) is not None:
            await asyncio.to_thread(print, await result, flush=True)  # a slow reader must not stop the loop


async def _answer(pool: azr.SandboxPool, line: bytes, number: int, checks: dict[str, Any]) -> str:
    message = dict[str, Any]()
    try:
        message = parse_object(line)
        asked = msgspec.convert(message, Line)
    except ValueError as error:
        id = message.get("id")
        refused = {"outputs": (), "deterministic": None, "static_check": (), "line": number, "error": str(error)}
        return json.dumps({"id": id, "status": CallStatus.REJECTED, **refused})
    result = await pool.execute(ExecutionRequest(program=asked.program, inputs=asked.inputs, **checks))
    failures = (call.status for call in result.outputs if call.status is not CallStatus.OK)
    status = "nondeterministic" if result.deterministic is False else next(failures, CallStatus.OK)
    outputs = [
        {"status": call.status, "value": call.value, "error": call.error, "wall_s": round(call.wall_s, 6)}
        for call in result.outputs
    ]
    checked = {"deterministic": result.deterministic, "static_check": result.static_check}
    return json.dumps({"id": asked.id, "status": status, "outputs": outputs, **checked})
