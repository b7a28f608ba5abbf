"""The project's own exam, held-out tasks of self-play by kind and difficulty: its files, and it as a suite."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from azr.errors import UserError
from azr.evaluation.suites.files import Row, questions
from azr.graders.question import TASK, Question, Suite
from azr.own_data import own_data
from azr.records import Task
from azr.tasks.base import TaskKind
from azr.tasks.prompts import ChatFormat
from azr.tasks.registry import KINDS

NAME = "exam"
OWN = Path(own_data("exam")).resolve()
"""Folder of the project's exam."""
SEALED = "sealed"
"""Subfolder with a second exam for final decisions. No run asks it; its programs are held out too."""


def exam_files(folder: Path) -> dict[str, Path]:
    """Return the folder's existing files by kind, in the order of the registry."""
    return {kind: path for kind in KINDS if (path := folder / f"{kind}.jsonl").is_file()}


def exam_questions(folder: Path) -> list[Question]:
    """Return the exam in a folder as questions; ``gold`` is the task, which tags show to a model in the compact format.
    Raises UserError when there is no file, or a line of one is not a task."""
    files = exam_files(folder)
    if not files:
        raise UserError(f"There is no exam in {folder}: give the folder of {next(iter(KINDS))}.jsonl and others.")
    return [each for path in files.values() for each in _read_file(path)]


def _read_file(path: Path) -> list[Question]:
    return questions(path, partial(_read_row, KINDS[path.stem]))


def _read_row(kind: TaskKind, row: Row, number: int) -> Question:
    fields = {name: row[name] for name in ("id", "program", "fingerprint", "message")}
    task = Task(kind=kind.name, inputs=tuple(row["inputs"]), outputs=tuple(row["outputs"]), **fields)
    message, group = ChatFormat(str).solve(kind, kind.solver_view(task)), f"{kind.name}/{row['difficulty']}"
    program = task.program
    return Question(
        id=task.id, suite=NAME, group=group, message=message, problem=program, gold=task, programs=(program,)
    )


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
    read_file=_read_file,
    locate=lambda folder: tuple(exam_files(_place(folder)).values()),
    groups_alike=True,
)
