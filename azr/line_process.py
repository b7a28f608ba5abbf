"""A process of its own that answers lines of JSON with lines of JSON, and is ended when it takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

_START_LIMIT_S = 120.0
_LONGEST_ANSWER = 1 << 30


class LineProcess:
    """``python -m MODULE ARGUMENTS``, which prints a line when it is ready; started when it is first asked, and again
    after it was ended. One question at a time."""

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        self._command = (sys.executable, "-m", module, *arguments)
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, message: Any, limit_s: float) -> Any | None:
        """Its answer, or None when it died or took longer; it is ended then."""
        try:
            process = self._process or await self.start()
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(message).encode() + b"\n")
            async with asyncio.timeout(limit_s):
                await process.stdin.drain()
                line = await process.stdout.readline()
            if line:
                return json.loads(line)
        except (TimeoutError, ConnectionError):
            pass
        except BaseException:
            await self.end()  # nobody reads what it says to this question any more
            raise
        await self.end()
        return None

    async def start(self) -> asyncio.subprocess.Process:
        """Raises RuntimeError when it ends before it is ready, and TimeoutError when it is not ready in time."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_LONGEST_ANSWER,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
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
                process.kill()
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
        process = await self._free.get()
        try:
            return await process.ask(message, limit_s)
        finally:
            self._free.put_nowait(process)

    async def end(self) -> None:
        for process in self._processes:
            await process.end()
