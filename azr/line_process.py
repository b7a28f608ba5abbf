"""Child processes that answer lines of JSON with lines of JSON, and are killed when they take too long."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

Reply = Callable[[Any], Awaitable[Any]]
"""Function that answers what the process asks while it works on a question."""

_START_LIMIT_S = 120.0
_LONGEST_ANSWER = 1 << 30
_PR_SET_PDEATHSIG = 1


class _Silent(Exception):
    """No readable answer in time."""


def end_with_parent() -> None:
    """Have this process killed when its parent ends, whatever it is doing then; Ctrl-C is for the parent to answer."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class LineProcess:
    """``python -m MODULE ARGUMENTS``, which prints a line when it is ready. One question at a time.

    It is started by the first question, and again after its end.
    """

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        self._command = (sys.executable, "-m", module, *arguments)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    async def ask(self, message: Any, limit_s: float, reply: Reply | None = None) -> Any | None:
        """Return its answer, or end it and return None if it died, took longer or did not answer JSON.

        ``reply`` answers its lines ``{"ask": ...}``; that time does not count against ``limit_s``.
        """
        try:
            if self._process is None:
                await self.start()
            said, left_s = await self._exchange(message, limit_s)
            while reply is not None and isinstance(said, dict) and "ask" in said:
                said, left_s = await self._exchange(await reply(said["ask"]), left_s)
            return said
        except _Silent:
            await self.end()
            return None
        except BaseException:
            await self.end()  # nobody reads what it says to this question any more
            raise

    async def _exchange(self, message: Any, limit_s: float) -> tuple[Any, float]:
        """Return its answer to a line and the seconds left. Raises _Silent."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(message).encode() + b"\n")
        begun = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                await process.stdin.drain()
                line = await process.stdout.readline()
            return json.loads(line), limit_s - (time.monotonic() - begun)
        except (TimeoutError, ConnectionError, ValueError) as error:
            raise _Silent from error

    async def start(self) -> asyncio.subprocess.Process:
        """Raises RuntimeError if it ends before it is ready, and TimeoutError if it is not ready in time."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_LONGEST_ANSWER,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,  # to be ended with all that it starts
        )
        self._process = process
        assert process.stdout is not None
        if not await asyncio.wait_for(process.stdout.readline(), _START_LIMIT_S):
            raise RuntimeError(f"{' '.join(self._command)} does not start")
        return process

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class LineProcessPool:
    """Several processes for concurrent questions."""

    def __init__(self, module: str, arguments: Sequence[str], size: int) -> None:
        self._processes = [LineProcess(module, arguments) for _ in range(size)]
        self._free: asyncio.LifoQueue[LineProcess] = asyncio.LifoQueue()
        for process in self._processes:
            self._free.put_nowait(process)

    async def start(self) -> None:
        """Start one of them as a check. Raises RuntimeError if it does not start."""
        await self._processes[-1].start()

    async def ask(self, message: Any, limit_s: float) -> Any | None:
        """Call `LineProcess.ask` of the first free process."""
        async with self.borrowed() as process:
            return await process.ask(message, limit_s)

    @contextlib.asynccontextmanager
    async def borrowed(self) -> AsyncIterator[LineProcess]:
        """Reserve the first free process for the block."""
        process = await self._free.get()
        try:
            yield process
        finally:
            self._free.put_nowait(process)

    async def end(self) -> None:
        for process in self._processes:
            await process.end()
