"""The zygote: a fresh interpreter that loads the standard library once and forks a sealed child per program.

Started as a script by the pool, inside the isolation of a backend. It speaks the protocol
over its standard input and output, one request at a time, and ends when its input ends. It never runs
text written by a model in its own process; it starts, times, kills and reaps the children that do.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import os
import select
import signal
import sys
import time
import types
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[2])
sys.path.insert(0, _ROOT)

from azr import values  # noqa: E402
from azr.executor import protocol  # noqa: E402
from azr.executor.protocol import Limits, Part  # noqa: E402
from azr.executor.seal import Lockdown, self_test_failures  # noqa: E402
from azr.executor.static_check import ALLOWED_MODULES, FILE_NAME, load  # noqa: E402

_CODECS = (
    "ascii", "cp1252", "idna", "latin-1", "punycode", "raw-unicode-escape", "unicode-escape", "utf-8", "utf-8-sig",
    "utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-32-le",
)  # fmt: skip
_UNLOADED = ("azr", "ctypes", "_ctypes", "select", "socket", "_socket", "resource", "tempfile", "gc", "__main__")
_MAX_TIMEOUTS = 2
_SELF_TEST_S = 10.0
_WARM_UP_RUNS = 20
_USUAL_BYTES = 2**15
"""Room for the frames that usually come; the buffer grows for others."""


class PoolGoneError(Exception):
    """The pool closed the zygote's input while a program was running."""


class Zygote:
    """Serves the requests of one pool until it goes away.

    Requests and reports pass through one buffer each, which are wiped after every program: what one program got, or
    what the pool has sent ahead, is not in the memory that the next one inherits.
    """

    def __init__(self, commands: int, replies: int, limits: Limits) -> None:
        self._commands = commands
        self._replies = replies
        self._limits = limits
        self._lockdown = Lockdown(limits.memory_mb, limits.request_s)
        self._poll = select.poll()
        self._poll.register(commands, 0)
        self._report = memoryview(bytearray(limits.report_bytes))
        self._zeros = memoryview(bytes(limits.report_bytes))

    def serve(self) -> None:
        greeting = protocol.encode({"self_test_failures": self._self_test()})
        protocol.write(self._replies, greeting)
        # The pipe to a child gets the lowest free number, always the same: one registration serves all of them.
        reader, writer = os.pipe()
        self._poll.register(reader, select.POLLIN)
        os.close(reader)
        os.close(writer)
        request = bytearray(_USUAL_BYTES)
        while (length := protocol.read(self._commands, request)) is not None:
            self._answer(memoryview(request)[:length])
            request[:length] = bytes(length)

    def _self_test(self) -> list[str]:
        """What a sealed child could reach, or `seal` when it could not be sealed."""
        zygote = os.getpid()
        reader, writer = os.pipe()
        child = self._lockdown.fork()
        if child == 0:
            self._run_child(
                writer, lambda: os.write(writer, protocol.encode({"self_test_failures": self_test_failures(zygote)}))
            )
        os.close(writer)
        told = os.read(reader, _USUAL_BYTES) if select.select([reader], [], [], _SELF_TEST_S)[0] else b""
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        # A backend can hide that the filter is missing, so that is not left to trying.
        unfiltered = [] if self._lockdown.filters else ["system calls"]
        return unfiltered + (protocol.decode(told)["self_test_failures"] if told else ["seal"])

    def _run_child(self, writer: int, act: Callable[[], object]) -> None:
        """A child's whole life."""
        try:
            self._lockdown.seal(writer)
            gc.enable()
            act()
            os._exit(0)
        finally:
            # An exception must never carry the child back into the zygote's loop.
            os._exit(1)

    def _answer(self, body: memoryview) -> None:
        """Send a part for each input, or the reasons of the static check alone.

        One long function: each function called between two forks has pages of its own that are copied then.
        """
        monotonic, poll, data, most = time.monotonic, self._poll.poll, self._report, len(self._report)
        number, count = protocol.REQUEST.unpack_from(body)
        wall_s, deadline = self._limits.wall_s, monotonic() + self._limits.request_s
        done, timeouts, refused = 0, 0, False
        while done < count and not refused:
            started = monotonic()
            if timeouts == _MAX_TIMEOUTS or started >= deadline:
                protocol.write(self._replies, protocol.PART.pack(number, Part.TIMEOUT, 0.0))
                done += 1
                continue
            reader, writer = os.pipe()
            child = self._lockdown.fork()
            if child == 0:
                self._run_child(writer, partial(run_program, body, done, self._limits, writer))
            os.close(writer)
            filled, peak, ending = 0, 0, b""
            while done < count and not ending and not refused:
                left = min(started + wall_s, deadline) - monotonic()
                events = poll(left * 1000) if left > 0 else ()
                if not events:
                    ending = Part.TIMEOUT
                    break
                if len(events) > 1 or events[0][0] != reader:
                    raise PoolGoneError
                got = os.readv(reader, (data[filled:],))
                filled += got
                peak = max(peak, filled)
                if not got:
                    ending = Part.CRASHED if filled < most else Part.FORGED
                while filled >= protocol.HEADER_BYTES and done < count and not ending and not refused:
                    end = protocol.HEADER_BYTES + protocol.LENGTH.unpack_from(data)[0]
                    if end > most:
                        ending = Part.FORGED
                    elif filled < end:
                        break
                    else:
                        now = monotonic()
                        letter = bytes(data[4:5])
                        head = protocol.PART.pack(number, letter, now - started)
                        protocol.pass_on(self._replies, head, data[5:end])
                        data[: filled - end] = data[end:filled]
                        filled -= end
                        started = now
                        done += 1
                        refused = done == 1 and letter == Part.REASONS
            os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os.close(reader)
            if ending:
                if code == -signal.SIGXCPU:
                    ending = Part.TIMEOUT
                timeouts += ending == Part.TIMEOUT
                head = protocol.PART.pack(number, ending, monotonic() - started)
                protocol.write(self._replies, head + protocol.CODE.pack(code))
                done += 1
            data[:peak] = self._zeros[:peak]


def run_program(body: bytes | memoryview, first: int, limits: Limits, writer: int) -> None:
    """Report why a request's program is refused, else the outcome of each input from ``first`` on, in order."""
    source, inputs, static_check = protocol.request_texts(body)
    code, reasons = load(source, static_check)
    if code is None:
        protocol.write(writer, protocol.screen_report(reasons))
        return
    for text in inputs[first:]:
        protocol.write(writer, _run_call(code, text, limits.output_bytes))


def _run_call(code: types.CodeType, text: str, output_bytes: int) -> bytes:
    try:
        arguments = values.parse_arguments(text)
    except values.PlainDataError as refusal:
        return protocol.call_report(protocol.REJECTED, protocol.sentence(f"argument text: {refusal}"), 0.0, 0.0)
    wall, cpu = time.monotonic(), time.process_time()
    status, text = _outcome(code, arguments, output_bytes)
    return protocol.call_report(status, text, time.monotonic() - wall, time.process_time() - cpu)


def _outcome(code: types.CodeType, arguments: tuple, output_bytes: int) -> tuple[bytes, str]:
    # A module of its own per call: globals set by one call do not reach the next.
    module = types.ModuleType(FILE_NAME)
    module.__dict__["__builtins__"] = builtins
    sys.modules[FILE_NAME] = module
    try:
        exec(code, module.__dict__)
        function = module.__dict__.get("f")
        if not callable(function):
            return protocol.REJECTED, "the program defines no function f"
        return protocol.OK, values.canonical(function(*arguments), max_bytes=output_bytes)
    except BaseException as error:
        # The boundary: whatever the program raises, SystemExit included, is its outcome.
        return _failure(error)


def _failure(error: BaseException) -> tuple[bytes, str]:
    kind = type(error)
    if kind is values.TooLargeError:
        return protocol.OUTPUT_TOO_LARGE, protocol.sentence(f"the returned value: {error}")
    if kind is values.PlainDataError:
        return protocol.REJECTED, protocol.sentence(f"the returned value: {error}")
    if issubclass(kind, MemoryError):
        return protocol.MEMORY, "the program ran out of memory"
    name = values.type_name(kind)
    return protocol.RAISED, protocol.sentence(name) if name.isidentifier() else "Exception"


def _preload(limits: Limits) -> None:
    # Nothing else can be imported once the files are out of reach.
    for name in ALLOWED_MODULES:
        importlib.import_module(name)
    for codec in _CODECS:
        "a".encode(codec).decode(codec)
    "\N{BULLET}".isidentifier()
    warnings.simplefilter("ignore")
    _warm_up(limits)


def _warm_up(limits: Limits) -> None:
    """Run a program of our own, so that children inherit code that is specialised and caches that are filled."""
    body = protocol.request_body(0, "import math\ndef f(x):\n    return [x, math.floor(x)]", ["1.5"], True)
    null = os.open(os.devnull, os.O_WRONLY)
    for _ in range(_WARM_UP_RUNS):
        run_program(body, 0, limits, null)
    os.close(null)
    del sys.modules[FILE_NAME]


def _shift_addresses() -> list[bytes]:
    """Memory to hold on to, of every size and another amount in each zygote.

    Addresses decide the order of sets of objects; interpreters that came up alike would agree on it.
    """
    seed = int(os.environ["PYTHONHASHSEED"])
    return [bytes(size) for size in range(16, 1024, 16) for _ in range(seed % 13)]


def _unload_modules() -> None:
    """Take out of the programs' reach what only the zygote needs; no file can be imported again later."""
    for name in list(sys.modules):
        if name.split(".")[0] in _UNLOADED:
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
    first = bytearray(_USUAL_BYTES)
    length = protocol.read(commands, first)
    if length is None:
        return
    limits = protocol.read_limits(bytes(first[:length]))
    _preload(limits)
    zygote = Zygote(commands, replies, limits)
    shift = _shift_addresses()
    _unload_modules()
    try:
        zygote.serve()
    except (PoolGoneError, BrokenPipeError):
        os._exit(0)
    except OSError:
        # No process for a child: the pool starts another zygote, asks it again, and then calls the request lost.
        os._exit(1)
    del shift


if __name__ == "__main__":
    main()
