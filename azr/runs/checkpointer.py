"""Saves while the run goes on: trainers have nothing else to do while the next step is played."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from azr.runs.checkpoint_store import CheckpointStore, Staging

WriteFn = Callable[[int, Staging], Awaitable[None]]
"""Writes all there is after a step into a folder. Raises OSError when the disk is full."""


class AsyncCheckpointer:
    """Knows which step was done last and which was saved; writes at most one checkpoint at a time."""

    def __init__(
        self, store: CheckpointStore, every: int, write: WriteFn, log: Callable[[str], None], done: int
    ) -> None:
        """``log`` gets a line for a checkpoint that could not be saved; ``done`` is the step the run goes on from."""
        self._store, self._every, self._write, self._log = store, every, write, log
        self._saving: asyncio.Task[None] | None = None
        self.done = self.saved = done
        self.seconds: float | None = None
        """What the last checkpoint took, most of it beside other work; None before the first."""

    def step_done(self, step: int) -> None:
        """Begins to save if a checkpoint is due. Nothing of it may change until `finish` has returned."""
        self.done = step
        if self._every and step % self._every == 0:
            self._start()

    async def finish(self) -> None:
        """Waits for the checkpoint that is being written, if one is.

        One that cannot be written costs a line in the log and nothing else: the one before it is still there.
        """
        if self._saving is None:
            return
        try:
            await self._saving
        except OSError as error:
            self._log(f"no checkpoint of step {self.done} was saved, and the run goes on: {error}")
        finally:
            self._saving = None

    async def finish_last(self) -> None:
        """Makes sure that the last step done is saved. Raises OSError when it cannot be."""
        await self.finish()
        if self.saved != self.done:
            self._start()
            await self.finish()
        if self.saved != self.done:
            raise OSError(f"step {self.done} could not be saved; the last checkpoint is of step {self.saved}")

    async def cancel(self) -> None:
        """Gives up what is being written."""
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.wait([self._saving])
            self._saving = None

    def _start(self) -> None:
        assert self._saving is None, "finish the last checkpoint first"
        self._saving = asyncio.create_task(self._save(self.done))

    async def _save(self, step: int) -> None:
        started = time.monotonic()
        async with self._store.stage(step) as staging:
            await self._write(step, staging)
        self.saved, self.seconds = step, time.monotonic() - started
