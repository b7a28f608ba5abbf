"""One sealed child of the zygote: forked, listened to under a time limit, and certainly ended."""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from collections.abc import Callable

from azr.executor import protocol
from azr.executor.lockdown import Lockdown

Report = Callable[[dict], None]


class PoolGoneError(Exception):
    """The pool closed the zygote's input while a program was running."""


class Child:
    """Runs ``target(report)`` in a fork that has given up everything but one pipe."""

    def __init__(self, lockdown: Lockdown, target: Callable[[Report], None], *, pool: int, report_bytes: int) -> None:
        self._pool = pool
        self._frames = protocol.FrameBuffer(report_bytes)
        self._ready: list[dict] = []
        self._exit_code: int | None = None
        self.timed_out = False
        self._reader, writer = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            _live(lockdown, target, writer)
        os.close(writer)

    def next_message(self, until: float) -> dict | None:
        """The next report; None when the child ended, or when ``until`` (monotonic seconds) passed.

        Raises ProtocolError for what is not a frame and PoolGoneError when nobody waits any more.
        """
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        poll.register(self._pool, 0)
        while not self._ready:
            events = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
            if self._pool in events:
                raise PoolGoneError
            if not events:
                self.timed_out = True
                return None
            data = os.read(self._reader, 2**16)
            if not data:
                return None
            self._ready += self._frames.feed(data)
        return self._ready.pop(0)

    def end(self) -> int:
        """Kill it if it still runs, and return its exit code (negative: the signal that ended it)."""
        if self._exit_code is None:
            # A child that already exited keeps its own code: killing a zombie changes nothing.
            os.kill(self._process, signal.SIGKILL)
            self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
            os.close(self._reader)
        return self._exit_code


def _live(lockdown: Lockdown, target: Callable[[Report], None], writer: int) -> None:
    try:
        lockdown.seal(writer)
        gc.enable()
        target(lambda message: protocol.write(writer, message))
        os._exit(0)
    finally:
        # An exception must never carry the child back into the zygote's loop.
        os._exit(1)
