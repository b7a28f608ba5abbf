"""Graders: each judges the answers to questions of one form."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from azr.graders.choice import ChoiceGrader
from azr.graders.mathematics import MathGrader, check_math
from azr.graders.own import OwnGrader, is_own, try_grader
from azr.graders.programs import ProgramGrader
from azr.graders.question import TASK, Grader, GraderName, Question
from azr.graders.value import TaskGrader, ValueGrader
from azr.tasks.base import Run

OpenExecutor = Callable[[], AbstractAsyncContextManager[Any]]
"""Starts something whose `execute` is an `azr.tasks.base.Run`."""


def check_graders(questions: Mapping[GraderName, Question]) -> None:
    """Raise UserError if a grader lacks a package, or is the user's and cannot grade a response to its question."""
    for name, question in sorted(questions.items()):
        if name == "math":
            check_math()
        elif is_own(name):
            try_grader(name, question)


_WITH_EXECUTOR: dict[GraderName, Callable[[Run], Grader]] = {
    TASK: TaskGrader, "value": ValueGrader, "calls": ProgramGrader, "stdin": ProgramGrader,
}  # fmt: skip


@contextlib.asynccontextmanager
async def open_graders(
    names: Collection[GraderName], *, answers: OpenExecutor, tasks: OpenExecutor | None = None
) -> AsyncIterator[dict[GraderName, Grader]]:
    """Yield the graders by name; what they start ends with the block.

    ``answers``: starts the executor for programs of answers, if a grader needs one; its limits are those of
    `azr.graders.sandboxed.answer_config`. ``tasks``: starts the executor of `TASK`, with the limits of
    training; None where `TASK` is not among the names.

    Raises UserError when a package of the extra ``eval`` is missing, or model-written code cannot be isolated here.
    """
    async with contextlib.AsyncExitStack() as stack:
        pool = await stack.enter_async_context(answers()) if _WITH_EXECUTOR.keys() & {*names} - {TASK} else None
        graders: dict[GraderName, Grader] = {}
        for name in sorted(set(names)):
            executor = await stack.enter_async_context(tasks()) if name == TASK and tasks else pool
            graders[name] = await stack.enter_async_context(make_grader(name, executor))
        yield graders


@contextlib.asynccontextmanager
async def one_executor(start: OpenExecutor) -> AsyncIterator[OpenExecutor]:
    """Yield what gives one executor to all who open it: the first starts it, and it ends with this block."""
    async with contextlib.AsyncExitStack() as stack:
        started, starting = list[Any](), asyncio.Lock()

        @contextlib.asynccontextmanager
        async def opened() -> AsyncIterator[Any]:
            async with starting:
                if not started:
                    started.append(await stack.enter_async_context(start()))
            yield started[0]

        yield opened


@contextlib.asynccontextmanager
async def make_grader(name: GraderName, executor: Any = None) -> AsyncIterator[Grader]:
    """Yield a grader; what it starts ends with the block. ``executor``: of graders that run programs, see
    `open_graders`, which says what this raises."""
    if name in _WITH_EXECUTOR:
        assert executor is not None
        yield _WITH_EXECUTOR[name](executor.execute)
    elif name == "choice":
        yield ChoiceGrader()
    else:
        async with MathGrader() if name == "math" else OwnGrader(name) as grader:
            yield grader
