"""Runs answers of code suites in the sandbox: what they are called with, or read, and what they say.

An answer is an ordinary program, so it runs without the static check, which is a rule for tasks that a model proposes.
The walls are those of every program. What is expected stays outside: an answer can only claim what it returns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from azr import values
from azr.config import ExecutorConfig
from azr.execution import CallResult, CallStatus, ExecutionRequest
from azr.executor.pool import SandboxPool
from azr.graders import plain_json
from azr.tasks.base import Run

WALL_S = 6.0
"""Wall-clock limit of one call or one test, as LiveCodeBench has it; EvalPlus gives 4 s or more."""
MEMORY_MB = 1024
"""Address space of an answer, MiB."""
MAX_OUTPUT = 2**21
"""Longest output of one test, and of the results of calls that share a process, bytes."""
MAX_INPUT = 2**24
"""Longest input of one test, bytes of its `values.canonical` text."""
_MAX_CASES = 2**20
"""Most bytes of arguments of calls that share a process."""
MAX_SHOWN = 100
"""Characters of a value in a reason."""
_SHARE = 0.5
"""Share of the time limit after which calls in one process stop; the rest get another process."""
_UNSURE = (CallStatus.TIMEOUT, CallStatus.MEMORY, CallStatus.CRASHED, CallStatus.OUTPUT_TOO_LARGE)
"""Statuses after which it is unknown which call of a shared process failed."""

PLAIN_JSON = Path(plain_json.__file__).read_text()
"""Text of the module."""

_START = """
import atexit, builtins, gc, io, json, os, signal, sys, threading, time, types
import concurrent.futures.thread

class _Pipe(io.BytesIO):
    # A standard stream: it has a number, and what was written outlives its closing.
    kept = None

    def __init__(self, number, data=b"", forgets=False):
        super().__init__(data)
        self.number, self.forgets = number, forgets

    def fileno(self):
        return self.number

    def write(self, data):
        return len(data) if self.forgets else super().write(data)

    def close(self):
        if not self.closed:
            self.kept = self.getvalue()
        super().close()

    def written(self):
        return self.kept if self.closed else self.getvalue()

def _stream(pipe, mode, errors):
    stream = io.TextIOWrapper(pipe, encoding="utf-8", errors=errors, write_through=True)
    stream.mode = mode
    return stream

def _standard(data, forgets):
    # Python keeps a second name for each stream, so that one that a program replaces is not closed.
    pipes = [_Pipe(0, data), _Pipe(1, forgets=forgets), _Pipe(2, forgets=True)]
    sys.stdin = sys.__stdin__ = _stream(pipes[0], "r", "surrogatepass")
    sys.stdout = sys.__stdout__ = _stream(pipes[1], "w", "replace")
    sys.stderr = sys.__stderr__ = _stream(pipes[2], "w", "replace")
    read, write, fstat, opened, raw = os.read, os.write, os.fstat, io.open, io.FileIO
    places = {0: 0, 1: 1, 2: 2, "/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
    places |= {f"{folder}/{number}": number for folder in ("/dev/fd", "/proc/self/fd") for number in range(3)}

    size = types.SimpleNamespace(st_size=len(data), st_mode=0o10600)

    def open_(file, mode="r", *rest, **more):
        path = os.fspath(file) if isinstance(file, os.PathLike) else file
        if not isinstance(path, (int, str)) or path not in places:
            return opened(file, mode, *rest, **more)
        stream = (sys.__stdin__, sys.__stdout__, sys.__stderr__)[places[path]]
        return stream.buffer if "b" in mode else stream

    builtins.open = io.open = open_
    io.FileIO = lambda file, *rest, **more: pipes[file] if file in (0, 1, 2) else raw(file, *rest, **more)
    os.read = lambda file, count: pipes[0].read(count) if file == 0 else read(file, count)
    os.write = lambda file, some: pipes[file].write(some) if file in (1, 2) else write(file, some)
    os.fstat = lambda file: size if file in (0, 1, 2) else fstat(file)
    return pipes

def _run_now(thread):
    # No program can start a thread: what it would do is done here, and its exceptions end nothing else.
    try:
        thread.run()
    except BaseException:
        pass

def _submit_now(pool, function, /, *arguments, **named):
    future = concurrent.futures.Future()
    try:
        future.set_result(function(*arguments, **named))
    except BaseException as error:
        future.set_exception(error)
    return future

def _resource():
    # Limits are the sandbox's: a program sees none and may ask for any.
    module = types.ModuleType("resource")
    for number, name in enumerate("CPU FSIZE DATA STACK CORE RSS NPROC NOFILE MEMLOCK AS".split()):
        setattr(module, "RLIMIT_" + name, number)
    module.RLIM_INFINITY, module.RUSAGE_SELF, module.RUSAGE_CHILDREN = -1, 0, -1
    module.error = OSError
    module.getrlimit = lambda limit: (-1, -1)
    module.setrlimit = lambda limit, limits: None
    module.getrusage = lambda who: types.SimpleNamespace(ru_utime=0.0, ru_stime=0.0, ru_maxrss=0)
    return module

def _loop_without_sockets():
    import asyncio

    class Loop(asyncio.base_events.BaseEventLoop):
        def __init__(self):
            super().__init__()
            self._selector = self

        def select(self, timeout):
            time.sleep(timeout or 0)
            return []

        def _process_events(self, events):
            pass

        def _write_to_self(self):
            pass

    asyncio.DefaultEventLoopPolicy._loop_factory = Loop

def _begin(name, data=b"", forgets=True):
    # A namespace as Python gives a program, and the pipes of its standard streams.
    pipes = _standard(data, forgets)
    sys.argv = ["answer.py"]
    sys.setrecursionlimit(_RECURSION)
    sys.set_int_max_str_digits(0)
    sys.modules["resource"] = _resource()
    signal.signal = lambda number, handler: signal.SIG_DFL
    builtins.exit = builtins.quit = os._exit = sys.exit
    threading.Thread.start = _run_now
    threading.Thread.join = lambda thread, timeout=None: None
    threading.Thread.is_alive = lambda thread: False
    concurrent.futures.thread.ThreadPoolExecutor.submit = _submit_now
    if "asyncio" in _SOURCE:
        _loop_without_sockets()
    atexit._clear()
    module = types.ModuleType(name)
    sys.modules[name] = module
    module.__dict__["__builtins__"] = builtins
    return module.__dict__, pipes
"""

_CALLS = """
def f(text, budget_s, most):
    started = time.monotonic()
    answer, _ = _begin("answer")
    if _PRELUDE:
        exec(compile(_PRELUDE, "prelude", "exec"), answer)
        # What the question defines is not an answer to it.
        for name in (_ENTRY, "Solution"):
            answer.pop(name, None)
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

_WRITTEN = """
def _written(answer, pipes):
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.__stdout__):
        try:
            stream.flush()
        except ValueError:
            pass  # closed
    # Streams of the program's own write what they hold when they go.
    answer.clear()
    gc.collect()
    return pipes[1].written().decode("utf-8", "replace")
"""

_STDIN = """
def f(text):
    answer, pipes = _begin("__main__", text.encode("utf-8", "surrogatepass"), forgets=False)
    try:
        exec(compile(_SOURCE, "answer", "exec"), answer)
    except SystemExit:
        pass
    return _written(answer, pipes)
"""

_SCRIPT = """
import ast, contextlib, random, traceback

def f(text):
    script, pipes = _begin("__main__")
    error = ""
    random.seed(0)  # a script that runs again draws again what it drew
    try:
        for source in _SCRIPTS[:-1]:
            with contextlib.suppress(SystemExit):
                exec(compile(source, "before", "exec"), script)
            atexit._run_exitfuncs()
        pipes[1].forgets = False
        tree = ast.parse(_SCRIPTS[-1])
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "script", "exec"), script)
        value = None if last is None else eval(compile(ast.Expression(last.value), "script", "eval"), script)
        if value is not None:
            print(repr(value))
    except SystemExit:
        pass
    except BaseException as raised:
        frames = [each.lineno for each in traceback.extract_tb(raised.__traceback__) if each.filename == "script"]
        said = "".join(traceback.format_exception_only(raised)).strip()
        error = f"line {frames[-1]}: {said}" if frames else said
    return [_written(script, pipes)[:int(text)], error[:int(text)]]
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
    """Return a pool whose sandboxes have the modules that answers import, and take and return long values. A run's own
    pool refuses most of that, so an evaluation in a run has one of these beside it."""
    return SandboxPool(answer_config(config), seed=seed, repeats=ANSWER_REPEATS, answers=True)


def call_program(source: str, entry: str, recursion: int = RECURSION, prelude: str = "") -> str:
    """A program for `Calls` that calls a function of the source, or a method of its class ``Solution``."""
    stated = {"_PRELUDE": prelude, "_SOURCE": source, "_ENTRY": entry, "_RECURSION": recursion}
    return "\n".join([PLAIN_JSON, *(f"{name} = {value!r}" for name, value in stated.items()), _START, _CALLS])


def stdin_program(source: str) -> str:
    """Return a program for `standard_output` that runs the source as a script."""
    return f"_SOURCE = {source!r}\n_RECURSION = {DEEP_RECURSION}\n{_START}{_WRITTEN}{_STDIN}"


@dataclass(frozen=True, slots=True)
class Ran:
    """Results of an answer's calls, up to the first that failed."""

    values: tuple[Any, ...]
    """Return values of the calls, in order."""
    failure: str | None = None
    """Failure of the next call, such as ``ZeroDivisionError`` or ``timeout``; None if all returned."""
    lost: bool = False
    """The executor lost the call."""


def shown(value: object) -> str:
    """Return the beginning of a value as text, to say how an answer failed."""
    try:
        try:
            text = values.canonical(value)  # which writes sets in a fixed order
        except values.PlainDataError:
            text = repr(value)
    except (ValueError, RecursionError):  # such as a number of more digits than Python writes
        return "a value too large to write"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def case_text(arguments: Sequence[object]) -> str:
    """Return the arguments of one call as text for `calls`."""
    return json.dumps([plain_json.encode(each) for each in arguments])


async def calls(execute: Run, program: str, cases: Sequence[str]) -> Ran:
    """Make all calls, as many as can in one process; ``program`` is a `call_program`, ``cases`` are `case_text`."""
    found: list[Any] = []
    alone_until = 0
    while len(found) < len(cases):
        start = len(found)
        end, room = start + 1, _MAX_CASES - len(cases[start])
        while start >= alone_until and end < len(cases) and len(cases[end]) <= room:
            room -= len(cases[end]) + 2
            end += 1
        text = json.dumps("[" + ", ".join(cases[start:end]) + "]")
        alone, given = end == start + 1, f"{text}, {WALL_S * _SHARE!r}, {MAX_OUTPUT}"
        request = ExecutionRequest(program=program, inputs=(given,), static_check=False, admitted=alone)
        call = (await execute(request)).outputs[0]
        if call.status is CallStatus.LOST:
            return Ran(tuple(found), "lost", lost=True)
        if call.status in _UNSURE and not alone:
            alone_until = end
            continue
        if call.status is not CallStatus.OK:
            failure = call.error if call.status is CallStatus.RAISED else None
            return Ran(tuple(found), failure or call.status.value)
        returned, failure = _read(call.value or "", end - start)
        found += returned
        if failure is not None:
            return Ran(tuple(found), failure)
    return Ran(tuple(found))


async def standard_output(execute: Run, program: str, text: str) -> tuple[str | None, CallResult]:
    """Return the output of a `stdin_program` for this input; None if it failed. It is lost if the input is too long."""
    try:
        stated = values.canonical(text, max_bytes=MAX_INPUT)
    except values.TooLargeError as error:
        return None, CallResult(status=CallStatus.LOST, error=str(error))
    request = ExecutionRequest(program=program, inputs=(stated,), static_check=False, admitted=True)
    call = (await execute(request)).outputs[0]
    if call.status is not CallStatus.OK:
        return None, call
    written = values.parse(call.value or "", max_bytes=2**30)
    return (written if isinstance(written, str) else None), call


async def script_output(execute: Run, scripts: Sequence[str], most: int) -> tuple[tuple[str, str] | None, CallResult]:
    """Run scripts, in one namespace, as an interpreter would, which shows the value of the last one's last expression.
    Return what that one printed and the exception that ended it, at most so many characters of each; None if it ended
    otherwise, such as by a limit."""
    program = f"_SCRIPTS = {scripts!r}\n_SOURCE = repr(_SCRIPTS)\n_RECURSION = {RECURSION}\n{_START}{_WRITTEN}{_SCRIPT}"
    request = ExecutionRequest(program=program, inputs=(repr(str(most)),), static_check=False, admitted=True)
    call = (await execute(request)).outputs[0]
    if call.status is not CallStatus.OK:
        return None, call
    match values.parse(call.value or "", max_bytes=2**30):
        case [str(printed), str(error)]:
            return (printed, error), call
    return None, call  # it has replaced what runs it


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
