"""The pieces of a step's work: what they bring, which have begun, and which a step has not waited for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from azr.records import Sample, Task
from azr.selfplay.form import FormCount
from azr.selfplay.in_flight import ANSWERED, Answered, Leftover, Origin
from azr.tasks.base import RejectReason

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Graded answers to one prompt."""

    phase: str
    """``estimate`` or ``solve``."""
    solve_rate: float | None
    """Share of right answers among the graded ones; None when the executor graded none."""
    trajectories: list[Sample]
    """What is trained on."""
    untrained: list[Sample]
    """The others: ungraded answers, and all of an estimate that only estimates."""
    num_tokens: int
    """Of all responses."""
    num_ungraded: int
    """Answers that the executor lost, or that took the engine too long."""
    form: FormCount
    """Of all answers, those that are not trained on included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """What became of one proposal."""

    outcome: Task | RejectReason
    """A task has its solve rate, unless it is a seed."""
    num_tokens: int
    """Of the response."""
    trajectory: Sample | None
    """None when the proposal is not trained on."""
    untrained: Sample | None
    """None when it is, or when it took too long."""
    estimate: Answers | None
    """None when there was nothing to estimate."""
    form: FormCount
    """Of the one response."""


Work = asyncio.Task[Proposed] | asyncio.Task[list[Answers]]


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """A piece of a step's work, which may outlive it."""

    work: Work
    origin: Origin
    answered: Answered = field(default_factory=dict)
    """What it was answered so far."""
    after: asyncio.Task[Proposed] | None = None
    """The proposal that it follows."""

    def left_over(self) -> Carried:
        """As it is when its step ends: the proposal that it follows may have ended in that step."""
        outcome = self.after.result().outcome if self.after is not None and self.after.done() else None
        return replace(self, origin=replace(self.origin, task=outcome)) if isinstance(outcome, Task) else self

    @property
    def leftover(self) -> Leftover:
        return Leftover(origin=self.origin, answered=self.answered)


class Begun:
    """Work of one kind that is under way: proposals, and answers by the list. It may outlive the step it began in."""

    def __init__(self, carried: Sequence[Carried] = ()) -> None:
        self._pieces, self._carried = list(carried), [piece.work for piece in carried]
        self.seen: set[str] = set()
        """Ids of the tasks that were accepted."""
        self.stored: list[Task] = []
        """Those that entered the buffer in this step."""
        self.given_up = False

    def start(
        self,
        work: Coroutine[Any, Any, R],
        origin: Origin,
        *,
        answered: Answered | None = None,
        after: asyncio.Task[Proposed] | None = None,
    ) -> asyncio.Task[R]:
        """Begins a piece of work, with what it was answered before where it had begun once already."""
        answered, context = {} if answered is None else answered, copy_context()
        context.run(ANSWERED.set, answered)
        task = asyncio.create_task(work, context=context)
        self._pieces.append(Carried(task, origin, answered, after))  # type: ignore[arg-type]
        return task

    @property
    def _work(self) -> list[Work]:
        return [piece.work for piece in self._pieces]

    async def enough(self, share: float) -> None:
        """Waits for this share, and for all that was carried into the step.

        So nothing is carried twice, and nothing grows too old to be trained on because it takes long.
        """
        await self.until(share)
        await self.until(1.0, self._carried)

    async def until(self, share: float, among: Sequence[Work] | None = None) -> None:
        """Waits for this share of `among`, of all where nothing is given. Raises the first failure of any."""
        awaited = set(self._work if among is None else among)
        missing = math.ceil(share * len(awaited)) - sum(task.done() for task in awaited)
        enough = asyncio.Event()

        def count(task: Work) -> None:
            nonlocal missing
            missing -= task in awaited
            if missing <= 0 or task.cancelled() or task.exception() is not None:
                enough.set()

        pending = self.unfinished
        for task in pending:
            task.add_done_callback(count)
        try:
            if missing > 0 and not self._failed():
                await enough.wait()
        finally:
            for task in pending:
                task.remove_done_callback(count)
        for task in self._failed():
            task.result()

    def _failed(self) -> list[Work]:
        return [task for task in self._work if task.done() and (task.cancelled() or task.exception() is not None)]

    @property
    def unfinished(self) -> list[Work]:
        return [task for task in self._work if not task.done()]

    @property
    def left_over(self) -> list[Carried]:
        """What is unfinished."""
        return [piece.left_over() for piece in self._pieces if not piece.work.done()]

    @property
    def proposed(self) -> list[Proposed]:
        """In the order in which they began."""
        results = [task.result() for task in self._work if task.done()]
        return [result for result in results if isinstance(result, Proposed)]

    @property
    def answers(self) -> list[Answers]:
        results = [task.result() for task in self._work if task.done()]
        return [answers for result in results if isinstance(result, list) for answers in result]

    def cancel(self) -> list[Work]:
        """Gives up what is under way, and returns it."""
        self.given_up = True
        for task in self.unfinished:
            task.cancel()
        return self.unfinished


@asynccontextmanager
async def ended_with_errors(begun: Collection[Begun]) -> AsyncIterator[None]:
    """An error leaves nothing under way."""
    try:
        yield
    except BaseException:
        given_up = [task for of_kind in begun for task in of_kind.cancel()]
        await asyncio.gather(*given_up, return_exceptions=True)
        raise
