"""Judges multiple choice: the label in the last box, after ``ANSWER:`` or after "answer is"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from azr.evaluation.graders.extraction import last_box, reply
from azr.evaluation.question import Question
from azr.records import Judgement
from azr.tasks.base import Verdict

# Between words each character has one way to be read, so that time stays linear in the text. "a" and "I" before a word
# are words, not labels.
_STATED = re.compile(
    r"\banswer\b[\s*_]*(?:is|:|=)[\s*_:$]*(?:(?:option|choice)\b[\s*_:$]*)?(?:\\text\{|\\mathbf\{)?\(?\[?"
    r"([A-Z]|\d)\b(?!(?-i:(?<=[aiI])) \w)",
    re.IGNORECASE,
)
_BOXED = re.compile(
    r"[\s$]*(?:\\(?:text|textbf|mathrm|mathbf)\s*\{)?\s*\(?([A-Z]|\d)\b(?!(?-i:(?<=[aiI])) \w)", re.IGNORECASE
)
_ALONE = re.compile(r"[\s*(\[]*([A-Z]|\d)[\s*)\].:]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Choice:
    """Gold of `ChoiceGrader`."""

    label: str
    """Label of the right option."""
    labels: tuple[str, ...]
    """Labels of all options."""


class ChoiceGrader:
    """Compares labels. A label that the question does not have counts as malformed."""

    async def grade(self, question: Question, response: str) -> Judgement:
        gold: Choice = question.gold
        label = _label(reply(response), gold.labels)
        if label is None:
            return Judgement(verdict=Verdict.MALFORMED)
        return Judgement(verdict=Verdict.RIGHT if label == gold.label else Verdict.WRONG, answer=(("answer", label),))


def _label(text: str, labels: tuple[str, ...]) -> str | None:
    box = last_box(text)
    if box is not None:
        found = _BOXED.match(box)
        stated = [found[1]] if found else []
    else:
        stated = _STATED.findall(text)
        if not stated and (alone := _ALONE.fullmatch(text)):
            stated = [alone[1]]
    label = stated[-1].upper() if stated else None
    return label if label in labels else None
