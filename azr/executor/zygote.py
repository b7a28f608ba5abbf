"""The zygote: a fresh interpreter that loads the standard library once and forks a sealed child for what a pool sends.

Started as a script by the pool, inside the isolation of a backend. It speaks the protocol
over its standard input and output, one request at a time, and ends when its input ends. It never runs
text written by a model in its own process; it starts, times, kills and reaps the children that do.

A forked child returns from the serving loop to the bottom of this file, and only there is it sealed and runs anything:
above a program there are no frames that know of requests, and of the inputs that are still to come nothing has been
read. All runs of code, in a validation or later, are alike; what a run of source leaves on the heap shows in suspects.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import marshal
import os
import select
import signal
import sys
import time
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_ROOT = os.path.realpath(f"{__file__}/../../..")
sys.path.insert(0, _ROOT)

from azr import values  # noqa: E402
from azr.execution import ADMITTED_SHARE  # noqa: E402
from azr.executor import protocol  # noqa: E402
from azr.executor.protocol import Kind, Limits, Part  # noqa: E402
from azr.executor.seal import (  # noqa: E402
    Lockdown,
    erase_environment,
    preload,
    self_test_failures,
    shift_addresses,
    take_clocks,
    take_standard_streams,
    unload_modules,
)
from azr.executor.static_check import ALLOWED_MODULES, FILE_NAME, load  # noqa: E402
from azr.executor.suspicion import STATE, suspicion  # noqa: E402

_MAX_TIMEOUTS = 2
_LOOK_S, _STILL_S, _STILL_CPU_S = 0.02, 2.0, 0.004
"""Least and most seconds between two looks at the clock of a call; less CPU time than the last means standing still."""
_SELF_TEST_S = 10.0
_WARM_UP_RUNS = 20
_WARM_UP_PROGRAM = b"import math\ndef f(x):\n    return [x, math.floor(x), '-'.join(str(y) for y in [x])]"
"""It has the check and the suspicion look into its tree."""
_USUAL_BYTES = 2**15
"""Room for the frames that usually come; the buffer grows for others."""
_PIPE_BYTES = 2**15
"""Longest input that is handed to a living child: less than what a pipe holds, so that writing never waits for it."""
_REPORTS_TO, _INPUTS_FROM = 3, 4
"""A child's descriptors."""
_NULL, _COMMANDS, _REPLIES = 0, 10, 11
"""The zygote's, out of the way of pipes to children."""
_PROCESS_CPU_CLOCK = 2


@dataclass(slots=True)
class Orders:
    """What a forked child is to do."""

    kind: int
    """Bits of `Kind`, or none for a test of the seal."""
    program: bytes = b""
    """Source or marshalled code."""
    text: bytes = b""
    """Arguments of its first call."""
    zygote: int = 0
    """For a test of the seal: the process that it must not reach."""

    def take(self) -> tuple[int, bytes, bytes]:
        """Kind, program and text, of which nothing stays here."""
        taken = self.kind, self.program, self.text
        self.kind, self.program, self.text = 0, b"", b""
        return taken


class Zygote:
    """Serves the requests of one pool until it goes away.

    Requests, inputs and reports pass through one buffer each, which are wiped after every program: what one program
    got is not in the memory that the next one inherits.
    """

    def __init__(self, limits: Limits, lockdown: Lockdown, clocks: Iterable[Callable[..., float]]) -> None:
        """``clocks``: ``time.monotonic`` and ``time.clock_gettime``, or what is left of them."""
        self._limits = limits
        self._lockdown = lockdown
        self._clocks = list(clocks)
        """Emptied by children."""
        self._poll = select.poll()
        self._poll.register(_COMMANDS, 0)
        self._program = bytearray(_USUAL_BYTES)
        self._input = bytearray(_USUAL_BYTES)
        self._report = memoryview(bytearray(limits.report_bytes))
        self._orders = Orders(0)
        """Filled in by children only."""

    def serve(self) -> Orders | None:
        """In the zygote: answers requests until the pool goes away, then None. In every child: what it is to do."""
        orders, said = self._self_test()
        if orders is not None:
            return orders
        protocol.write(_REPLIES, said)
        # The pipe from a child gets the lowest free number, always the same: one registration serves all of them.
        reader, writer = os.pipe()
        self._poll.register(reader, select.POLLIN)
        os.close(reader)
        os.close(writer)
        program = self._program
        while (length := protocol.read(_COMMANDS, program)) is not None:
            orders = self._answer(length)
            if orders is not None:
                return orders
            program[:length] = bytes(length)
        return None

    def _self_test(self) -> tuple[Orders | None, bytes]:
        """In the child its orders; in the zygote what a sealed child said, or `seal` if it was not sealed."""
        zygote = os.getpid()
        reader, writer = os.pipe()
        child = self._lockdown.fork()
        if child == 0:
            _keep(writer, 0, _REPLIES)
            self._orders.zygote = zygote
            return self._orders, b""
        os.close(writer)
        said = os.read(reader, _USUAL_BYTES) if select.select([reader], [], [], _SELF_TEST_S)[0] else b""
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        return None, said or b"seal"

    def _answer(self, length: int) -> Orders | None:
        """Send a part for each input, or what is said of the program alone. In a child: its orders.

        A call is charged wall-clock time, but no more than its CPU time over the share of it that every call surely
        gets: a busy machine delays an honest program and does not end it.

        One long function: each function called between two forks has pages of its own that are copied then.
        """
        (monotonic, _), poll, data, most = self._clocks, self._poll.poll, self._report, len(self._report)
        replies, header = _REPLIES, protocol.LENGTH.size
        kind, count = protocol.REQUEST.unpack_from(self._program)
        limit_s, left_s = self._limits.wall_s, self._limits.request_s
        share = 1.0 if kind & Kind.ALONE else ADMITTED_SHARE
        together = count > 1 and not kind & Kind.APART
        told, over = not kind & Kind.SOURCE, False
        child = reader = feeder = timeouts = 0
        spent = 0.0
        for left in range(count - 1, -1, -1):
            size = protocol.read(_COMMANDS, self._input)
            if size is None:
                raise BrokenPipeError
            started = monotonic()
            if over or timeouts == _MAX_TIMEOUTS or left_s <= 0:
                self._input[:size] = bytes(size)
                if child:
                    self._end(child, reader, feeder)
                    child = 0
                if not over:
                    protocol.write(replies, protocol.PART.pack(Part.TIMEOUT, 0.0, 0.0))
                continue
            if child and not self._feed(feeder, size):
                self._end(child, reader, feeder)
                child = 0
            if not child:
                reader, writer = os.pipe()
                inputs, feeder = os.pipe() if together else (0, 0)
                child, spent = self._lockdown.fork(), 0.0
                if child == 0:
                    _keep(writer, inputs, _REPLIES)
                    self._clocks.clear()
                    orders = self._orders
                    orders.kind = kind & ~Kind.ALONE if together else kind & ~Kind.ALONE | Kind.APART
                    orders.program = bytes(memoryview(self._program)[protocol.REQUEST.size : length])
                    orders.text = bytes(self._input[:size])
                    return orders
                os.close(writer)
                if together:
                    os.close(inputs)
                    os.set_blocking(feeder, False)
            self._input[:size] = bytes(size)
            ending, letter = b"", b""
            filled = peak = 0
            allowed_s, wall_s, cpu = min(limit_s, left_s), 0.0, spent
            due, looked_at, looked_cpu = started + allowed_s, started, cpu
            while not ending and letter not in Part.ANSWERS and not over:
                rest_s = due - monotonic()
                events = poll(rest_s * 1000) if rest_s > 0 else ()
                if not events:
                    wall_s = monotonic() - started
                    cpu = self._cpu_s(child, wall_s + spent)
                    rest_s = allowed_s - max(wall_s / protocol.PATIENCE, min(wall_s, (cpu - spent) / share))
                    if started + wall_s - looked_at >= _STILL_S:
                        # A process that is given no time at all gets some within this; it sleeps, or was stopped.
                        rest_s *= cpu - looked_cpu >= _STILL_CPU_S
                        looked_at, looked_cpu = started + wall_s, cpu
                    due = started + wall_s + min(_STILL_S, max(_LOOK_S, rest_s * share))
                    if rest_s <= 0:
                        ending = Part.TIMEOUT
                        break
                    continue
                if len(events) > 1 or events[0][0] != reader:
                    raise BrokenPipeError
                got = os.readv(reader, (data[filled:],))
                filled += got
                peak = max(peak, filled)
                if not got:
                    ending = Part.CRASHED if filled < most else Part.FORGED
                while filled >= header and not ending and letter not in Part.ANSWERS and not over:
                    end = header + protocol.LENGTH.unpack_from(data)[0]
                    if end > most or end == header:
                        ending = Part.FORGED
                        break
                    if filled < end:
                        break
                    letter = bytes(data[header : header + 1])
                    if letter in Part.ANSWERS:
                        wall_s = monotonic() - started
                        cpu = self._cpu_s(child, wall_s + spent)
                        protocol.pass_on(
                            replies, protocol.PART.pack(letter, wall_s, cpu - spent), data[header + 1 : end]
                        )
                    elif told and letter == Part.LOADED and kind & Kind.SOURCE:
                        pass  # a later child of the same program says so again
                    elif told or letter not in (Part.LOADED, Part.REASONS):
                        ending = Part.FORGED
                    else:
                        if letter == Part.REASONS or not kind & Kind.ONCE:
                            protocol.pass_on(replies, protocol.PART.pack(letter, 0.0, 0.0), data[header + 1 : end])
                        told = True
                        over = letter == Part.REASONS or (together and protocol.carries_state(data[header + 1 : end]))
                    data[: filled - end] = data[end:filled]
                    filled -= end
            if ending and ending != Part.TIMEOUT:
                wall_s = monotonic() - started
                cpu = spent + wall_s
            used_s, spent = cpu - spent, cpu
            left_s -= max(wall_s / protocol.PATIENCE, min(wall_s, used_s / share))
            # One that says more than it was asked gets no further input.
            if letter != Part.CALL or ending or filled or not left:
                code = self._end(child, reader, feeder)
                child = 0
                if ending:
                    if code == -signal.SIGXCPU:
                        ending = Part.TIMEOUT
                    timeouts += ending == Part.TIMEOUT
                    head = protocol.PART.pack(ending, wall_s, used_s)
                    protocol.write(replies, head + protocol.CODE.pack(code))
            data[:peak] = bytes(peak)
        return None

    def _feed(self, feeder: int, size: int) -> bool:
        """Hand the input to the living child; whether it could be."""
        if size > _PIPE_BYTES:
            return False
        try:
            os.writev(feeder, (protocol.LENGTH.pack(size), memoryview(self._input)[:size]))
        except OSError:
            # It does not read, or is gone.
            return False
        return True

    def _end(self, child: int, reader: int, feeder: int) -> int:
        """Exit code of a child, which has ended then."""
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(reader)
        if feeder:
            os.close(feeder)
        return os.waitstatus_to_exitcode(status)

    def _cpu_s(self, child: int, otherwise: float) -> float:
        """CPU seconds of a child so far; kernels that keep no such clock are given the benefit of none."""
        try:
            return self._clocks[1](~child << 3 | _PROCESS_CPU_CLOCK)
        except OSError:
            return otherwise


def _keep(writer: int, inputs: int, last: int) -> None:
    """In a child: keep the ends of its pipes, the same numbers in every child, and none but them up to the last."""
    os.dup2(writer, _REPORTS_TO)
    if inputs:
        os.dup2(inputs, _INPUTS_FROM)
    os.closerange(_INPUTS_FROM + bool(inputs), last + 1)


def run_child(orders: Orders, seal: Callable[[], None], limits: Limits) -> None:
    """A child's whole life."""
    try:
        if orders.kind:
            run_program(orders, seal, limits.input_bytes, limits.output_bytes, _REPORTS_TO, _INPUTS_FROM)
        else:
            seal()
            os.write(_REPORTS_TO, ", ".join(self_test_failures(orders.zygote)).encode() or protocol.SEALED)
        os._exit(0)
    finally:
        os._exit(1)


def run_program(
    orders: Orders, seal: Callable[[], None], input_bytes: int, output_bytes: int, report: int, inputs: int
) -> None:
    """Report what the program is, if it came as source, then the outcome of each call, until one is the last."""
    seal()
    kind, program, text = orders.take()
    code = marshal.loads(program) if not kind & Kind.SOURCE else _load(kind, program, report)
    gc.enable()
    alone = bool(kind & Kind.APART)
    # What runs below could look up here.
    del kind, program
    while code is not None:
        if _report_call(code, text.decode("utf-8", "surrogatepass"), input_bytes, output_bytes, report, alone):
            return
        _forget_call()
        text = protocol.read_bytes(inputs)


def _forget_call() -> None:
    """Leave the next call none of this one's module and types, as much memory as this one had, and no finalizers.

    ``List[1]`` and ``List[True]`` are one to the library, so whichever came first would be what both are.
    """
    sys.modules.pop(FILE_NAME, None)
    for clear in typing._cleanups:  # type: ignore[attr-defined]
        clear()
    gc.collect()


def _report_call(
    code: types.CodeType, text: str, input_bytes: int, output_bytes: int, report: int, alone: bool
) -> bool:
    """Run a call and report its outcome; whether the process takes no further one."""
    status, said = _run_call(code, text, input_bytes, output_bytes)
    # Memory that ran out may still be held, and is not the next call's fault.
    is_last = alone or status == protocol.MEMORY
    protocol.write(report, (Part.LAST if is_last else Part.CALL) + protocol.call_report(status, said))
    return is_last


def _load(kind: int, program: bytes, report: int) -> types.CodeType | None:
    """The program's code, once it is reported what it is; None when it is not to run in this process."""
    source = program.decode("utf-8", "surrogatepass")
    code, reasons = load(source, not kind & Kind.UNCHECKED)
    if code is None:
        protocol.write(report, Part.REASONS + protocol.reasons_report(reasons))
        return None
    if kind & Kind.ONCE:
        # Said all the same: whatever says so later is the program.
        protocol.write(report, Part.LOADED)
        return code
    suspected = suspicion(code, source)
    protocol.write(report, Part.LOADED + protocol.loaded_report(suspected, code))
    return None if suspected & STATE and not kind & Kind.APART else code


def _run_call(code: types.CodeType, text: str, input_bytes: int, output_bytes: int) -> tuple[bytes, str]:
    """Status and canonical value or error of one call."""
    try:
        arguments = values.parse_arguments(text, max_bytes=input_bytes)
    except values.PlainDataError as refusal:
        return protocol.REJECTED, protocol.sentence(f"argument text: {refusal}")
    # Whatever was before: the collector's counters are at 0, it has nothing to look through, and no list is kept for
    # use again. What is frozen need not be copied for that.
    gc.freeze()
    gc.collect()
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
        return protocol.failure(error)


def _warm_up(lockdown: Lockdown, limits: Limits) -> None:
    """Do what every child does, with a program of our own and to no effect.

    Children inherit code that is specialised, names that are looked up and caches that are filled; each would have
    pages copied for that.
    """
    code = marshal.dumps(compile(_WARM_UP_PROGRAM, FILE_NAME, "exec", dont_inherit=True))
    for _ in range(_WARM_UP_RUNS):
        _, writer = os.pipe()
        _keep(writer, 0, writer)
        os.close(_REPORTS_TO)
        for kind, program in ((Kind.SOURCE, _WARM_UP_PROGRAM), (Kind.CODE, code)):
            orders = Orders(kind | Kind.APART, program, b"1.5")
            run_program(orders, lockdown.rehearse, limits.input_bytes, limits.output_bytes, _NULL, _NULL)
    gc.disable()
    del sys.modules[FILE_NAME]


def main() -> tuple[Orders, Callable[[], None], Limits] | None:
    """In the zygote: serves to the end, then None. In every child: what it is to do, and within what."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_standard_streams(_COMMANDS, _REPLIES)
    first = bytearray(_USUAL_BYTES)
    if (length := protocol.read(_COMMANDS, first)) is None:
        return None
    limits = protocol.read_limits(bytes(first[:length]))
    preload(ALLOWED_MODULES, limits.modules)
    lockdown = Lockdown(limits.memory_mb, limits.request_s, clocks=bool(limits.modules))
    shift = shift_addresses()
    erase_environment()
    # Answers to benchmarks may ask what time it is; a task of the run's own may not depend on it.
    zygote = Zygote(limits, lockdown, (time.monotonic, time.clock_gettime) if limits.modules else take_clocks())
    # No child takes it apart on its way, whose memory would be copied for that.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(zygote))
    _warm_up(lockdown, limits)
    unload_modules(_ROOT)
    try:
        orders = zygote.serve()
    except BrokenPipeError:  # the pool is gone
        os._exit(0)
    except OSError:
        # No process for a child: the pool starts another zygote, asks it again, and then calls the request lost.
        os._exit(1)
    _HELD.append(shift)
    return None if orders is None else (orders, lockdown.seal, limits)


_HELD: list[list[bytes]] = []

if __name__ == "__main__":
    if (life := main()) is not None:
        run_child(*life)
