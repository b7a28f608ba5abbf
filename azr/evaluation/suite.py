"""A suite of held-out tasks, such as the exam in ``data/exam``: they grade a model, and no run may train on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from azr.errors import UserError
from azr.records import Task
from azr.tasks.normalize import fingerprint
from azr.tasks.registry import KINDS


@dataclass(frozen=True, slots=True)
class BenchmarkTask:
    """One task of a suite."""

    difficulty: str
    """How hard it is, in a word."""
    task: Task


def program_fingerprint(task: Task) -> str:
    """What all tasks about one program share, whatever their kind and inputs."""
    return fingerprint(task.program)


def write_suite(folder: Path, benchmark: Iterable[BenchmarkTask]) -> None:
    """Writes ``<kind>.jsonl`` for every kind, one task a line, in the order given."""
    lines: dict[str, list[str]] = {}
    for each in benchmark:
        task = each.task
        record = {"id": task.id, "difficulty": each.difficulty, "program": task.program, "inputs": task.inputs}
        record |= {"outputs": task.outputs, "message": task.message, "fingerprint": program_fingerprint(task)}
        lines.setdefault(task.kind, []).append(json.dumps(record) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for kind, of_kind in lines.items():
        (folder / f"{kind}.jsonl").write_text("".join(of_kind))


def read_suite(folder: Path) -> tuple[BenchmarkTask, ...]:
    """The tasks of every registered kind that the folder has a file for, in the order of the registry.

    Raises:
        UserError: there is no file, or a line of one is no task.
    """
    files = {kind: path for kind in KINDS if (path := folder / f"{kind}.jsonl").is_file()}
    if not files:
        raise UserError(
            f"There is no exam in {folder}: give the folder that holds files such as {next(iter(KINDS))}.jsonl."
        )
    return tuple(
        _read_line(kind, line, f"{path}, line {number}")
        for kind, path in files.items()
        for number, line in enumerate(path.read_text().splitlines(), 1)
    )


def _read_line(kind: str, line: str, place: str) -> BenchmarkTask:
    try:
        record = json.loads(line)
        task = Task(
            id=record["id"],
            kind=kind,
            program=record["program"],
            inputs=tuple(record["inputs"]),
            outputs=tuple(record["outputs"]),
            fingerprint=record["fingerprint"],
            message=record["message"],
        )
        return BenchmarkTask(record["difficulty"], task)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{place} is no task of an exam ({error!r}): make the exam again.") from error


def subset(benchmark: Sequence[BenchmarkTask], per_kind: int) -> tuple[BenchmarkTask, ...]:
    """At most so many tasks of each kind, spread evenly over the difficulties they are ordered by."""
    kinds: dict[str, list[BenchmarkTask]] = {}
    for each in benchmark:
        kinds.setdefault(each.task.kind, []).append(each)
    return tuple(
        of_kind[index * len(of_kind) // per_kind] if per_kind < len(of_kind) else of_kind[index]
        for of_kind in kinds.values()
        for index in range(min(per_kind, len(of_kind)))
    )
