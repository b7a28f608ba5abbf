# ruff: noqa: RUF001 (signs that look like others are what is read)
"""Judges multiple choice: the label in the last box or after ``ANSWER:`` or "answer is", whichever comes last."""

from __future__ import annotations

import re
from dataclasses import dataclass

from azr.graders.extraction import UNSEEN, joined_box, placed_boxes, reply
from azr.graders.question import Question
from azr.records import Judgement
from azr.tasks.base import Verdict

_OPEN = r"""[\s*_:$'"`‘’“”「『【<]{0,20}"""
_WRAPPED = (
    r"(?:\\(?:text|math|emph|mbox|operatorname)[a-z]{0,6}\s{0,2}\{|\{?\\(?:rm|bf|it|sf|tt|large|Large)\s|\{){0,2}"
    r"\s?[(\[]?"
)
_LABEL = r"([A-Z]|\d)(?![A-Za-z0-9])(?!(?-i:(?<=[aiI])) \w)"
# Between words few characters are read, so that time stays linear in the text. "a" and "I" before a word
# are words, not labels.
_STATED = re.compile(
    r"(?<![A-Za-z0-9])(?:answer|(?:correct|right|best)\s(?:option|choice))(?![A-Za-z0-9])[\s*_]{0,20}"
    r"(?:is|:|=|must\sbe|would\sbe|should\sbe|will\sbe|has\sto\sbe)"
    + _OPEN + r"(?:(?:option|choice)(?![A-Za-z0-9])" + _OPEN + ")?" + _WRAPPED + _LABEL,
    re.IGNORECASE,
)  # fmt: skip
_BOXED = re.compile(
    r"[\s$]*(?:\\text(?:bf)?\s*\{\s*)?(?:(?:the\s)?(?:correct\s)?(?:answer|option|choice)(?:\s(?:is|option))?[\s:]+)?"
    + _WRAPPED
    + r"""([A-Z]|\d)(?:[\s)\]}$'"*.]*$|[\s}\\]*[).:\]](?!\d)|\}|\s*$)""",
    re.IGNORECASE,
)  # fmt: skip
"""A label alone, or before its option's text; what continues as mathematics does is a value."""
_AND = r"""(?:[\s)\]}$'"*_.]{0,9}(?:,|;|/|\||\(|\\?&|\b(?:or|and|then|perhaps|maybe|possibly)\b)){1,3}"""
_LISTED = re.compile(_WRAPPED + _LABEL + f"(?={_AND})", re.IGNORECASE)
_MORE = re.compile(
    _AND + r"""[\s*_$"'`]{0,9}(?:(?:option|choice)\s)?""" + _WRAPPED + _LABEL
    + r"(?!\s(?:is|was|has|would|cannot|does)\b)",
    re.IGNORECASE,
)  # fmt: skip
"""A second label after the first."""
_ALONE = re.compile(
    r"""[\s*_(\["'`]{0,9}(?:(?:option|choice)\s)?[*_(\["'`]{0,9}([A-Z]|\d)(?:[\s*_)\].:"'`]{0,9}|[)\]:.]\*{0,3}\s[^\n]{1,300})""",
    re.IGNORECASE,
)
"""A whole reply."""
_FULL_WIDTH = {0xFF01 + n: 0x21 + n for n in range(94)} | UNSEEN


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
            return Judgement(verdict=Verdict.MALFORMED, reason="no_answer")
        return Judgement(verdict=Verdict.RIGHT if label == gold.label else Verdict.WRONG, answer=(("answer", label),))


def _label(text: str, labels: tuple[str, ...]) -> str | None:
    """Return the label that the text gives last, in a box or in words; or two (``A, B``), which are no answer. A box
    that holds none of them is a value."""
    text = text.translate(_FULL_WIDTH)
    said = [(found.start(), _only(found, labels)) for found in _STATED.finditer(text)]
    boxed = placed_boxes(text)
    content = joined_box(text, boxed) or ""
    if boxed and (found := _BOXED.match(content) or _LISTED.match(content)) and found[1].upper() in labels:
        said.append((boxed[-1][0], _only(found, labels)))
    if not said and not boxed and (alone := _ALONE.fullmatch(text.strip())):
        said = [(0, alone[1])]
    label = max(said)[1].upper() if said else None
    return label if label and label.partition(",")[0] in labels else None


def _only(found: re.Match[str], labels: tuple[str, ...]) -> str:
    """Return the label that was found, with the one that follows it if there is another."""
    other = _MORE.match(found.string, found.end(1))
    more = {other[1].upper()} & {*labels} - {found[1].upper()} if other else ()
    return ", ".join((found[1], *more))
