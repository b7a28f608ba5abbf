"""Waiting for several things at once, so that the first failure is the one that is reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

Phase = Callable[[str], AbstractContextManager[None]]
"""Opens a context in which something of the named phase is going on."""


async def as_coroutine(call: Awaitable[Any]) -> Any:
    """A coroutine around what can only be as_coroutine, such as a Ray reference, for ``asyncio`` to wrap."""
    return await call


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """An ``asyncio.TaskGroup`` whose first failure is raised as itself instead of inside an exception group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
