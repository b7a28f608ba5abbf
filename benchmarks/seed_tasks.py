"""What becomes of the 3,200 tasks that real base models proposed for the original system, and why.

python -m benchmarks.seed_tasks [FILE] [--all]

Every row goes through the checks that a seed file goes through, real sandbox included. FILE is
``azr_seed_tasks.jsonl.gz`` of the folder that AZR_DATA names, or of ``shared/data`` beside the clone, unless given.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from azr import values
from azr.config import ExecutorConfig
from azr.execution import CallStatus, ExecutionRequest, ExecutionResult
from azr.executor.pool import SandboxPool
from azr.records import Task
from azr.selfplay.seeds import read_seeds, seed_proposal
from azr.tasks.base import RejectReason, Run
from azr.tasks.inputs import read_input
from azr.tasks.registry import KINDS

FILE = "azr_seed_tasks.jsonl.gz"
EXECUTOR = ExecutorConfig(workers=2, wall_s=10.0)
"""Time enough on a busy machine for whatever ends at all."""
SHORTENED = 403
"""Characters of a recorded output that was longer than 400: the first 200, three dots, the last 200."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A row and what became of it."""

    line: int
    """From 1."""
    stated: Task
    outcome: Task | RejectReason
    request: ExecutionRequest | None
    """The last that was run: its program, or the evaluation of its inputs. None when it was refused before."""
    result: ExecutionResult | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why rows are refused."""

    what: str
    example: str
    why: str
    """Why a person would refuse them too."""
    holds: Callable[[Checked], bool]


def _says(*words: str) -> Callable[[Checked], bool]:
    """Whether the reasons of the static check, or of a call that failed, hold one of these."""

    def holds(row: Checked) -> bool:
        if row.result is None:
            return False
        said = [*row.result.static_check, *(call.error or "" for call in row.result.outputs)]
        return any(word in each for word in words for each in said)

    return holds


def _ended(*statuses: CallStatus) -> Callable[[Checked], bool]:
    return lambda row: row.result is not None and any(call.status in statuses for call in row.result.outputs)


def _no_input(word: str) -> Callable[[Checked], bool]:
    return lambda row: any(word in text for text in row.stated.inputs if read_input(text, row.stated.program) is None)


def _is(reason: RejectReason, ran: bool) -> Callable[[Checked], bool]:
    return lambda row: row.outcome is reason and (row.result is not None) is ran


def _object_as_input(row: Checked) -> bool:
    evaluating = row.request is not None and row.request.program != row.stated.program
    return evaluating and _says("is not plain data")(row)


REFUSALS = (
    Refusal(
        "imports a package", "`import numpy as np`, `from sympy import isprime`",
        "no sandbox has it; the prompt names the modules that a program may import",
        _says(*(f"imports {name}" for name in ("numpy", "sympy", "cv2"))),
    ),
    Refusal(
        "imports os, sys, timeit or secrets", "`secrets.randbelow(n)`, `sys.maxsize`, `os.path.isfile(name)`",
        "randomness, the interpreter, files, a clock; five only import it, but a rule with exceptions is hard to learn",
        _says("imports os", "imports sys", "imports timeit", "imports secrets"),
    ),
    Refusal(
        "imports queue", "`q = queue.Queue()`",
        "made for threads, and holds a clock (`queue.time`); `collections.deque` and `heapq` are offered",
        _says("imports queue"),
    ),
    Refusal(
        "uses open or eval", "`return eval(s)`", "a file; text that becomes code", _says("uses open", "uses eval")
    ),
    Refusal(
        "is not deterministic", "`''.join(set(text))`, `f'{reversed(text)}'`",
        "runs disagree: the order of a set of strings, the address of an object",
        _is(RejectReason.NON_DETERMINISTIC, True),
    ),
    Refusal(
        "an input is not plain data", "`range(1, 10)`, `[TreeNode(1), TreeNode(2)]`",
        "no literal states it, so no solver could be shown or give it; `list(range(1, 10))` passes",
        _object_as_input,
    ),
    Refusal(
        "returns no plain data", "`return reversed(s)`, a program that is cut off and returns `...`, `Counter(words)`",
        "no literal states it, so no answer could be compared with it",
        _says("is not plain data"),
    ),
    Refusal(
        "returns too much or takes too long", "all primes below 100,000",
        "more than 64 KiB, 32,768 values or the time limit: no solver could write it down",
        _ended(CallStatus.OUTPUT_TOO_LARGE, CallStatus.TIMEOUT, CallStatus.MEMORY),
    ),
    Refusal(
        "raises an exception", "`StopIteration`", "has no output; the error kind takes such programs",
        _ended(CallStatus.RAISED),
    ),
    Refusal("an input holds a lambda", "`{'add': lambda x, y: x + y}`", "code, not data", _no_input("lambda")),
    Refusal(
        "an input leaves something out", "`[11, 12, 13, ..., 20]`", "in Python that is a list with an Ellipsis",
        _no_input("..."),
    ),
    Refusal(
        "fewer than half of the inputs differ", "ten times `'aeiou'`, or ten texts that the program maps to `[]` first",
        "the solver is shown half of them with their outputs: the answers of the other half",
        lambda row: row.outcome is RejectReason.MALFORMED,
    ),
    Refusal(
        "the message states the program", "`Here's the function code: def f(n: int): …`", "nothing is left to find out",
        _is(RejectReason.NOT_ALLOWED, False),
    ),
    Refusal(
        "the message is longer than 4,000 characters", "33,072 characters", "no hint; and it would not fit the prompt",
        _is(RejectReason.TOO_LARGE, False),
    ),
)  # fmt: skip
"""The first that holds is the reason."""


def default_file() -> Path:
    """Where the data set lies unless it is named."""
    return Path(os.environ.get("AZR_DATA") or Path(__file__).parents[2] / "shared" / "data") / FILE


def rows(path: Path) -> list[tuple[int, Task]]:
    """Line numbers and tasks; of the kinds with one call, deduction stands for all."""
    lines = read_seeds(path, kinds=("deduction",))
    assert not [reason for _, reason in lines if isinstance(reason, str)]
    return [(line, task) for line, task in lines if isinstance(task, Task)]


async def check(stated: Sequence[tuple[int, Task]], run: Run) -> list[Checked]:
    """Validates every row as a seed."""
    return list(await asyncio.gather(*(_check(line, task, run) for line, task in stated)))


async def _check(line: int, stated: Task, run: Run) -> Checked:
    ran: list[tuple[ExecutionRequest, ExecutionResult]] = []

    async def remember(request: ExecutionRequest) -> ExecutionResult:
        ran.append((request, await run(request)))
        return ran[-1][1]

    outcome = await KINDS[stated.kind].validate(seed_proposal(stated), remember)
    request, result = ran[-1] if ran else (None, None)
    return Checked(line, stated, outcome, request, result)


def refusal(row: Checked) -> Refusal | None:
    """Why a row is refused; None when no reason of the list holds."""
    return next((each for each in REFUSALS if each.holds(row)), None)


def deviations(row: Checked) -> list[str]:
    """Recorded outputs that the program does not return: of an admitted row, and only where there is a difference."""
    assert isinstance(row.outcome, Task)
    found = [values.parse(text) for text in row.outcome.outputs]
    if len(row.outcome.inputs) < len(row.stated.inputs):
        # Repeats were dropped, so the recorded outputs are those of more calls.
        return [text for text in row.stated.outputs if not any(_equals(text, value) for value in found)]
    pairs = zip(row.stated.outputs, found, strict=True)
    return [text for text, value in pairs if not _equals(text, value)]


def _equals(text: str, value: object) -> bool:
    try:
        return values.equal(values.parse(text), value)
    except values.PlainDataError:
        return False


def deviation(text: str) -> str:
    """What is the matter with a recorded output."""
    if not text:
        return "nothing recorded: the program keeps state on the function object itself"
    if len(text) == SHORTENED and text[200:203] == "...":
        return "the record holds only the first and the last 200 characters"
    return "the record repeats the text of the input, `dict(a=1, b=2)`, which the program returns as a value"


def table(checked: Sequence[Checked]) -> str:
    """What the documentation shows: rows admitted and refused, with reasons and lines to look at."""
    refused = [row for row in checked if isinstance(row.outcome, RejectReason)]
    admitted = len(checked) - len(refused)
    lines = [
        f"| {len(checked):,} tasks: {admitted:,} admitted ({admitted / len(checked):.1%}), {len(refused)} refused "
        "| tasks | for example | why | lines |",
        "|---|---|---|---|---|",
    ]
    by_reason = {each: [row.line for row in refused if refusal(row) is each] for each in REFUSALS}
    for each, found in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        if found:
            shown = ", ".join(map(str, found[:3])) + (", …" if len(found) > 3 else "")
            lines.append(f"| {each.what} | {len(found)} | {each.example} | {each.why} | {shown} |")
    unexplained = [row.line for row in refused if refusal(row) is None]
    if unexplained:
        lines.append(f"| unexplained | {len(unexplained)} | | | {', '.join(map(str, unexplained))} |")
    return "\n".join(lines)


def deviation_table(checked: Sequence[Checked]) -> str:
    """Admitted rows whose recorded outputs are not what their programs return."""
    lines: dict[str, list[int]] = {}
    for row in checked:
        if isinstance(row.outcome, Task) and (differing := deviations(row)):
            lines.setdefault(deviation(differing[0]), []).append(row.line)
    shown = sorted(lines.items(), key=lambda item: -len(item[1]))
    head = f"| {sum(map(len, lines.values()))} admitted tasks with another output than recorded | tasks | lines |"
    body = [f"| {why} | {len(at)} | {', '.join(map(str, at[:3]))}, … |" for why, at in shown]
    return "\n".join([head, "|---|---|---|", *body])


async def main(path: Path, show_all: bool) -> None:
    """Prints both tables, and with ``show_all`` every refused row."""
    started = time.perf_counter()
    async with SandboxPool(EXECUTOR, seed=0) as pool:
        checked = await check(rows(path), pool.execute)
    print(f"{table(checked)}\n\n{deviation_table(checked)}\n\n{time.perf_counter() - started:.0f} s")
    for row in checked if show_all else ():
        if isinstance(row.outcome, RejectReason):
            found = refusal(row)
            print(f"line {row.line}: {row.outcome} ({found.what if found else 'unexplained'})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What becomes of the seed tasks of the original system.")
    parser.add_argument("file", type=Path, nargs="?", default=default_file())
    parser.add_argument("--all", action="store_true", help="list every refused row")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.file, arguments.all))
