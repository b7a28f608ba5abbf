"""Runs one program in a sealed, forked child and reports what each call did.

This is the only place where text written by a model is executed. Everything here happens in a process
that is already sealed and that ends right after; what it reports is a claim, checked as data.
"""

from __future__ import annotations

import builtins
import sys
import time
import types

from azr import values
from azr.executor import protocol, static_check
from azr.executor.protocol import Limits, sentence

_NAME = static_check.FILE_NAME


def run(body: bytes | memoryview, first: int, limits: Limits, writer: int) -> None:
    """Report why a request's program is refused, else the outcome of each input from ``first`` on, in order."""
    source, inputs, screened = protocol.request_texts(body)
    code, reasons = static_check.load(source, screened)
    if code is None:
        protocol.write(writer, protocol.screen_report(reasons))
        return
    for text in inputs[first:]:
        protocol.write(writer, _call(code, text, limits.output_bytes))


def _call(code: types.CodeType, text: str, output_bytes: int) -> bytes:
    try:
        arguments = values.parse_arguments(text)
    except values.PlainDataError as refusal:
        return protocol.call_report(protocol.REJECTED, sentence(f"argument text: {refusal}"), 0.0, 0.0)
    wall, cpu = time.monotonic(), time.process_time()
    status, said = _outcome(code, arguments, output_bytes)
    return protocol.call_report(status, said, time.monotonic() - wall, time.process_time() - cpu)


def _outcome(code: types.CodeType, arguments: tuple, output_bytes: int) -> tuple[bytes, str]:
    # A module of its own per call: globals set by one call do not reach the next.
    module = types.ModuleType(_NAME)
    module.__dict__["__builtins__"] = builtins
    sys.modules[_NAME] = module
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
        return protocol.OUTPUT_TOO_LARGE, sentence(f"the returned value: {error}")
    if kind is values.PlainDataError:
        return protocol.REJECTED, sentence(f"the returned value: {error}")
    if issubclass(kind, MemoryError):
        return protocol.MEMORY, "the program ran out of memory"
    name = values.type_name(kind)
    return protocol.RAISED, sentence(name) if name.isidentifier() else "Exception"
