"""Users' graders: functions that are named ``module:function`` and run in processes that can be killed.

A function takes the row, a dict of all its fields, and the response, a text without its end token. It returns whether
the answer is right, a number from 0 (wrong) to 1 (right), or None when there is no answer; or a dict with such a
``score`` and named numbers, which are logged one by one. Reward functions of TRL's and verl's form are called as those
projects document it, with one response, and their number is the reward. docs/extending.md is the way there.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

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

GradeFunction = Callable[..., object]
"""Returns what `checked` takes, or a coroutine of it."""
Form = Literal["own", "trl", "verl", "environment"]
"""Whose arguments a function takes, and whose results it returns; an environment states the reward itself."""
_OF_TRL, _OF_VERL = frozenset({"prompts", "completions", "completion_ids"}), "solution_str"
"""Parameters by which reward functions of others are known."""


def is_own(name: str) -> bool:
    """Whether a name is ``module:function`` or an entry point of an installed package. Raises UserError when several
    packages do."""
    return ":" in name or (name not in GRADERS and find_entry(GROUP, name) is not None)


def load_grader(name: str) -> GradeFunction:
    """Return the function of this name, also from a module in the working directory or a file. Raises UserError when
    it does not exist, after printing the traceback of a module that cannot be imported."""
    module_name, _, function_name = _function(name).rpartition(":")
    module = import_own(module_name, f"The module of {name}")
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [word for word, value in vars(module).items() if callable(value)]
        raise UserError(
            f"The module {module_name} has no function {function_name!r}{did_you_mean(function_name, known)}"
        )
    return function  # type: ignore[no-any-return]


def states_rewards(name: str) -> bool:
    """Whether a grader is a reward function of TRL's or verl's form. Raises UserError as `load_grader`."""
    return is_own(name) and _form(load_grader(name)) != "own"


def _form(function: GradeFunction) -> Form:
    """Return whose form a function has, as its parameters say."""
    if hasattr(function, "reset"):
        return "environment"
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a function of C that does not state them
        return "own"
    if _OF_VERL in parameters:
        return "verl"
    takes_names_alone = bool(parameters) and all(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return "trl" if takes_names_alone or _OF_TRL & parameters.keys() else "own"


def _arguments(form: Form, row: Mapping[str, Any], prompt: Any, response: str) -> dict[str, Any]:
    """Return the arguments of a reward function. TRL's are lists of one, and a list of turns is answered by a turn.
    Raises KeyError if the row has no right answer for verl's."""
    if form == "verl":
        model = row.get("reward_model")
        truth = model["ground_truth"] if isinstance(model, Mapping) else row["answer"]
        given = {"data_source": row.get("data_source", row.get("source")), "extra_info": row.get("extra_info") or {}}
        return given | {"solution_str": response, "ground_truth": truth}
    columns = {name: [value] for name, value in row.items() if name != "prompt"}
    completion = response if isinstance(prompt, str) else [{"role": "assistant", "content": response}]
    return columns | {"prompts": [prompt], "completions": [completion]}


def _function(name: str) -> str:
    """Return ``module:function`` of a grader's name."""
    entry = None if ":" in name else find_entry(GROUP, name)
    return entry.value if entry is not None else name


class OwnGrader:
    """Grades in at most ``workers`` processes: ``async with OwnGrader("module:function") as grader``."""

    def __init__(self, name: str, workers: int = 2) -> None:
        """Raises UserError as `load_grader` does."""
        self._name, self._form = name, _form(load_grader(name))
        self._functions = OwnFunctions("azr.graders.own", (_function(name),), workers)

    async def __aenter__(self) -> OwnGrader:
        """Start the first process. Raises UserError when it does not start."""
        await self._functions.check_start(f"The grader {self._name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._functions.end()

    async def grade(self, question: Question, response: str) -> Judgement:
        """Grade; ungraded if the function raises, returns another type, takes too long or ends its process."""
        named = f"the grader {self._name}"
        try:
            said = await self._functions.call(named, _asked(question, response), costs="its answer is not trained on")
        except WorkerError as trouble:
            return Judgement(verdict=Verdict.UNGRADED, detail=f"{named} {trouble}", reason="grader_failed")
        score, parts = said[SCORE], said["parts"]
        if score is None and self._form != "own":
            return Judgement(verdict=Verdict.UNGRADED, parts=parts, reason="no_reward")
        if score is None:
            return Judgement(verdict=Verdict.MALFORMED, parts=parts, reason="no_answer")
        verdict = Verdict.RIGHT if score >= 1 else Verdict.WRONG
        number = None if isinstance(score, bool) else score
        return Judgement(verdict=verdict, answer=(("answer", response),), parts=parts, score=number)


def _asked(question: Question, response: str) -> dict[str, Any]:
    return {"row": question.gold, "prompt": question.gold.get("prompt", question.message), "response": response}


def try_grader(name: str, question: Question) -> None:
    """Grade `DUMMY` in a process of its own. Raises UserError as `load_grader`, and if the function fails over it."""
    load_grader(name)
    try:
        ask_once(f"The grader {name}", "azr.graders.own", (_function(name),), _asked(question, DUMMY))
    except WorkerError as trouble:
        raise UserError(
            f"The grader {name} {trouble} for its first row and the response {DUMMY!r}: docs/extending.md says what it "
            "gets and returns, and --data.fields gives fields other names."
        ) from trouble


def checked(returned: object, form: Form = "own") -> dict[str, Any]:
    """Return score and parts of what a function returned. Raises InvalidReply for anything that it must not return.

    A reward function's score is any finite number; parts of verl's that are not numbers are left out.
    """
    if form == "trl":
        try:
            (returned,) = returned  # type: ignore[misc]
        except (TypeError, ValueError) as error:
            raise InvalidReply(f"{brief(returned)}, which is not a list of one reward for one completion") from error
    parts = dict(returned) if isinstance(returned, Mapping) else {SCORE: returned}
    if SCORE not in parts:
        raise InvalidReply(f"a dict without {SCORE!r}, which must be True, False, None or a number from 0 to 1")
    score = plain_number(parts.pop(SCORE))
    parts = {name: plain_number(value) for name, value in parts.items()}
    given = f"{SCORE} {brief(score)}" if isinstance(returned, Mapping) else brief(score)
    if form != "own":
        score = float(score) if isinstance(score, bool) else score
        parts = {name: value for name, value in parts.items() if isinstance(value, bool | float)}
        if score is not None and not (isinstance(score, float) and math.isfinite(score)):
            raise InvalidReply(f"{given}, which is neither a finite number nor None")
    elif score is not None and not isinstance(score, bool) and not (isinstance(score, float) and 0 <= score <= 1):
        raise InvalidReply(f"{given}, which is none of True, False, None and a number from 0 to 1")
    if len(parts) > MAX_PARTS:
        raise InvalidReply(f"{len(parts)} parts, and at most {MAX_PARTS} are logged")
    for name, value in parts.items():
        if not isinstance(name, str) or not _PART.fullmatch(name):
            raise InvalidReply(f"a part named {brief(name)}, which must be up to 40 letters, digits, '_', '-' and '.'")
        if not isinstance(value, bool) and not (isinstance(value, float) and math.isfinite(value)):
            raise InvalidReply(f"the part {name} {brief(value)}, which is neither a bool nor a finite number")
    return {SCORE: score, "parts": parts}


def load(arguments: Sequence[str]) -> Callable[[Any], dict[str, Any]]:
    """Return the answer of a grader's process: ``{row, prompt, response}`` becomes ``{score, parts}``."""
    (name,) = arguments
    function, loop = load_grader(name), asyncio.new_event_loop()
    form = _form(function)
    parameters = {} if form == "own" else inspect.signature(function).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())

    def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
        if form == "own":
            returned = function(asked["row"], asked["response"])
        else:
            given = _arguments(form, **asked)
            returned = function(**{name: given[name] for name in given if takes_all or name in parameters})
        return checked(loop.run_until_complete(returned) if inspect.isawaitable(returned) else returned, form)

    return answer


if __name__ == "__main__":
    serve(load)
