"""Runs answers of code suites in the sandbox: what they are called with, or read, and what they say.

An answer is an ordinary program, so it runs without the static check, which is a rule for tasks that a model proposes.
The walls are those of every program. What is expected stays outside: an answer can only claim what it returns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azr import values
from azr.config import ExecutorConfig
from azr.evaluation.graders import plain_json
from azr.execution import CallResult, CallStatus, ExecutionRequest
from azr.executor.pool import SandboxPool

if TYPE_CHECKING:
    from azr.answering import Executor

WALL_S = 6.0
"""Wall-clock limit of one call or one test, as LiveCodeBench has it; EvalPlus gives 4 s or more."""
MEMORY_MB = 1024
"""Address space of an answer, MiB."""
MAX_OUTPUT = 2**21
"""Longest output of one test, and of the results of calls that share a process, bytes."""
_MAX_INPUT = 2**24
"""Longest input of one test, bytes."""
_MAX_CASES = 2**20
"""Most bytes of arguments of calls that share a process."""
_SHARE = 0.5
"""Share of the time limit after which calls in one process stop; the rest get another process."""
_UNSURE = (CallStatus.TIMEOUT, CallStatus.MEMORY, CallStatus.CRASHED, CallStatus.OUTPUT_TOO_LARGE)
"""Statuses after which it is unknown which call of a shared process failed."""

_PLAIN_JSON = Path(plain_json.__file__).read_text()

_START = """
import builtins, io, json, sys, time, types

class _Null(io.TextIOBase):
    def write(self, text):
        return len(text)

def _begin(name):
    module = types.ModuleType(name)
    sys.modules[name] = module
    module.__dict__["__builtins__"] = builtins
    return module.__dict__
"""

_CALLS = """
def f(text, budget_s, most):
    started = time.monotonic()
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(""), _Null(), _Null()
    sys.setrecursionlimit(_RECURSION)
    answer = _begin("answer")
    exec(compile(_SOURCE, "answer", "exec"), answer)
    owner = answer.get("Solution")
    function = getattr(owner(), _ENTRY) if hasattr(owner, _ENTRY) else answer[_ENTRY]
    said = []
    for case in json.loads(text):
        try:
            stated = json.dumps(encode(function(*decode(case))))
        except BaseException as error:
            said.append(json.dumps({"e": type(error).__name__}))
            break
        most -= len(stated) + 2
        if said and most < 0:
            break
        said.append(stated)
        if time.monotonic() - started > budget_s:
            break
    return "[" + ", ".join(said) + "]"
"""

_STDIN = """
def f(text):
    import os, threading
    data = text.encode("utf-8", "surrogatepass")
    stdin, written = io.BytesIO(data), io.BytesIO()
    sys.stdin = io.TextIOWrapper(stdin, encoding="utf-8", errors="surrogatepass")
    sys.stdout = io.TextIOWrapper(written, encoding="utf-8", errors="replace", write_through=True)
    sys.stderr = _Null()
    sys.setrecursionlimit(_RECURSION)
    opened, read, write, fstat = builtins.open, os.read, os.write, os.fstat

    def open_(file, mode="r", *rest, **more):
        if file in (0, "/dev/stdin"):
            return sys.stdin.buffer if "b" in mode else sys.stdin
        if file in (1, "/dev/stdout"):
            return sys.stdout.buffer if "b" in mode else sys.stdout
        return opened(file, mode, *rest, **more)

    class _Size:
        st_size = len(data)

    def exit_(code=0):
        raise SystemExit(code)

    builtins.open = io.open = open_
    builtins.exit = builtins.quit = os._exit = exit_
    os.read = lambda file, count: stdin.read(count) if file == 0 else read(file, count)
    os.write = lambda file, some: written.write(some) if file == 1 else len(some) if file == 2 else write(file, some)
    os.fstat = lambda file: _Size if file == 0 else fstat(file)
    threading.Thread.start = lambda thread: thread.run()
    threading.Thread.join = lambda thread, timeout=None: None
    answer = _begin("__main__")
    try:
        exec(compile(_SOURCE, "answer", "exec"), answer)
    except SystemExit:
        pass
    sys.stdout.flush()
    return written.getvalue().decode("utf-8", "replace")
"""

RECURSION = 1_000
"""Python's own recursion limit."""
DEEP_RECURSION = 50_000
"""LiveCodeBench's recursion limit."""
ANSWER_REPEATS = 4
"""Most repeats that a request to a pool for answers may ask for."""


def answer_config(config: ExecutorConfig) -> ExecutorConfig:
    """Return the limits for answers of code suites, with the configured isolation."""
    return replace(config, wall_s=max(WALL_S, config.wall_s), memory_mb=max(MEMORY_MB, config.memory_mb))


def answer_pool(config: ExecutorConfig, *, seed: int | None = None) -> SandboxPool:
    """Return a pool whose sandboxes have the modules that answers import, and take and return long values.

    A run's own pool refuses most of that, so an evaluation in a run has one of these beside it.
    """
    return SandboxPool(answer_config(config), seed=seed, repeats=ANSWER_REPEATS, answers=True)


def call_program(source: str, entry: str, recursion: int = RECURSION) -> str:
    """Return a program for `calls` that calls a function of the source, or a method of its class ``Solution``."""
    return f"{_PLAIN_JSON}\n_SOURCE = {source!r}\n_ENTRY = {entry!r}\n_RECURSION = {recursion}\n{_START}{_CALLS}"


def stdin_program(source: str) -> str:
    """Return a program for `standard_output` that runs the source as a script."""
    return f"_SOURCE = {source!r}\n_RECURSION = {DEEP_RECURSION}\n{_START}{_STDIN}"


@dataclass(frozen=True, slots=True)
class Ran:
    """Results of an answer's calls, up to the first that failed."""

    values: tuple[Any, ...]
    """Return values of the calls, in order."""
    failure: str | None = None
    """Failure of the next call, such as ``ZeroDivisionError`` or ``timeout``; None if all returned."""
    lost: bool = False
    """The executor lost the call."""


def case_text(arguments: Sequence[object]) -> str:
    """Return the arguments of one call as text for `calls`."""
    return json.dumps([plain_json.encode(each) for each in arguments])


async def calls(executor: Executor, program: str, cases: Sequence[str], budget_s: float = WALL_S * _SHARE) -> Ran:
    """Make all calls, as many as can in one process; ``program`` is a `call_program`, ``cases`` are `case_text`."""
    found: list[Any] = []
    alone_until = 0
    while len(found) < len(cases):
        start = len(found)
        end = start + 1 if start < alone_until else _batch_end(cases, start)
        text = json.dumps("[" + ", ".join(cases[start:end]) + "]")
        alone = end == start + 1
        result = await executor.execute(
            ExecutionRequest(
                program=program,
                inputs=(f"{text}, {budget_s!r}, {MAX_OUTPUT}",),
                static_check=False,
                admitted=alone,
            )
        )
        call = result.outputs[0]
        if call.status is CallStatus.LOST:
            return Ran(tuple(found), "lost", lost=True)
        if call.status in _UNSURE and not alone:
            alone_until = end
            continue
        if call.status is not CallStatus.OK:
            return Ran(tuple(found), failure_of(call))
        returned, failure = _read(call.value or "", end - start)
        found += returned
        if failure is not None:
            return Ran(tuple(found), failure)
    return Ran(tuple(found))


async def standard_output(executor: Executor, program: str, text: str) -> tuple[str | None, CallResult]:
    """Return the output of a `stdin_program` for this input; None if it failed."""
    request = ExecutionRequest(
        program=program, inputs=(values.canonical(text, max_bytes=_MAX_INPUT),), static_check=False, admitted=True
    )
    call = (await executor.execute(request)).outputs[0]
    if call.status is not CallStatus.OK:
        return None, call
    written = values.parse(call.value or "", max_bytes=2**30)
    return (written if isinstance(written, str) else None), call


def failure_of(call: CallResult) -> str:
    """Return the failure of a call: the class of its exception, or its status."""
    return call.error or call.status.value if call.status is CallStatus.RAISED else call.status.value


def _batch_end(cases: Sequence[str], start: int) -> int:
    end, room = start + 1, _MAX_CASES - len(cases[start])
    while end < len(cases) and len(cases[end]) <= room:
        room -= len(cases[end]) + 2
        end += 1
    return end


def _read(text: str, count: int) -> tuple[list[Any], str | None]:
    """Return the values and the failure after them; output that no honest program writes is ``forged``."""
    try:
        said = json.loads(values.parse(text, max_bytes=2**30))
        if type(said) is not list or not 0 < len(said) <= count:
            return [], "forged"
        failure = said.pop()["e"] if type(said[-1]) is dict and said[-1].keys() == {"e"} else None
        return [plain_json.decode(each) for each in said], failure if failure is None else str(failure)
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError, AttributeError):
        return [], "forged"
