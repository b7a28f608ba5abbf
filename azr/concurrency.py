"""Concurrent work: the first failure is the one that is reported, and seeds do not depend on what finishes first."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")

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
