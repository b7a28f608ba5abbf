"""Signals that ask a run to stop: the first one where nothing is lost, the second one at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import stat
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP: the terminal was closed."""
log = logging.getLogger(__name__)


class StopRequested(Exception):
    """The run was asked to stop and did."""

    def __init__(self, signal_number: int) -> None:
        self.exit_code = 128 + signal_number
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")


class StopSignal:
    """Listens for signals while its context is open."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._received = 0
        self._log: Callable[[str], None] = print
        self._task: asyncio.Task[Any] | None = None

    @contextmanager
    def listening(self, log: Callable[[str], None]) -> Iterator[None]:
        """``log`` gets a line for the first signal. A second one cancels the task that opened the context."""
        self._log, self._task = log, asyncio.current_task()
        loop = asyncio.get_running_loop()
        # nohup has SIGHUP ignored, and that stays.
        taken = [each for each in SIGNALS if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
        for each in taken:
            loop.add_signal_handler(each, self._on_signal, each)
        try:
            yield
        finally:
            for each in taken:
                loop.remove_signal_handler(each)

    def _on_signal(self, received: int) -> None:
        if received == signal.SIGHUP:
            _leave_terminal()
        if self._requested.is_set():
            assert self._task is not None
            if received != signal.SIGHUP:  # a terminal that is closed sends it to its leader and to the leader's group
                self._task.cancel()
            return
        self._received = received
        self._requested.set()
        self._log("asked to stop: saving what is done; ask once more to stop at once")

    def raise_if_requested(self) -> None:
        """Raises StopRequested after the first signal."""
        if self._requested.is_set():
            raise StopRequested(self._received)

    async def cancel_on_stop(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``; the first signal cancels it and raises StopRequested."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._requested.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        finally:
            stopping.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))
                if not working.cancelled() and (error := working.exception()) is not None:
                    log.warning("while it was stopped: %s", error)
        raise StopRequested(self._received)


def _leave_terminal() -> None:
    """Write to nowhere instead of to the terminal that was closed, where writing fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            os.dup2(nowhere, stream)
    os.close(nowhere)
