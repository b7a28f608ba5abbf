"""Graders of a user's own: functions that are named ``module:function`` and run in processes that can be killed.

A function takes the row, a dict of all its fields, and the response, a text without its end token. It returns whether
the answer is right, or None when there is no answer. docs/extending.md is the way there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from azr.errors import UserError, nearest
from azr.evaluation.question import Judgement, Question, Verdict
from azr.line_process import LineProcessPool
from azr.own_modules import import_own

TIME_LIMIT_S = 10.0
"""For one answer; one that takes longer is ungraded, and its process is killed."""
NUM_SAID = 5
"""Different troubles of a grader that are logged; later ones are only counted."""
_WORKER = "azr.evaluation.graders.own_worker"
_log = logging.getLogger(__name__)

GradeFunction = Callable[[Mapping[str, Any], str], bool | None]


def is_own(name: str) -> bool:
    """Whether a grader's name is that of a function."""
    return ":" in name


def load_grader(name: str) -> GradeFunction:
    """The function of this name, also of a module in the working directory.

    Raises UserError when there is none; the traceback of a module that cannot be imported is printed before.
    """
    module_name, _, function_name = name.partition(":")
    module = import_own(module_name, f"The module of the grader {name}")
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [word for word, value in vars(module).items() if callable(value)]
        hint = f"; did you mean {near}?" if (near := nearest(function_name, known)) else "."
        raise UserError(f"The module {module_name} has no function {function_name!r} to grade with{hint}")
    return function  # type: ignore[no-any-return]


class OwnGrader:
    """``async with OwnGrader("module:function") as grader``: at most ``workers`` answers are graded at once."""

    def __init__(self, name: str, workers: int = 2) -> None:
        """Raises UserError as `load_grader` does."""
        load_grader(name)
        self._name, self._said = name, set[str]()
        self._pool = LineProcessPool(_WORKER, (name,), workers)

    async def __aenter__(self) -> OwnGrader:
        """Raises UserError when its process does not start."""
        try:
            await self._pool.start()
        except (RuntimeError, TimeoutError) as error:
            await self._pool.end()
            raise UserError(
                f"The grader {self._name} does not start in a process of its own, where it has no terminal and none of "
                "what the run has loaded: make its module work alone."
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.end()

    async def grade(self, question: Question, response: str) -> Judgement:
        """Ungraded where the function raises, returns something else, takes too long or ends its process."""
        said = await self._pool.ask({"row": question.gold, "response": response}, TIME_LIMIT_S)
        if said is None:
            said = {"trouble": f"took over {TIME_LIMIT_S:g} s, or ended its process"}
        if trouble := said.get("trouble"):
            self._tell(trouble)
            return Judgement(verdict=Verdict.UNGRADED)
        verdicts = {True: Verdict.RIGHT, False: Verdict.WRONG, None: Verdict.MALFORMED}
        return Judgement(verdict=verdicts[said["right"]], answer=None if said["right"] is None else response)

    def _tell(self, trouble: str) -> None:
        if trouble not in self._said and len(self._said) < NUM_SAID:
            self._said.add(trouble)
            _log.warning("the grader %s %s; such answers are not trained on", self._name, trouble)
