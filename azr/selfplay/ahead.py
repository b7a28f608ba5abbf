"""Play up to `steps_ahead` steps while an earlier one trains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from azr.selfplay.play import StepResult


async def play_ahead(
    play: Callable[[int], Coroutine[Any, Any, StepResult]], steps: range, permits: asyncio.Semaphore
) -> AsyncGenerator[StepResult, None]:
    """Yield the steps' results. One is played when the one before is, and acquires a permit.

    Raises what playing a step raised where its result is awaited. Closing cancels what is under way.
    """
    begun = asyncio.Queue[asyncio.Task[StepResult]]()

    async def play_all() -> None:
        for step in steps:
            await permits.acquire()
            playing = asyncio.create_task(play(step))
            begun.put_nowait(playing)
            await playing

    playing_all = asyncio.create_task(play_all())
    try:
        for _ in steps:
            yield await (await begun.get())
    finally:
        playing_all.cancel()
        await asyncio.gather(playing_all, return_exceptions=True)
