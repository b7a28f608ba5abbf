"""Shared parts of the sources: examples, the definition of a source, and the format of answers and prompts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from azr.evaluation.question import GraderName
from azr.evaluation.suites.prompts import math_message

BOX = "\\boxed"
"""A prompt that speaks of it states the form that the grader reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `azr data prepare`; each belongs to one source."""

    system: str = "keep"
    """``keep`` or ``drop`` LUFFY's system turn."""
    asked: tuple[str, ...] = ("output", "input")
    """Questions about CRUXEval's programs, one row each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One question as it will be written."""

    prompt: tuple[Mapping[str, str], ...]
    """Turns of ``role`` and ``content``; the last is the user's."""
    question: str
    """The problem without instructions: compared with the questions of evaluation suites."""
    answer: Mapping[str, str] | None
    """The fields of its grader; None where the source states no answer, or one for another grader."""
    is_other: bool = False
    """The row is of another field than its source's grader judges."""
    source: str
    traces: tuple[str, ...] = ()
    """Whole responses of another model."""
    part: str = ""
    """Tells apart the examples of one row of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A published data set: the form of its files and what their rows become."""

    name: str
    about: str
    fields: tuple[str, ...]
    """Those that every row has."""
    form: str
    """How a row looks, for somebody whose file has others."""
    grader: GraderName
    columns: tuple[str, ...]
    """The grader's fields that its rows are written with, all of them text."""
    read: Callable[[Mapping[str, Any], Options], Iterable[Example]]
    """The examples of a row. Raises one of `azr.evaluation.suites.files.ROW_ERRORS` where it is none of this source."""
    options: tuple[str, ...] = ()
    """Names of the `Options` that this source takes."""


def math_prompt(turns: Sequence[Mapping[str, str]]) -> tuple[Mapping[str, str], ...]:
    """The turns; the last one also says in which form the answer is graded, where no turn does."""
    if any(BOX in turn["content"] for turn in turns):
        return tuple(turns)
    return (*turns[:-1], {"role": "user", "content": math_message(turns[-1]["content"])})


def math_answer(value: object) -> Mapping[str, str] | None:
    """The grader's field of an answer that is text or a number; None for no answer. Raises TypeError for all else,
    and ValueError for what is no finite number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"its answer is neither text nor a number, but {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"its answer is {value}, which is no number")
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
    return {"answer": text} if text else None


def source_name(stated: object, default: str) -> str:
    """A name of letters, digits, ``_``, ``-`` and ``.`` from a tag that may hold others, or none."""
    return re.sub(r"[^\w.-]+", "_", str(stated or "")).strip("_") or default


def text(value: object, what: str) -> str:
    """A value that must be text that says something. Raises TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is no text, but {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{what} is empty")
    return value
