"""Users' graders: functions that are named ``module:function`` and run in processes that can be killed.

A function takes the row, a dict of all its fields, and the response, a text without its end token. It returns whether
the answer is right, or None when there is no answer. docs/extending.md is the way there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from azr.errors import UserError, nearest
from azr.evaluation.question import GRADERS, Question
from azr.isolated import OwnFunctions, Trouble
from azr.records import Judgement
from azr.registry import find_entry, import_own
from azr.tasks.base import Verdict

GROUP = "azr.graders"
"""Group of entry points by which installed packages name their graders."""
_WORKER = "azr.evaluation.graders.own_worker"

GradeFunction = Callable[[Mapping[str, Any], str], bool | None]


def is_own(name: str) -> bool:
    """Whether a name is ``module:function`` or an entry point of an installed package.

    Raises UserError when several packages do.
    """
    return ":" in name or (name not in GRADERS and find_entry(GROUP, name) is not None)


def load_grader(name: str) -> GradeFunction:
    """Return the function of this name, also from a module in the working directory.

    Raises UserError when it does not exist, after printing the traceback of a module that cannot be imported.
    """
    module_name, _, function_name = _function(name).partition(":")
    module = import_own(module_name, f"The module of the grader {name}")
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [word for word, value in vars(module).items() if callable(value)]
        hint = f"; did you mean {near}?" if (near := nearest(function_name, known)) else "."
        raise UserError(f"The module {module_name} has no function {function_name!r} to grade with{hint}")
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
        self._name, self._functions = name, OwnFunctions(_WORKER, (_function(name),), workers)

    async def __aenter__(self) -> OwnGrader:
        """Start the first process. Raises UserError when it does not start."""
        try:
            await self._functions.start()
        except (RuntimeError, TimeoutError) as error:
            await self._functions.end()
            raise UserError(
                f"The grader {self._name} does not start in a process of its own, where it has no terminal and none of "
                "what the run has loaded: make its module work alone."
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._functions.end()

    async def grade(self, question: Question, response: str) -> Judgement:
        """Grade; ungraded if the function raises, returns another type, takes too long or ends its process."""
        message = {"row": question.gold, "response": response}
        try:
            right = await self._functions.call(
                f"the grader {self._name}", message, costs="such answers are not trained on"
            )
        except Trouble:
            return Judgement(verdict=Verdict.UNGRADED)
        verdict = Verdict.MALFORMED if right is None else Verdict.RIGHT if right else Verdict.WRONG
        return Judgement(verdict=verdict, answer=None if right is None else (("answer", response),))
