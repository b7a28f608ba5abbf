"""Functions of the user's own, which run in processes that can be killed: none of them can stop or block a run.

`OwnFunctions` is the run's side and `serve` the process's. What a function does wrong is a `Trouble`, which costs the
one answer that was wanted of it, and is named in the log.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from azr.line_process import LineProcess, LineProcessPool, Reply

TIME_LIMIT_S = 10.0
"""For one answer, what the function asks the run for aside; the process of one that takes longer is killed."""
MEMORY_BYTES = 4 * 2**30
"""Of one process, beside what its libraries map, which is a lot for some."""
MAX_ANSWER_BYTES = 4 * 2**20
"""Of JSON that a function's answer may be, where nothing else is said."""
MAX_HANGS = 4
"""Answers in a row that a function did not give in time, after which it is left alone for a while: what always hangs
must not take that long for every answer of a step."""
REST_S = 60.0
"""How long it is left alone before it is tried again."""
NUM_SAID = 5
"""Different troubles of a function that are logged; later ones are not."""
_PR_SET_PDEATHSIG = 1
_log = logging.getLogger(__name__)


class Trouble(Exception):
    """What a function did instead of answering, in words that follow its name."""


class OwnFunctions:
    """Functions that ``python -m MODULE ARGUMENTS`` serves, in up to ``size`` processes, started when they are needed
    and again after they were ended. They go with the block of ``async with``, and no later than this process."""

    def __init__(self, module: str, arguments: Sequence[str], size: int = 2) -> None:
        self._how = module, tuple(arguments), size
        self._pool: LineProcessPool | None = None
        self._hangs, self._rests_until = Counter[str](), dict[str, float]()
        self._said: dict[str, set[str]] = {}

    async def start(self) -> None:
        """Starts one process, to see that it can be. Raises RuntimeError or TimeoutError when it cannot."""
        self._pool = self._pool or LineProcessPool(*self._how)
        await self._pool.start()

    async def end(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.end()

    async def call(
        self,
        what: str,
        message: Mapping[str, Any],
        *,
        costs: str,
        limit_s: float | None = None,
        reply: Reply | None = None,
    ) -> Any:
        """What the process's function answers to a message.

        ``what`` names the function in the log, and ``costs`` says there what its trouble costs, in words that follow a
        semicolon. ``limit_s``: `TIME_LIMIT_S` when not given. ``reply``: see `LineProcess.ask`; what it raises passes.
        Raises Trouble, which the log has then.
        """
        self._pool = self._pool or LineProcessPool(*self._how)
        try:
            async with self._pool.borrowed() as process:
                return await self._call(process, what, message, TIME_LIMIT_S if limit_s is None else limit_s, reply)
        except Trouble as trouble:
            said = self._said.setdefault(what, set())
            if str(trouble) not in said and len(said) < NUM_SAID:
                said.add(str(trouble))
                _log.warning("%s %s; %s", what, trouble, costs)
            raise

    async def _call(
        self, process: LineProcess, what: str, message: Mapping[str, Any], limit_s: float, reply: Reply | None
    ) -> Any:
        if self._hangs[what] >= MAX_HANGS:
            if time.monotonic() < self._rests_until[what]:
                raise Trouble(f"gave no answer {MAX_HANGS} times in a row, and is asked again after {REST_S:g} s")
            self._rest(what)  # this one tries it, and no other meanwhile
        if not process.is_running:
            try:
                await process.start()
            except (RuntimeError, TimeoutError, OSError) as error:
                raise Trouble(f"is in a process that does not start again ({error})") from error
        said = await process.ask(message, limit_s, reply)
        if said is None:
            self._hangs[what] += 1
            self._rest(what)
            raise Trouble(f"took over {limit_s:g} s, or ended its process")
        self._hangs[what] = 0
        if "trouble" in said:
            raise Trouble(said["trouble"])
        return said["answer"]

    def _rest(self, what: str) -> None:
        self._rests_until[what] = time.monotonic() + REST_S


class Nonsense(Exception):
    """Raised in the process for what a function returned: what that is, in words that follow "returned"."""


Ask = Callable[[Any], Any]
"""In the process: asks the run, and waits for what it tells."""


def serve(load: Callable[[Sequence[str]], Callable[[Any, Ask], Any]]) -> None:
    """Answers messages until there are none left; the parent kills a process that takes too long over one.

    ``load`` gets the arguments of the command line, and gives what answers a message with plain data or raises
    Nonsense; with its second argument it can ask the run for something meanwhile.
    """
    # It must not outlive a run that was killed, whatever it is doing then, and Ctrl-C is for the run to answer.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a function prints must not be taken for an answer, nor may it read what it is asked.
    answers = os.fdopen(os.dup(1), "w")
    questions = os.fdopen(os.dup(0))
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    answer = load(sys.argv[1:])
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def say(what: Any) -> None:
        print(what if isinstance(what, str) else json.dumps(what), file=answers, flush=True)

    def ask(what: Any) -> Any:
        say({"ask": what})
        return json.loads(questions.readline())

    say({"ready": True})
    for line in questions:
        say(_answered(answer, json.loads(line), ask))


def _answered(answer: Callable[[Any, Ask], Any], message: Any, ask: Ask) -> str:
    try:
        said = json.dumps({"answer": answer(message, ask)})
        if len(said) > message.get("max_answer_bytes", MAX_ANSWER_BYTES):
            raise Nonsense(f"{len(said):,} bytes, which is more than an answer may have")
        return said
    except Nonsense as nonsense:
        trouble = f"returned {nonsense}"
    except Exception as error:
        trouble = f"raised {type(error).__name__}: {str(error)[:200]}"
    return json.dumps({"trouble": trouble})
