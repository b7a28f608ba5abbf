"""Answers and evaluations as tests write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from azr.evaluation.answer_file import Answer, AnswerFile
from azr.evaluation.question import Verdict
from azr.evaluation.report import ANSWERS


def answers_to(
    suite: str,
    question: str,
    group: str,
    greedy: Verdict,
    samples: Iterable[Verdict],
    parts: Mapping[str, bool] | None = None,
) -> list[Answer]:
    """All answers to one question: a greedy one and samples, with these verdicts."""
    return [
        Answer(
            suite=suite,
            question=question,
            group=group,
            sample=sample,
            prompt="What?",
            response="It is\u2028so \ud800.",
            tokens=7,
            truncated=False,
            verdict=verdict,
            answer=None if verdict is Verdict.MALFORMED else "so",
            parts=parts or {},
        )
        for sample, verdict in [(None, greedy), *enumerate(samples)]
    ]


def protocol(suites: Iterable[str], **others: Any) -> dict[str, Any]:
    """Of an evaluation of these suites."""
    files = {suite: {"sha256": {f"{suite}.jsonl": "0" * 64}, "questions": 1, "of": 1} for suite in suites}
    return {"model": "a model", "suites": files, "samples": 8, "temperature": 1.0} | others


def write_evaluation(folder: Path, answers: list[Answer], **others: Any) -> Path:
    """A folder that an evaluation leaves behind, as far as other commands read it."""
    folder.mkdir(parents=True)
    with AnswerFile(folder / ANSWERS, protocol({a.suite for a in answers}) | others) as file:
        for question in dict.fromkeys((answer.suite, answer.question) for answer in answers):
            file.add([answer for answer in answers if (answer.suite, answer.question) == question])
    return folder
