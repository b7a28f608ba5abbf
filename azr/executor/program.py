"""Runs one program in a sealed, forked child and reports what each call did.

This is the only place where text written by a model is executed. Everything here happens in a process
that is already sealed and that ends right after; what it reports is a claim, checked as data.
"""

from __future__ import annotations

import builtins
import sys
import time
import types
from collections.abc import Callable, Sequence

from azr import values
from azr.executor import protocol, screen
from azr.executor.protocol import Limits, sentence
from azr.records import CallResult, CallStatus

_NAME = "program"


def run(request: dict, pending: Sequence[int], limits: Limits, report: Callable[[dict], None]) -> None:
    """Report the screen's verdict and, if it passed, the outcome of each pending input, in order."""
    source = request["program"]
    reasons = screen.check(source, limits.banned_modules) if request["screen"] else screen.parse(source)[1]
    report({"screen": [sentence(reason) for reason in reasons[: protocol.MAX_REASONS]]})
    if reasons:
        return
    code = compile(source, _NAME, "exec", dont_inherit=True)
    for index in pending:
        report(protocol.call_message(_call(code, request["inputs"][index], limits.output_bytes)))


def _call(code: types.CodeType, text: str, output_bytes: int) -> CallResult:
    try:
        arguments = values.parse_arguments(text)
    except values.PlainDataError as refusal:
        return CallResult(status=CallStatus.REJECTED, error=sentence(f"argument text: {refusal}"))
    started = time.process_time()
    status, value, error = _outcome(code, arguments, output_bytes)
    cpu_s = max(0.0, time.process_time() - started)
    return CallResult(status=status, value=value, error=error, cpu_s=cpu_s)


def _outcome(code: types.CodeType, arguments: tuple, output_bytes: int) -> tuple[CallStatus, str | None, str | None]:
    # A module of its own per call: globals set by one call do not reach the next.
    module = types.ModuleType(_NAME)
    module.__dict__["__builtins__"] = builtins
    sys.modules[_NAME] = module
    try:
        exec(code, module.__dict__)
        function = module.__dict__.get("f")
        if not callable(function):
            return CallStatus.REJECTED, None, "the program defines no function f"
        value = function(*arguments)
        return CallStatus.OK, values.canonical(value, max_bytes=output_bytes), None
    except BaseException as error:
        # The boundary: whatever the program raises, SystemExit included, is its outcome.
        return _failure(error)


def _failure(error: BaseException) -> tuple[CallStatus, None, str]:
    kind = type(error)
    if kind is values.TooLargeError:
        return CallStatus.OUTPUT_TOO_LARGE, None, sentence(f"the returned value: {error}")
    if kind is values.PlainDataError:
        return CallStatus.REJECTED, None, sentence(f"the returned value: {error}")
    if issubclass(kind, MemoryError):
        return CallStatus.MEMORY, None, "the program ran out of memory"
    name = values.type_name(kind)
    return CallStatus.RAISED, None, name if name.isidentifier() else "Exception"
