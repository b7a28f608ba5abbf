"""The user's own functions, in processes that can be killed: none of them can stop or block a run.

`OwnFunctions` is the run's side and `serve` the process's. A failure is a `Trouble`: it costs one answer and is logged.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from azr.line_process import LineProcess, LineProcessPool, Reply, end_with_parent

TIME_LIMIT_S = 10.0
"""Time for one answer, without what the function asks the run for; after it the process is killed."""
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
_log = logging.getLogger(__name__)


class Trouble(Exception):
    """A function gave no answer; the message continues a sentence that begins with its name."""


class OwnFunctions:
    """Functions that ``python -m MODULE ARGUMENTS`` serves in up to ``size`` processes.

    A process is started when it is needed, also again after its end, and ends no later than this one.
    """

    def __init__(self, module: str, arguments: Sequence[str], size: int = 2) -> None:
        self._how = module, tuple(arguments), size
        self._pool: LineProcessPool | None = None
        self._hangs, self._rests_until = Counter[str](), dict[str, float]()
        self._said: dict[str, set[str]] = {}

    async def start(self) -> None:
        """Start one process as a check. Raises RuntimeError or TimeoutError if it does not start."""
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
        """Return the function's answer to a message. Raises Trouble, once it is logged, and what ``reply`` raises.

        ``what`` names the function in the log, and ``costs`` ends the line there after a semicolon. ``limit_s``: by
        default `TIME_LIMIT_S`. ``reply``: see `LineProcess.ask`.
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
    """Raised in the process for a bad return value; the message continues a sentence after "returned"."""


Ask = Callable[[Any], Any]
"""Function in the process that asks the run and returns its reply."""


def serve(load: Callable[[Sequence[str]], Callable[[Any, Ask], Any]]) -> None:
    """Answer messages until the input ends; the parent kills a process that takes too long over one.

    ``load``: from the arguments of the command line to a function that answers a message with plain data or raises
    Nonsense; its second argument asks the run for something meanwhile.
    """
    end_with_parent()
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
