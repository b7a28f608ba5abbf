"""Plays steps in their order, some of them while earlier ones are still learned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

from azr.selfplay.pieces import Carried
from azr.selfplay.play import StepResult

PlayFn = Callable[[int, Sequence[Carried]], Coroutine[Any, Any, StepResult]]
"""Plays the step of this number, with what the step before has left over."""


class PlayAhead:
    """A context manager; what is under way ends with it."""

    def __init__(self, play: PlayFn, first: int, last: int, ahead: int, carried: Sequence[Carried] = ()) -> None:
        """For the steps `first` to `last`; of those that are not learned yet, `ahead` may be played beside one that is.

        With 0, a step is played when it is asked for. `carried`: what the step before the first has left over.
        """
        self._play, self._next, self._last, self._ahead = play, first, last, ahead
        self._learned = first - 1
        self._moved = asyncio.Condition()
        self._carried = carried
        self._played: asyncio.Queue[StepResult] = asyncio.Queue()
        self._playing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._ahead:
            self._playing = asyncio.create_task(self._play_all())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        given_up = [each.work for each in self._carried]
        if self._playing is not None:
            given_up.append(self._playing)  # type: ignore[arg-type]
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)

    async def next(self) -> StepResult:
        """The next step's rollouts. Raises what playing it raised."""
        if self._playing is None:
            return await self._play_one()
        waiting = asyncio.ensure_future(self._played.get())
        try:
            await asyncio.wait({waiting, self._playing}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                self._playing.result()
            return await waiting
        finally:
            waiting.cancel()

    async def learned(self, step: int) -> None:
        """The engines have the weights that this step has led to."""
        async with self._moved:
            self._learned = step
            self._moved.notify_all()

    async def _play_all(self) -> None:
        while self._next <= self._last:
            async with self._moved:
                await self._moved.wait_for(lambda: self._next <= self._learned + 1 + self._ahead)
            self._played.put_nowait(await self._play_one())

    async def _play_one(self) -> StepResult:
        carried, self._carried = self._carried, ()  # a step that fails ends what was carried into it
        result = await self._play(self._next, carried)
        self._carried = result.carried
        self._next += 1
        return result
