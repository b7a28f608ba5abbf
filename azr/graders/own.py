"""Users' graders: functions that are named ``module:function`` and run in processes that can be killed.

A function takes the row, a dict of all its fields, and the response, a text without its end token. It returns whether
the answer is right, a number from 0 (wrong) to 1 (right), or None when there is no answer; or a dict with such a
``score`` and named numbers, which are logged one by one. docs/extending.md is the way there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from azr.errors import UserError, did_you_mean
from azr.graders.question import GRADERS, Question
from azr.isolated import InvalidReply, OwnFunctions, WorkerError, ask_once, plain_number, serve
from azr.records import Judgement
from azr.registry import find_entry, import_own
from azr.tasks.base import Verdict
from azr.text import brief

GROUP = "azr.graders"
"""Group of entry points by which installed packages name their graders."""

MAX_PARTS = 16
"""Most named numbers beside a score: each of them is a metric."""
SCORE = "score"
DUMMY = "0"
"""Response that a function is tried on before a run."""
_PART = re.compile(r"[A-Za-z_][\w.-]{0,39}", re.ASCII)

GradeFunction = Callable[[Mapping[str, Any], str], object]
"""From a row and a response to what `checked` takes."""


def is_own(name: str) -> bool:
    """Whether a name is ``module:function`` or an entry point of an installed package. Raises UserError when several
    packages do."""
    return ":" in name or (name not in GRADERS and find_entry(GROUP, name) is not None)


def load_grader(name: str) -> GradeFunction:
    """Return the function of this name, also from a module in the working directory. Raises UserError when it does not
    exist, after printing the traceback of a module that cannot be imported."""
    module_name, _, function_name = _function(name).partition(":")
    module = import_own(module_name, f"The module of the grader {name}")
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [word for word, value in vars(module).items() if callable(value)]
        raise UserError(
            f"The module {module_name} has no function {function_name!r} to grade with"
            f"{did_you_mean(function_name, known)}"
        )
    return function  # type: ignore[no-any-return]


def _function(name: str) -> str:
    """Return ``module:function`` of a grader's name."""
    entry = None if ":" in name else find_entry(GROUP, name)
    return entry.value if entry is not None else name


class OwnGrader:
    """Grades in at most ``workers`` processes: ``async with OwnGrader("module:function") as grader``."""

    def __init__(self, name: str, workers: int = 2) -> None:
        """Raises UserError as `load_grader` does."""
        load_grader(name)
        self._name, self._functions = name, OwnFunctions("azr.graders.own", (_function(name),), workers)

    async def __aenter__(self) -> OwnGrader:
        """Start the first process. Raises UserError when it does not start."""
        await self._functions.check_start(f"The grader {self._name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._functions.end()

    async def grade(self, question: Question, response: str) -> Judgement:
        """Grade; ungraded if the function raises, returns another type, takes too long or ends its process."""
        message, named = {"row": question.gold, "response": response}, f"the grader {self._name}"
        try:
            said = await self._functions.call(named, message, costs="such answers are not trained on")
        except WorkerError as trouble:
            return Judgement(verdict=Verdict.UNGRADED, detail=f"{named} {trouble}", reason="grader_failed")
        score, parts = said[SCORE], said["parts"]
        if score is None:
            return Judgement(verdict=Verdict.MALFORMED, parts=parts, reason="no_answer")
        verdict = Verdict.RIGHT if score == 1 else Verdict.WRONG
        number = None if isinstance(score, bool) else score
        return Judgement(verdict=verdict, answer=(("answer", response),), parts=parts, score=number)


def try_grader(name: str, question: Question) -> None:
    """Grade `DUMMY` in a process of its own. Raises UserError as `load_grader`, and if the function fails over it."""
    load_grader(name)
    message = {"row": question.gold, "response": DUMMY}
    try:
        ask_once(f"The grader {name}", "azr.graders.own", (_function(name),), message)
    except WorkerError as trouble:
        raise UserError(
            f"The grader {name} {trouble} for its first row and the response {DUMMY!r}: make it take a row and a "
            "response, and return None for what is no answer."
        ) from trouble


def checked(returned: object) -> dict[str, Any]:
    """Return score and parts of what a function returned. Raises InvalidReply for anything that it must not return."""
    parts = dict(returned) if isinstance(returned, Mapping) else {SCORE: returned}
    if SCORE not in parts:
        raise InvalidReply(f"a dict without {SCORE!r}, which must be True, False, None or a number from 0 to 1")
    score = plain_number(parts.pop(SCORE))
    if score is not None and not isinstance(score, bool) and not (isinstance(score, float) and 0 <= score <= 1):
        given = f"{SCORE} {brief(score)}" if isinstance(returned, Mapping) else brief(score)
        raise InvalidReply(f"{given}, which is none of True, False, None and a number from 0 to 1")
    if len(parts) > MAX_PARTS:
        raise InvalidReply(f"{len(parts)} parts, and at most {MAX_PARTS} are logged")
    parts = {name: plain_number(value) for name, value in parts.items()}
    for name, value in parts.items():
        if not isinstance(name, str) or not _PART.fullmatch(name):
            raise InvalidReply(
                f"a part named {brief(name)}, which must be at most 40 letters, digits, '_', '-' and '.'"
            )
        if not isinstance(value, bool) and not (isinstance(value, float) and math.isfinite(value)):
            raise InvalidReply(f"the part {name} {brief(value)}, which is no bool and no finite number")
    return {SCORE: score, "parts": parts}


def load(arguments: Sequence[str]) -> Callable[[Any], dict[str, Any]]:
    """Return the answer of a grader's process: ``{row, response}`` becomes ``{score, parts}``."""
    (name,) = arguments
    function = load_grader(name)
    return lambda asked: checked(function(asked["row"], asked["response"]))


if __name__ == "__main__":
    serve(load)
