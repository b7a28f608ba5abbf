"""The project's own exam: held-out tasks of self-play, by kind and difficulty."""

from __future__ import annotations

from pathlib import Path

import azr
from azr.evaluation.question import Question, Suite
from azr.evaluation.suite import read_suite
from azr.tasks.prompts import ChatFormat
from azr.tasks.registry import KINDS

OWN = Path(azr.__file__).resolve().parents[1] / "data" / "exam"
"""Where the project keeps it."""


def read_exam(folder: Path) -> list[Question]:
    """The exam in a folder ``exam`` below this one, in this one, or the project's own.

    A question's ``gold`` is its task, which a model in the compact format is asked in that format.
    """
    places = [
        place for place in (folder / "exam", folder) if any((place / f"{kind}.jsonl").is_file() for kind in KINDS)
    ]
    chat = ChatFormat(lambda message: message)
    return [
        Question(
            id=each.task.id,
            suite="exam",
            group=f"{each.task.kind} {each.difficulty}",
            message=chat.solve(KINDS[each.task.kind], KINDS[each.task.kind].solver_view(each.task)),
            gold=each.task,
            programs=(each.task.program,),
        )
        for each in read_suite(places[0] if places else OWN)
    ]


SUITES = (
    Suite(
        name="exam",
        files=("exam/deduction.jsonl", "exam/abduction.jsonl", "exam/induction.jsonl"),
        rows=800,
        licence="MIT",
        source="data/exam of this project",
        grader="value",
        read=read_exam,
    ),
)
