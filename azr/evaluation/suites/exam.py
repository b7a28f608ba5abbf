"""The project's own exam, held-out tasks of self-play by kind and difficulty: its files, and it as a suite."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from azr.errors import UserError
from azr.evaluation.question import TASK, Question, Suite
from azr.own_data import own_data
from azr.records import Task
from azr.tasks.normalize import fingerprint
from azr.tasks.prompts import ChatFormat
from azr.tasks.registry import KINDS

NAME = "exam"
OWN = Path(own_data("exam")).resolve()
"""Folder of the project's exam."""
SEALED = "sealed"
"""Subfolder with a second exam for final decisions. No run asks it; its programs are held out too."""


@dataclass(frozen=True, slots=True)
class ExamTask:
    """One task of an exam."""

    difficulty: str
    """Difficulty in one word."""
    task: Task


def write_exam(folder: Path, tasks: Iterable[ExamTask]) -> None:
    """Write ``<kind>.jsonl`` for every kind, one task per line, in the given order."""
    lines: dict[str, list[str]] = {}
    for each in tasks:
        task = each.task
        record = {"id": task.id, "difficulty": each.difficulty, "program": task.program, "inputs": task.inputs}
        record |= {"outputs": task.outputs, "message": task.message, "fingerprint": fingerprint(task.program)}
        lines.setdefault(task.kind, []).append(json.dumps(record) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for kind, of_kind in lines.items():
        (folder / f"{kind}.jsonl").write_text("".join(of_kind))


def exam_files(folder: Path) -> dict[str, Path]:
    """Return the folder's existing files by kind, in the order of the registry."""
    return {kind: path for kind in KINDS if (path := folder / f"{kind}.jsonl").is_file()}


def read_exam(folder: Path) -> tuple[ExamTask, ...]:
    """Read the tasks in the folder's files.

    Raises UserError when there is no file, or a line of one is no task.
    """
    files = exam_files(folder)
    if not files:
        raise UserError(f"There is no exam in {folder}: give a folder of files such as {next(iter(KINDS))}.jsonl.")
    return tuple(
        _read_line(kind, line, f"{path}, row {number}")
        for kind, path in files.items()
        for number, line in enumerate(path.read_text().splitlines(), 1)
    )


def _read_line(kind: str, line: str, place: str) -> ExamTask:
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
        return ExamTask(record["difficulty"], task)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{place} is no task of an exam ({error!r}): make the exam again.") from error


def sealed_questions(folder: Path) -> list[Question]:
    """Return the questions of the sealed exam in the folder of another, if there is one."""
    return exam_questions(folder / SEALED) if exam_files(folder / SEALED) else []


def exam_questions(folder: Path) -> list[Question]:
    """Return the exam in a folder as questions; ``gold`` is the task, which tags show to a model in the compact format.

    Raises UserError as `read_exam`.
    """
    chat = ChatFormat(lambda message: message)
    return [
        Question(
            id=each.task.id,
            suite=NAME,
            group=f"{each.task.kind}/{each.difficulty}",
            message=chat.solve(KINDS[each.task.kind], KINDS[each.task.kind].solver_view(each.task)),
            problem=each.task.program,
            gold=each.task,
            programs=(each.task.program,),
        )
        for each in read_exam(folder)
    ]


def _place(folder: Path) -> Path:
    """Return the subfolder ``exam`` or the folder itself if it has an exam's files; else the project's folder."""
    return next((place for place in (folder / "exam", folder) if exam_files(place)), OWN)


SUITE = Suite(
    name=NAME,
    files=tuple(f"exam/{kind}.jsonl" for kind in KINDS if (OWN / f"{kind}.jsonl").is_file()),
    rows=800,
    licence="MIT",
    source="data/exam of this project, which is taken where the folder has none",
    grader=TASK,
    read=lambda folder: exam_questions(_place(folder)),
    locate=lambda folder: tuple(exam_files(_place(folder)).values()),
    groups_alike=True,
)
