"""Read and check seed files: tasks that a run starts from, one JSON object a line as in its ``tasks.jsonl``.

The files of the Absolute Zero authors' code are read too. The outputs in a file are not trusted: every program runs in
the sandbox, and the outputs that it returns are stored.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from azr import values
from azr.concurrency import gather
from azr.errors import UserError, did_you_mean
from azr.execution import MAX_INPUTS, CallStatus, ExecutionRequest, ExecutionResult
from azr.files import atomic_write
from azr.records import Task
from azr.selfplay.buffer import TaskBuffer
from azr.tasks.base import Proposal, RejectReason, Run
from azr.tasks.registry import KINDS, Induction, SingleCallKind
from azr.text import clipped, parse_object

BROKEN = "broken"
"""Reason for a line that states no task."""
NOT_PLAYED = "not_played"
"""Reason for a task of a kind that the run does not play."""
_IN_FLIGHT = 256
"""Tasks whose programs wait for the sandbox at once, so that no call reaches its deadline."""
_IN_A_ROW = 64
"""Tasks that enter the buffer before other coroutines get a turn."""
_OPTIONAL = {"id": "", "outputs": (), "fingerprint": ""}
"""Defaults of fields that are ignored, or only compared with the sandbox's results."""
_NOT_SHOWN = {
    RejectReason.TOO_LARGE: "a prompt that shows it is longer than rollout.max_prompt_tokens",
    RejectReason.NOT_ALLOWED: "its text holds control tokens of the model",
}


MOST_BYTES = 2**30
"""Longest file of tasks, unpacked: a few megabytes of gzip can hold far more."""
SeedLine = tuple[int, Task | str]
"""A task of a file, or in a few words why there is none, with the number of its line, from 1."""


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their numbers from 1; unpack ``.gz``. Raises UserError."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): give a file of tasks, one JSON "
            "object a line."
        ) from error
    if len(data) > MOST_BYTES:
        raise UserError(f"{path} holds over {MOST_BYTES >> 30} GiB of text: split it, or take another file of tasks.")
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield number, line


SINGLE_CALL_KINDS = ("deduction", "abduction")
"""Kinds of a record with one call: the authors' code starts both from the same records."""


class _Program(msgspec.Struct, kw_only=True):
    """A line of the Absolute Zero authors' seed files."""

    snippet: str
    imports: list[str] = []


class _OneCall(_Program, kw_only=True):
    input: str
    output: str


class _ManyCalls(_Program, kw_only=True):
    inputs: list[str]
    outputs: list[str]
    message: str


def read_seeds(path: Path, kinds: Sequence[str] = SINGLE_CALL_KINDS) -> list[SeedLine]:
    """Return the tasks of a file and its broken lines. A line is one of a run's `tasks.jsonl`, or a record of the
    authors' files: one call is a task of each of ``kinds``, many calls with a message are an induction.

    Raises UserError if the file cannot be read or states no task.
    """
    lines: list[SeedLine] = []
    for number, line in read_lines(path):
        try:
            record, id = parse_object(line), f"seed-{number:06d}"
            if "snippet" in record:
                stated = [replace(task, id=f"{id}-{task.kind}") for task in _authors_tasks(record, kinds)]
            else:
                # Another run's ids would mix with those of this run's own tasks.
                own = msgspec.convert({**_OPTIONAL, **record}, Task)
                stated = [replace(own, id=id, parents=(), step=0, solve_rate=None)]
            for task in stated:
                _check_stated(task)
            lines += [(number, task) for task in stated]
        except msgspec.ValidationError as error:
            what = "record of a seed" if "snippet" in record else "task"
            lines.append((number, f"the line is not a {what}: {error}"))
        except ValueError as error:
            lines.append((number, str(error)))
    if not any(isinstance(task, Task) for _, task in lines):
        first = f"line {lines[0][0]}: {lines[0][1]}" if lines else "it is empty"
        raise UserError(
            f"{path} holds no task ({first}): give a run's tasks.jsonl, or a seed file of the Absolute Zero authors."
        )
    return lines


def _authors_tasks(record: Mapping[str, Any], kinds: Sequence[str]) -> Iterator[Task]:
    """Raises `msgspec.ValidationError`."""
    is_many = "inputs" in record
    stated = msgspec.convert(record, _ManyCalls) if is_many else msgspec.convert(record, _OneCall)
    present = set(stated.snippet.splitlines())
    missing = [line for line in dict.fromkeys(stated.imports) if line not in present]
    program = "\n".join([*missing, stated.snippet])
    if isinstance(stated, _ManyCalls):
        inputs, outputs = tuple(stated.inputs), tuple(stated.outputs)
        kinds, message = [Induction.name], stated.message
    else:
        inputs, outputs, message = (stated.input,), (stated.output,), ""
    for kind in kinds:
        yield Task(id="", kind=kind, program=program, inputs=inputs, outputs=outputs, fingerprint="", message=message)


def _check_stated(task: Task) -> None:
    """Raise ValueError with a few words if a task cannot be one of its kind."""
    try:
        task.message.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the message holds half of a character, which no prompt can") from error
    if task.kind not in KINDS:
        raise ValueError(f"there is no task kind {clipped(task.kind)!r}{did_you_mean(task.kind, KINDS)}")
    kind = KINDS[task.kind]
    if not isinstance(kind, (SingleCallKind, Induction)):  # an own one, which alone knows what its tasks hold
        try:
            kind.proposal(task)
        except Exception as error:
            raise ValueError(f"it is not a task of kind {task.kind} ({type(error).__name__}: {error})") from error
        return
    if not 1 <= len(task.inputs) <= MAX_INPUTS:
        raise ValueError(f"a task has 1 to {MAX_INPUTS} inputs, not {len(task.inputs)}")
    if sum(section.label == "input" for section in kind.proposal(task)) != len(task.inputs):
        raise ValueError(f"a task of kind {task.kind} has one input, not {len(task.inputs)}")


async def check_seeds(
    lines: Sequence[SeedLine],
    buffer: TaskBuffer,
    run: Run,
    reject: Callable[[Task], RejectReason | None],
) -> tuple[list[Task], list[dict[str, Any]], int]:
    """Check the tasks of a file as if a proposer had just written them, and add those that pass to the buffer in their
    order.

    Returns the accepted tasks; of every rejected line ``line``, ``reason`` (a `RejectReason`, `BROKEN` or `NOT_PLAYED`)
    and ``detail``, a few words; and how many accepted tasks had stated other outputs than those that their programs
    returned and that are stored.

    ``reject``: why a task that ran may not be shown in prompts, or None.
    """
    kinds = buffer.sizes()
    played = [(line, task) for line, task in lines if isinstance(task, Task) and task.kind in kinds]
    turn = asyncio.Semaphore(_IN_FLIGHT)

    async def check(task: Task) -> Task | tuple[RejectReason, str]:
        async with turn:
            return await _check(task, run, reject)

    outcomes = await gather(*(check(task) for _, task in played))
    for i, outcome in enumerate(outcomes):
        if isinstance(outcome, tuple) and outcome[1].startswith(CallStatus.TIMEOUT):
            # Once more with nothing beside it: all sandboxes at once make a machine so busy that it may be to blame.
            outcomes[i] = await check(played[i][1])
    tasks: list[Task] = []
    refused: list[dict[str, Any]] = []
    num_changed = 0
    stored: dict[tuple[str, str], int] = {}
    """Lines of stored tasks, by kind and fingerprint."""
    for count, ((line, task), outcome) in enumerate(zip(played, outcomes, strict=True)):
        if count % _IN_A_ROW == 0:
            await asyncio.sleep(0)  # others have their turn
        if isinstance(outcome, Task):
            reason = buffer.reject_reason(outcome)
            if reason is None:
                buffer.add(outcome)
                stored[outcome.kind, outcome.fingerprint] = line
                tasks.append(outcome)
                num_changed += not _agree(task.outputs, outcome.outputs)
                continue
            detail = "equal to a task that is there already or to a worked example"
            if reason is RejectReason.IN_BENCHMARK:
                detail = "its program is one of the held-out exam, or the same up to constants"
            elif first := stored.get((outcome.kind, outcome.fingerprint)):
                detail = f"equal to the task of line {first}"
            outcome = reason, detail
        refused.append({"line": line, "reason": str(outcome[0]), "detail": outcome[1]})
    for line, stated in lines:
        if not isinstance(stated, Task):
            refused.append({"line": line, "reason": BROKEN, "detail": stated})
        elif stated.kind not in kinds:
            detail = f"{stated.kind} is not among selfplay.kinds"
            refused.append({"line": line, "reason": NOT_PLAYED, "detail": detail})
    return tasks, sorted(refused, key=itemgetter("line")), num_changed


def seed_proposal(task: Task) -> Proposal:
    """Return the proposal of a task of a file. An induction is about its own program and keeps its inputs, half of
    which may be repeats."""
    sections, count = KINDS[task.kind].proposal(task), max(2, len(task.inputs))
    counts = {"induction_inputs": count, "fewest_induction_inputs": max(2, count // 2)}
    return Proposal(id=task.id, sections=sections, references=(task,), **counts)


async def _check(
    task: Task, run: Run, reject: Callable[[Task], RejectReason | None]
) -> Task | tuple[RejectReason, str]:
    """Return the task to be stored, or why it is rejected."""
    ran: list[ExecutionResult] = []

    async def remember(request: ExecutionRequest) -> ExecutionResult:
        ran.append(await run(request))
        return ran[-1]

    outcome = await KINDS[task.kind].validate(seed_proposal(task), remember)
    if isinstance(outcome, RejectReason):
        return outcome, _detail(outcome, ran[-1] if ran else None)
    if reason := reject(outcome):
        return reason, _NOT_SHOWN.get(reason, str(reason))
    return replace(outcome, parents=())


def _detail(reason: RejectReason, result: ExecutionResult | None) -> str:
    if result is None or reason is RejectReason.MALFORMED:
        return {
            RejectReason.MALFORMED: "no function f with a parameter, or inputs that are not values or mostly repeats",
            RejectReason.TOO_LARGE: "the program or the message is too long",
            RejectReason.NOT_ALLOWED: "the message states the program",
        }.get(reason, str(reason))
    if result.static_check:
        return "; ".join(result.static_check)
    if result.deterministic is False:
        return "its runs gave different results"
    ended = next((call for call in result.outputs if call.status is not CallStatus.OK), result.outputs[0])
    return f"{ended.status}: {ended.error}" if ended.error else str(ended.status)


def _agree(stated: Sequence[str], found: Sequence[str]) -> bool:
    """Whether outputs equal the stated ones; without stated outputs they do."""
    if stated == found or not stated:
        return True
    try:
        return values.equal([*map(values.parse, stated)], [*map(values.parse, found)])
    except values.PlainDataError:
        return False


def write_lines(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    """Write JSON lines; the file appears under its name when it is complete. Raises OSError."""
    with atomic_write(path) as staging, staging.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def reasons(refused: Sequence[Mapping[str, Any]]) -> str:
    """Return ``3 duplicate, 1 failed``, the most frequent first; empty if nothing was rejected."""
    return ", ".join(f"{n} {reason}" for reason, n in Counter(each["reason"] for each in refused).most_common())


def seeds_line(
    path: Path, num_passed: int, refused: Sequence[Mapping[str, Any]], num_changed: int, refused_file: Path
) -> str:
    """Return a summary of what `check_seeds` returned; ``refused_file`` holds the rejected lines."""
    changed = f", {num_changed} with another output than stated" if num_changed else ""
    why = f"; refused {reasons(refused)}, see {refused_file}" if refused else ""
    return f"seeds: {num_passed} of {num_passed + len(refused)} tasks of {path} pass{changed}{why}"
