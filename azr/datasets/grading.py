"""Judge answers to rows by the rule that their prompts state (`reward.format`), by one grader or by several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from azr.concurrency import gather
from azr.datasets.rows import DataRow, RowGrader
from azr.evaluation.graders.extraction import boxes
from azr.evaluation.graders.own import is_own
from azr.evaluation.question import Grader, GraderName
from azr.records import Judgement, Reason
from azr.tasks.base import Verdict
from azr.tasks.prompts import ResponseFormat, answer_part

DETAILS: dict[str, str] = {
    Reason.UNCLOSED_THINKING: "the thinking is not closed, or not just once",
    Reason.NO_ANSWER: "no answer was found",
    Reason.TWO_ANSWERS: "there is more than one answer part",
    Reason.MISPLACED_ANSWER: "text stands between the thinking and the answer",
    Reason.NO_BLOCK: "no block of code was found",
    Reason.NO_BOX: "the answer has no box",
    Reason.UNREADABLE: "the answer cannot be read as what was asked for",
    Reason.LOST: "the executor lost the call",
    Reason.NO_GOLD: "the reference solution fails",
    Reason.GRADER_FAILED: "the grader failed over it, or took too long",
}
"""Sentences for reasons to which a grader adds none."""


async def grade(
    row: DataRow, prompt: str, response: str, graders: Mapping[GraderName, Grader], form: ResponseFormat
) -> Judgement:
    """Judge a finished response to a row. Of several graders the score is the weighted mean of theirs, and a part each;
    it is ungraded or malformed if it is for one of them."""
    found = await gather(*(_grade_by(each, prompt, response, graders, form) for each in row.graders))
    judgement = found[0] if len(found) == 1 else _combined(row.graders, found)
    detail = judgement.detail or DETAILS.get(judgement.reason, "")
    return replace(judgement, detail=detail)


async def _grade_by(
    grader: RowGrader, prompt: str, response: str, graders: Mapping[GraderName, Grader], form: ResponseFormat
) -> Judgement:
    part = graded_part(grader.name, prompt, response, form)
    if isinstance(part, Reason):
        return Judgement(verdict=Verdict.MALFORMED, reason=part)
    return await graders[grader.name].grade(grader.question, part)


def graded_part(grader: GraderName, prompt: str, response: str, form: ResponseFormat) -> str | Reason:
    """Return what a grader gets of a response, or why it gets nothing. A user's own gets all of it: what it pays for is
    its own rule."""
    if is_own(grader):
        return response
    part = answer_part(response, prompt, form)
    if not isinstance(part, Reason) and grader == "math" and form != "thought" and not boxes(part):
        return Reason.NO_BOX
    return part


def _combined(graders: tuple[RowGrader, ...], found: list[Judgement]) -> Judgement:
    for verdict in (Verdict.UNGRADED, Verdict.MALFORMED):
        if (first := next((each for each in found if each.verdict == verdict), None)) is not None:
            return first
    parts = dict[str, bool | float]()
    scores = [_score(judgement) for judgement in found]
    for grader, judgement, score in zip(graders, found, scores, strict=True):
        parts[grader.label] = score
        parts |= {f"{grader.label}.{name}": value for name, value in judgement.parts.items()}
    weights = [grader.weight for grader in graders]
    is_right = all(score == 1 for score in scores)
    score = 1.0 if is_right else sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)
    detail = "; ".join(f"{each.label} {score:g}" for each, score in zip(graders, scores, strict=True))
    verdict = Verdict.RIGHT if is_right else Verdict.WRONG
    return Judgement(verdict=verdict, detail=detail, answer=found[0].answer, parts=parts, score=score)


def _score(judgement: Judgement) -> float:
    return float(judgement.verdict == Verdict.RIGHT) if judgement.score is None else judgement.score
