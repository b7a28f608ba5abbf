"""Concurrent work: the first failure is the one that is reported, and seeds do not depend on what finishes first."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from itertools import islice
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")

Phase = Callable[[str], AbstractContextManager[None]]
"""Context manager of a named phase of a step."""


def stable_seed(*names: object) -> int:
    """Return a seed of 48 bits for what these names together identify, the same in every process."""
    return int.from_bytes(hashlib.sha256(repr(names).encode()).digest()[:6])


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """An ``asyncio.TaskGroup`` whose first failure is raised as itself instead of inside an exception group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures


async def wait_for_all(answers: Iterable[Awaitable[Any]]) -> list[Any]:
    """Return all answers, or raise the first failure once none is pending."""
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


async def gather(*work: Coroutine[Any, Any, T]) -> list[T]:
    """Return all results as ``asyncio.gather``; the first failure cancels the others before it is raised."""
    async with task_group() as group:
        tasks = [group.create_task(each) for each in work]
    return [task.result() for task in tasks]


class Work(Generic[Item, T]):
    """Asyncio tasks of a group by the item that each works on, in the order in which they began."""

    def __init__(self, group: asyncio.TaskGroup, run: Callable[[Item], Coroutine[Any, Any, T]]) -> None:
        self._group, self._run = group, run
        self._tasks: dict[asyncio.Task[T], Item] = {}

    def start(self, item: Item) -> asyncio.Task[T]:
        task = self._group.create_task(self._run(item))
        self._tasks[task] = item
        return task

    def cancel(self, task: asyncio.Task[T]) -> Item:
        """Cancel a task, and return the item, which the work forgets."""
        task.cancel()
        return self._tasks.pop(task)

    def items(self) -> list[Item]:
        return list(self._tasks.values())

    def results(self) -> dict[Item, T]:
        """Return the results of all tasks, which are done, by item; of cancelled ones none."""
        return {item: task.result() for task, item in self._tasks.items() if not task.cancelled()}

    async def wait_for_share(self, share: float, of: Callable[[Item], bool]) -> None:
        """Wait until this share of the items' tasks is done, those included that begin meanwhile."""
        while True:
            tasks = [task for task, item in self._tasks.items() if of(item)]
            pending = [task for task in tasks if not task.done()]
            missing = math.ceil(share * len(tasks)) - (len(tasks) - len(pending))
            if missing <= 0:
                return
            for ended in islice(asyncio.as_completed(pending), missing):
                await ended

    async def stop_unfinished(self) -> list[Item]:
        """Cancel the tasks that are not done. Return their items."""
        while pending := [task for task in self._tasks if not task.done()]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)
        return [item for task, item in self._tasks.items() if task.cancelled()]
