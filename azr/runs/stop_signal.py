"""SIGINT and SIGTERM: the first asks the run to stop where it loses nothing, the second ends it at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """The run was asked to stop and did."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(f"stopped by {signal.Signals(number).name}")


class Interrupt:
    """Listens for signals while its context is open."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._number = 0
        self._note: Callable[[str], None] = print
        self._task: asyncio.Task[Any] | None = None

    @contextmanager
    def listening(self, note: Callable[[str], None]) -> Iterator[None]:
        """``note`` is told of the first signal. A second one cancels the task that opened the context."""
        self._note, self._task = note, asyncio.current_task()
        self.listen()
        try:
            yield
        finally:
            for number in SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)

    def listen(self) -> None:
        """Once more, when a library may have taken the signals for itself."""
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._heard, number)

    def _heard(self, number: int) -> None:
        if self._asked.is_set():
            assert self._task is not None
            self._task.cancel()
            return
        self._number = number
        self._asked.set()
        self._note("asked to stop: saving what is done; ask once more to stop at once")

    def check(self) -> None:
        """Raises Stopped if somebody asked."""
        if self._asked.is_set():
            raise Stopped(self._number)

    async def unless_asked(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns; it is given up and Stopped raised as soon as somebody asks."""
        working = asyncio.ensure_future(work)
        asking = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait((working, asking), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        finally:
            asking.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))
        raise Stopped(self._number)
