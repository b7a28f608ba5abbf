"""A process of its own that answers lines of JSON with lines of JSON, and is ended when it takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

Reply = Callable[[Any], Awaitable[Any]]
"""What the process asks in its turn while it works on a question, to what it is told."""

_START_LIMIT_S = 120.0
_LONGEST_ANSWER = 1 << 30


class _Silent(Exception):
    """It said nothing that can be read, or not in time."""


class LineProcess:
    """``python -m MODULE ARGUMENTS``, which prints a line when it is ready; started when it is first asked, and again
    after it was ended. One question at a time."""

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        self._command = (sys.executable, "-m", module, *arguments)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    async def ask(self, message: Any, limit_s: float, reply: Reply | None = None) -> Any | None:
        """Its answer, or None when it died, took longer or said what is no JSON; it is ended then.

        ``reply``: answers its lines ``{"ask": ...}``, as often as it asks; ``limit_s`` does not hold for that time.
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
        """What it says to a line, and how much of the time is left. Raises _Silent."""
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
        """Raises RuntimeError when it ends before it is ready, and TimeoutError when it is not ready in time."""
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
    """As many of them, for questions that come at once."""

    def __init__(self, module: str, arguments: Sequence[str], size: int) -> None:
        self._processes = [LineProcess(module, arguments) for _ in range(size)]
        self._free: asyncio.LifoQueue[LineProcess] = asyncio.LifoQueue()
        for process in self._processes:
            self._free.put_nowait(process)

    async def start(self) -> None:
        """Starts one of them, to see that it can be. Raises RuntimeError when it cannot."""
        await self._processes[-1].start()

    async def ask(self, message: Any, limit_s: float) -> Any | None:
        """As `LineProcess.ask`, of the first that is free."""
        async with self.borrowed() as process:
            return await process.ask(message, limit_s)

    @contextlib.asynccontextmanager
    async def borrowed(self) -> AsyncIterator[LineProcess]:
        """The first that is free, for nobody else while the block lasts."""
        process = await self._free.get()
        try:
            yield process
        finally:
            self._free.put_nowait(process)

    async def end(self) -> None:
        for process in self._processes:
            await process.end()
