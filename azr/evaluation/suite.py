"""The exam paper: held-out tasks that grade a model and that no run may ever train on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from azr.records import Task
from azr.tasks.normalize import fingerprint
from azr.tasks.registry import KINDS


@dataclass(frozen=True, slots=True)
class ExamTask:
    """One question."""

    band: str
    """How hard it is, in a word."""
    task: Task


def program_fingerprint(task: Task) -> str:
    """What all tasks about one program share, whatever their kind and inputs."""
    return fingerprint(task.program)


def write(folder: Path, paper: Iterable[ExamTask]) -> None:
    """Writes ``<kind>.jsonl`` for every kind, one question a line, in the order given."""
    lines: dict[str, list[str]] = {}
    for question in paper:
        task = question.task
        record = {"id": task.id, "band": question.band, "program": task.program, "inputs": task.inputs}
        record |= {"outputs": task.outputs, "message": task.message, "fingerprint": program_fingerprint(task)}
        lines.setdefault(task.kind, []).append(json.dumps(record) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for kind, own in lines.items():
        (folder / f"{kind}.jsonl").write_text("".join(own))


def read(folder: Path) -> tuple[ExamTask, ...]:
    """The questions of every registered kind that the folder has a file for, in the order of the registry.

    Raises:
        ValueError: there is no file, or a line of one is no question.
    """
    files = {kind: folder / f"{kind}.jsonl" for kind in KINDS}
    there = {kind: path for kind, path in files.items() if path.is_file()}
    if not there:
        raise ValueError(
            f"There is no exam in {folder}: give the folder that holds files such as {next(iter(KINDS))}.jsonl."
        )
    return tuple(
        _question(kind, line, f"{path}, line {number}")
        for kind, path in there.items()
        for number, line in enumerate(path.read_text().splitlines(), 1)
    )


def _question(kind: str, line: str, place: str) -> ExamTask:
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
        return ExamTask(record["band"], task)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{place} is no question of an exam ({error!r}): make the exam anew.") from error
