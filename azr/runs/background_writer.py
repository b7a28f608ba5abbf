"""One thread that writes beside the next step; what it fails to write is raised before the run goes on without it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

MOST_WAITING = 2
"""Pieces of work that are under way or wait, each with a step's responses in memory."""
log = logging.getLogger(__name__)


class BackgroundWriter:
    """Does pieces of work one after the other. After one has failed, none is begun any more."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "writer")
        self._waiting: deque[Future[None]] = deque()
        self._failure: BaseException | None = None
        self._was_raised = False

    async def put(self, work: Callable[[], None]) -> None:
        """Begins with it when those before it are done; waits while there are too many. Raises as `flush`."""
        await self._wait(MOST_WAITING - 1)
        self._waiting.append(self._thread.submit(self._run, work))

    async def flush(self) -> None:
        """Returns when everything is written. Raises what a piece of work has raised, each time it is called."""
        await self._wait(0)

    def close(self) -> None:
        """Ends when everything is written; blocks. A failure that nobody was told of is logged."""
        self._thread.shutdown()
        if self._failure is not None and not self._was_raised:
            log.error("something could not be written: %s", self._failure, exc_info=self._failure)

    async def _wait(self, most: int) -> None:
        while len(self._waiting) > most:
            await asyncio.shield(asyncio.wrap_future(self._waiting[0]))
            self._waiting.popleft()
        if self._failure is not None:
            self._was_raised = True
            raise self._failure

    def _run(self, work: Callable[[], None]) -> None:
        if self._failure is None:
            try:
                work()
            except Exception as error:
                self._failure = error
