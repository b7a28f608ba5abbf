"""Graders: each judges the answers to suites of one form."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from azr.evaluation.graders.calls import CallsGrader
from azr.evaluation.graders.choice import ChoiceGrader
from azr.evaluation.graders.maths import MathGrader, check_math
from azr.evaluation.graders.own import OwnGrader, is_own, load_grader
from azr.evaluation.graders.stdin import StdinGrader, Tests
from azr.evaluation.graders.value import ValueGrader
from azr.evaluation.question import Grader, GraderName, Judgement, Question

if TYPE_CHECKING:
    from azr.selfplay.roles import Executor

CODE_GRADERS: frozenset[GraderName] = frozenset({"value", "calls", "stdin"})
"""They run programs, and need an executor."""


def check_graders(names: Iterable[GraderName]) -> None:
    """Raises UserError where one lacks a package, or is the user's own and cannot be imported."""
    for name in sorted(set(names)):
        if name == "math":
            check_math()
        elif is_own(name):
            load_grader(name)


class _CodeGrader:
    """Programs are called or read standard input, as each question has it."""

    def __init__(self, executor: Executor) -> None:
        self._calls, self._stdin = CallsGrader(executor), StdinGrader(executor)

    async def grade(self, question: Question, response: str) -> Judgement:
        grader: Grader = self._stdin if isinstance(question.gold, Tests) else self._calls
        return await grader.grade(question, response)


@contextlib.asynccontextmanager
async def make_grader(name: GraderName, executor: Executor | None = None) -> AsyncIterator[Grader]:
    """``async with make_grader(name, executor) as grader``; what it starts ends with the block.

    ``executor``: an `azr.evaluation.graders.sandboxed.answer_pool`, of the graders in `CODE_GRADERS`.
    Raises UserError when a package of the extra ``eval`` is missing, or a grader of the user's own.
    """
    match name:
        case _ if is_own(name):
            async with OwnGrader(name) as own:
                yield own
        case "math":
            async with MathGrader() as grader:
                yield grader
        case "choice":
            yield ChoiceGrader()
        case "value" | "calls" | "stdin":
            assert executor is not None
            yield ValueGrader(executor) if name == "value" else _CodeGrader(executor)
