"""Answers and evaluations as tests write them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from azr.evaluation.answer_file import AnswerFile
from azr.evaluation.report import ANSWERS
from azr.records import Judgement, Sample
from azr.tasks.base import Verdict


def answers_to(
    suite: str,
    question: str,
    group: str,
    greedy: Verdict,
    samples: Iterable[Verdict],
    parts: Mapping[str, bool] | None = None,
) -> list[Sample]:
    """All answers to one question: a greedy one and samples, with these verdicts."""
    answers, text = [], {"prompt": "What?", "response": "It is\u2028so \ud800.", "response_tokens": 7}
    for index, verdict in [(None, greedy), *enumerate(samples)]:
        stated = None if verdict is Verdict.MALFORMED else (("answer", "so"),)
        made = {"judgement": Judgement(verdict=verdict, answer=stated, parts=parts or {}), "used": "recorded"}
        made["accuracy"] = float(verdict is Verdict.RIGHT)
        if verdict is Verdict.UNGRADED:
            made |= {"accuracy": None, "used": "ungraded"}
        asked = {"role": "solver", "kind": suite, "problem_id": question, "group": group, "index": index}
        answers.append(Sample(**asked, **text, **made))
    return answers


def protocol(suites: Iterable[str], **others: Any) -> dict[str, Any]:
    """Of an evaluation of these suites."""
    files = {suite: {"sha256": {f"{suite}.jsonl": "0" * 64}, "questions": 1, "of": 1} for suite in suites}
    return {"model": "a model", "suites": files, "samples": 8, "temperature": 1.0} | others


def write_evaluation(folder: Path, answers: list[Sample], **others: Any) -> Path:
    """A folder that an evaluation leaves behind, as far as other commands read it."""
    folder.mkdir(parents=True)
    with AnswerFile(folder / ANSWERS, protocol({a.kind for a in answers}) | others) as file:
        for question in dict.fromkeys((answer.kind, answer.problem_id) for answer in answers):
            file.add([answer for answer in answers if (answer.kind, answer.problem_id) == question])
    return folder
