"""Functions in child processes that can be killed: none of them can stop or block a run.

`Workers` is the run's side and `serve` the process's; messages and answers are lines of JSON. `OwnFunctions` are the
user's graders. A failure is a `WorkerError`: it costs one answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

from azr.errors import UserError
from azr.processes import OWNER, end_with

TIME_LIMIT_S = 10.0
"""Time for one answer of the user's own function; after it the process is killed."""
MEMORY_BYTES = 4 * 2**30
"""Memory of one process, in addition to what its libraries map, which is a lot for some."""
MAX_ANSWER_BYTES = 4 * 2**20
"""Default bound on the JSON of an answer."""
MAX_HANGS = 4
"""Timeouts of a function in a row after which it rests: one that always hangs must not cost every answer its limit."""
REST_S = 60.0
"""Rest before it is tried again."""
NUM_SAID = 5
"""Number of different troubles of a function that are logged."""
_START_LIMIT_S = 120.0
_LONGEST_LINE = 1 << 30
_log = logging.getLogger(__name__)


class WorkerError(Exception):
    """A function gave no answer; the message continues a sentence that begins with its name."""


class WorkerTimeout(WorkerError):
    """There was no answer in time, or no readable one; the process was ended."""


class _Process:
    """One process, which prints a line when it is ready. One message at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it unless it runs. Raises RuntimeError if it ends, and TimeoutError, before it is ready."""
        if self._process is not None:
            return
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_LONGEST_LINE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), OWNER: str(os.getpid())},
            start_new_session=True,  # to be ended with all that it starts
        )
        assert self._process.stdout is not None
        try:
            if not await asyncio.wait_for(self._process.stdout.readline(), _START_LIMIT_S):
                raise RuntimeError(f"{' '.join(self._command)} does not start")
        except BaseException:
            await self.end()
            raise

    async def ask(self, message: Mapping[str, Any], limit_s: float) -> Any:
        """See `Workers.ask`."""
        try:
            try:
                await self.start()
            except (RuntimeError, TimeoutError, OSError) as error:
                raise WorkerError(f"is in a process that does not start again ({error})") from error
            assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
            line = json.dumps(message).encode() + b"\n"  # what fails here is no fault of the process
            try:
                async with asyncio.timeout(limit_s):
                    self._process.stdin.write(line)
                    await self._process.stdin.drain()
                    said = json.loads(await self._process.stdout.readline())
                if not isinstance(said, dict):
                    raise ValueError("no answer")
            except (TimeoutError, ConnectionError, ValueError) as error:
                raise WorkerTimeout(f"took over {limit_s:g} s, or ended its process") from error
        except BaseException:
            await self.end()  # its answer to this message would be read as that to the next
            raise
        if "trouble" in said:
            raise WorkerError(said["trouble"])
        return said["answer"]

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class Workers:
    """Up to ``size`` processes ``python -m MODULE ARGUMENTS``, each of which calls `serve`.

    A process is started when it is needed, also again after its end, and ends no later than this one.
    """

    def __init__(self, module: str, arguments: Sequence[str] = (), size: int = 1) -> None:
        self._command, self._size = (sys.executable, "-m", module, *arguments), size
        self._processes: list[_Process] = []
        self._free: asyncio.LifoQueue[_Process] = asyncio.LifoQueue()

    async def start(self) -> None:
        """Start one process as a check. Raises RuntimeError or TimeoutError if it does not start."""
        async with self._borrowed() as process:
            await process.start()

    async def end(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            await process.end()

    async def ask(self, message: Mapping[str, Any], limit_s: float) -> Any:
        """Return the answer of the first free process. Raises WorkerError, also if it does not start."""
        async with self._borrowed() as process:
            return await process.ask(message, limit_s)

    @contextlib.asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[_Process]:
        """Reserve the first free process for the block."""
        if not self._processes:  # a queue belongs to the event loop in which it is first waited for
            self._processes, self._free = [_Process(self._command) for _ in range(self._size)], asyncio.LifoQueue()
            for process in self._processes:
                self._free.put_nowait(process)
        free = self._free
        process = await free.get()
        try:
            yield process
        finally:
            free.put_nowait(process)


def ask_once(named: str, module: str, arguments: Sequence[str], message: Mapping[str, Any]) -> Any:
    """Return the answer of one process that ends with it, also where an event loop runs. Raises WorkerError, and
    UserError as `OwnFunctions.check_start`."""

    async def ask() -> Any:
        workers = OwnFunctions(module, arguments, 1)
        try:
            await workers.check_start(named)
            return await workers.ask(message, TIME_LIMIT_S)
        finally:
            await workers.end()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, ask()).result()


class OwnFunctions(Workers):
    """The user's own functions: what they do wrong is logged, and one that hangs rests for a while."""

    def __init__(self, module: str, arguments: Sequence[str], size: int = 2) -> None:
        super().__init__(module, arguments, size)
        self._hangs, self._rests_until = Counter[str](), dict[str, float]()
        self._said: dict[str, set[str]] = {}

    async def check_start(self, named: str) -> None:
        """Start one process. Raises UserError if that does not start; ``named``: what it belongs to."""
        try:
            await self.start()
        except (RuntimeError, TimeoutError) as error:
            raise UserError(
                f"{named} does not start in its own process: its module must load without a terminal and without the "
                "run."
            ) from error

    async def call(self, what: str, message: Mapping[str, Any], *, costs: str) -> Any:
        """Return the function's answer to a message. Raises WorkerError, once it is logged.

        ``what`` names the function in the log, and ``costs`` ends the line there after a semicolon.
        """
        try:
            async with self._borrowed() as process:
                if self._hangs[what] >= MAX_HANGS:
                    if time.monotonic() < self._rests_until[what]:
                        raise WorkerError(
                            f"gave no answer {MAX_HANGS} times in a row, and is asked again after {REST_S:g} s"
                        )
                    self._rests_until[what] = time.monotonic() + REST_S  # this one tries it, and no other meanwhile
                try:
                    answer = await process.ask(message, TIME_LIMIT_S)
                except WorkerError as trouble:
                    self._hangs[what] = self._hangs[what] + 1 if isinstance(trouble, WorkerTimeout) else 0
                    self._rests_until[what] = time.monotonic() + REST_S
                    raise
                self._hangs[what] = 0
                return answer
        except WorkerError as trouble:
            said = self._said.setdefault(what, set())
            if str(trouble) not in said and len(said) < NUM_SAID:
                said.add(str(trouble))
                _log.warning("%s %s; %s", what, trouble, costs)
            raise


class InvalidReply(Exception):
    """Raised for a bad return value of a user's function; the message continues a sentence after "returned"."""


def plain_number(value: object) -> object:
    """Return a number of any library as a float, its bool as one; everything else as it is."""
    if getattr(value, "shape", None) == ():  # of a scalar or an array without dimensions, such as np.True_
        value = value.item()  # type: ignore[attr-defined]
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return value
    try:
        return float(value)
    except (OverflowError, ValueError):  # the latter for a signalling NaN of Decimal
        return math.inf


def serve(load: Callable[[Sequence[str]], Callable[[Any], Any]]) -> None:
    """Answer messages until the input ends; the parent kills a process that takes too long over one.

    ``load``: from the arguments of the command line to a function that answers a message with plain data or raises
    InvalidReply.
    """
    end_with(int(os.environ[OWNER]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run to answer
    # What a function prints must not be taken for an answer, nor may it read messages.
    answers = os.fdopen(os.dup(1), "w")
    questions = os.fdopen(os.dup(0))
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    answer = load(sys.argv[1:])
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY_BYTES
    if (known := resource.getrlimit(resource.RLIMIT_AS)[1]) != resource.RLIM_INFINITY:
        limit = min(limit, known)  # that of `load` or of the machine
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    print("ready", file=answers, flush=True)
    for line in questions:
        message = json.loads(line)
        try:
            said = json.dumps({"answer": answer(message)})
            if len(said) > message.get("max_answer_bytes", MAX_ANSWER_BYTES):
                raise InvalidReply(f"{len(said):,} bytes, which is more than an answer may have")
        except InvalidReply as nonsense:
            said = json.dumps({"trouble": f"returned {nonsense}"})
        except (Exception, SystemExit) as error:
            said = json.dumps({"trouble": f"raised {type(error).__name__}: {str(error)[:200]}"})
        print(said, file=answers, flush=True)
