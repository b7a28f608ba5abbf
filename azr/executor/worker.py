"""The zygote: a fresh interpreter that loads the standard library once and forks a sealed child per program.

Started as a script by the pool, behind whatever walls the backend puts around it. It speaks the protocol
over its standard input and output, one request at a time, and ends when its input ends. It never runs
text written by a model itself; it starts, times, kills and reaps the children that do.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])
sys.path.insert(0, _ROOT)

from azr import values  # noqa: E402
from azr.executor import program, protocol  # noqa: E402
from azr.executor.child import Child, PoolGoneError, Report  # noqa: E402
from azr.executor.lockdown import Lockdown, broken_walls  # noqa: E402
from azr.executor.protocol import Limits  # noqa: E402
from azr.records import CallResult, CallStatus  # noqa: E402

ALLOWED_MODULES = (
    "abc", "array", "ast", "base64", "binascii", "bisect", "cmath", "collections", "collections.abc", "colorsys",
    "contextlib", "copy", "csv", "dataclasses", "decimal", "difflib", "enum", "fnmatch", "fractions", "functools",
    "graphlib", "heapq", "html", "itertools", "json", "keyword", "math", "numbers", "operator", "pprint", "re",
    "statistics", "string", "struct", "textwrap", "types", "typing", "unicodedata", "zlib",
)  # fmt: skip
"""Loaded before any program runs; nothing else can be imported once the files are out of reach."""

_CODECS = (
    "ascii", "cp1252", "idna", "latin-1", "punycode", "raw-unicode-escape", "unicode-escape", "utf-8", "utf-8-sig",
    "utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-32-le",
)  # fmt: skip
_FORGOTTEN = ("azr", "ctypes", "_ctypes", "select", "socket", "_socket", "resource", "tempfile", "gc", "__main__")
_MAX_TIMEOUTS = 2
_WALLS_S = 10.0


class Zygote:
    """Serves the requests of one pool until it goes away."""

    def __init__(self, commands: int, replies: int, limits: Limits) -> None:
        self._commands = commands
        self._replies = replies
        self._limits = limits
        self._lockdown = Lockdown(limits.memory_mb, limits.request_s)

    def serve(self) -> None:
        protocol.write(self._replies, {"broken_walls": self._try_walls()})
        while (request := protocol.read(self._commands, protocol.REQUEST_BYTES)) is not None:
            protocol.write(self._replies, self._answer(request))

    def _fork(self, target: Callable[[Report], None]) -> Child:
        report_bytes = max(self._limits.report_bytes, protocol.SCREEN_BYTES)
        return Child(self._lockdown, target, pool=self._commands, report_bytes=report_bytes)

    def _try_walls(self) -> list[str]:
        """Names of the walls that a sealed child got through, or of the seal when it could not be applied."""
        zygote = os.getpid()
        child = self._fork(lambda report: report({"broken_walls": broken_walls(zygote)}))
        message = child.next_message(time.monotonic() + _WALLS_S)
        child.end()
        # Other walls can hide that the filter is missing, so that is not left to trying.
        unfiltered = [] if self._lockdown.filters else ["system calls"]
        return unfiltered + (["seal"] if message is None else message["broken_walls"])

    def _answer(self, request: dict) -> dict:
        outputs: list[CallResult] = []
        reasons: tuple[str, ...] = ()
        count, timeouts = len(request["inputs"]), 0
        deadline = time.monotonic() + self._limits.request_s
        while len(outputs) < count and not reasons:
            if timeouts >= _MAX_TIMEOUTS or time.monotonic() >= deadline:
                outputs += [_timeout(0.0)] * (count - len(outputs))
                break
            reasons, finished = self._run(request, len(outputs), deadline)
            outputs += finished
            timeouts += sum(output.status is CallStatus.TIMEOUT for output in finished)
        if reasons:
            outputs = [CallResult(status=CallStatus.REJECTED, error=reasons[0])] * count
        calls = [protocol.call_message(output) for output in outputs]
        return {"id": request["id"], "screen": list(reasons), "outputs": calls}

    def _run(self, request: dict, first: int, deadline: float) -> tuple[tuple[str, ...], list[CallResult]]:
        """Screen reasons, else outcomes of the inputs from ``first`` to the first that ended the child."""
        pending = range(first, len(request["inputs"]))
        child = self._fork(lambda report: program.run(request, pending, self._limits, report))
        finished: list[CallResult] = []
        started = time.monotonic()
        try:
            message = child.next_message(min(started + self._limits.wall_s, deadline))
            if message is not None and (reasons := protocol.read_screen(message)):
                return reasons, []
            while message is not None and len(finished) < len(pending):
                started = time.monotonic()
                message = child.next_message(min(started + self._limits.wall_s, deadline))
                if message is not None:
                    wall_s = time.monotonic() - started
                    finished.append(_verified(message, wall_s, self._limits.output_bytes))
            if message is None:
                finished.append(_ending(child.timed_out, child.end(), time.monotonic() - started))
        except protocol.ProtocolError as error:
            finished.append(CallResult(status=CallStatus.CRASHED, error=protocol.sentence(f"forged report: {error}")))
        finally:
            child.end()
        return (), finished


def _verified(message: dict, wall_s: float, output_bytes: int) -> CallResult:
    """A child's claim with the time we measured, and its value rewritten as truly canonical text.

    Raises ProtocolError for what no honest child sends.
    """
    claim = protocol.read_call(message, output_bytes)
    value = claim.value
    if value is not None:
        try:
            value = values.canonical(values.parse(value), max_bytes=output_bytes)
        except values.PlainDataError as error:
            raise protocol.ProtocolError(f"the value is not plain data ({error})") from error
    return replace(claim, value=value, wall_s=wall_s, cpu_s=min(claim.cpu_s, wall_s))


def _timeout(wall_s: float) -> CallResult:
    return CallResult(status=CallStatus.TIMEOUT, error="the time limit passed", wall_s=wall_s)


def _ending(timed_out: bool, code: int, wall_s: float) -> CallResult:
    """What to say of a call whose child ended without reporting it."""
    if timed_out or code == -signal.SIGXCPU:
        return _timeout(wall_s)
    how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
    return CallResult(status=CallStatus.CRASHED, error=f"the process {how}", wall_s=wall_s)


def _preload() -> None:
    for name in ALLOWED_MODULES:
        importlib.import_module(name)
    for codec in _CODECS:
        "a".encode(codec).decode(codec)
    "\N{BULLET}".isidentifier()


def _forget() -> None:
    """Take out of the programs' reach what only the zygote needs; no file can be imported anew later."""
    for name in list(sys.modules):
        if name.split(".")[0] in _FORGOTTEN:
            del sys.modules[name]
    sys.path.remove(_ROOT)
    sys.stdin = sys.stdout = sys.stderr = None
    gc.collect()
    gc.freeze()
    gc.disable()


def _take_standard_streams() -> tuple[int, int]:
    """Move the pipes to the pool away from 0 and 1, and leave /dev/null there."""
    commands, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return commands, replies


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    commands, replies = _take_standard_streams()
    message = protocol.read(commands, protocol.REQUEST_BYTES)
    if message is None:
        return
    _preload()
    zygote = Zygote(commands, replies, protocol.read_limits(message))
    _forget()
    try:
        zygote.serve()
    except (PoolGoneError, BrokenPipeError):
        os._exit(0)


if __name__ == "__main__":
    main()
