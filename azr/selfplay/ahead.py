"""Play up to `steps_ahead` steps while an earlier one trains."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from azr.selfplay.play import StepResult


class PlayAhead:
    """Plays steps in their order; a context manager that cancels what is under way at its end."""

    def __init__(
        self, play: Callable[[int], Coroutine[Any, Any, StepResult]], first: int, last: int, ahead: int
    ) -> None:
        """Play the steps ``first`` to ``last`` by ``play(step)``; with ``ahead`` 0 each when it is asked for."""
        self._play, self._steps, self._ahead = play, iter(range(first, last + 1)), ahead
        self._permits = asyncio.Semaphore(1 + ahead)
        """Steps that may be played before another one is learned."""
        self._played: asyncio.Queue[StepResult] = asyncio.Queue()
        self._playing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._ahead:
            self._playing = asyncio.create_task(self._play_all())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._playing is not None:
            self._playing.cancel()
            await asyncio.gather(self._playing, return_exceptions=True)

    async def next(self) -> StepResult:
        """Return the next step's result. Raises what playing it raised."""
        if self._playing is None:
            return await self._play(next(self._steps))
        waiting = asyncio.ensure_future(self._played.get())
        try:
            await asyncio.wait({waiting, self._playing}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                self._playing.result()
            return await waiting
        finally:
            waiting.cancel()

    def learned(self) -> None:
        """Let one more step be played: the engines have the weights of one more."""
        self._permits.release()

    async def _play_all(self) -> None:
        for step in self._steps:
            await self._permits.acquire()
            self._played.put_nowait(await self._play(step))
