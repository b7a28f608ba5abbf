"""What the pool and a zygote say to each other: JSON frames with a length in front, over pipes.

Pool to zygote: one frame of ``Limits``, then requests ``{id, program, inputs, screen}``.
Zygote to pool: one frame ``{broken_walls}``, then replies ``{id, screen, outputs}``, in any order.
A forked child reports to its zygote in the same form: ``{screen}``, then one call outcome per input.

A frame that arrives is data: its size, shape and every field are checked, and nothing in it is obeyed.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import asdict, dataclass
from typing import Any

from azr.records import CallResult, CallStatus

MAX_INPUTS = 128
"""Most inputs of one request."""
MAX_INPUT_BYTES = 2**20
"""Most bytes of argument text in one request."""
REQUEST_BYTES = 2**24
"""Longest request frame."""
MAX_REASONS = 50
SCREEN_BYTES = 2**18
"""Longest frame of screen reasons."""
_MAX_SENTENCE = 500
_MAX_SECONDS = 1e9
_LENGTH = struct.Struct("!I")


class ProtocolError(Exception):
    """The other side sent something that is not a frame of this protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What every program of a zygote is held to."""

    wall_s: float
    """Wall-clock limit of one call, and of reading the program, seconds."""
    request_s: float
    """Wall-clock limit of all calls of one request, seconds."""
    memory_mb: int
    """Address space of one process, MiB."""
    output_bytes: int
    """Longest canonical value."""
    banned_modules: tuple[str, ...]

    @property
    def report_bytes(self) -> int:
        """Longest frame about one call: JSON escapes at most triple the bytes of a canonical text."""
        return 3 * self.output_bytes + 4096

    @property
    def reply_bytes(self) -> int:
        """Longest frame about one request."""
        return MAX_INPUTS * self.report_bytes + SCREEN_BYTES


def encode(message: dict) -> bytes:
    """The frame of a message; ASCII, so that any text survives."""
    body = json.dumps(message).encode("ascii")
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> dict:
    """The message of a frame's body. Raises ProtocolError for anything but a JSON object."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a frame is not JSON") from error
    if type(message) is not dict:
        raise ProtocolError("a frame is not a JSON object")
    return message


def frame_length(header: bytes | bytearray, limit: int) -> int:
    """The body's length that a header announces. Raises ProtocolError when it exceeds ``limit``."""
    (length,) = _LENGTH.unpack(header)
    if length > limit:
        raise ProtocolError(f"a frame of {length} bytes exceeds {limit}")
    return length


HEADER_BYTES = _LENGTH.size


def read(descriptor: int, limit: int) -> dict | None:
    """The next message from a blocking descriptor, or None at its end."""
    header = _read_exactly(descriptor, HEADER_BYTES)
    if header is None:
        return None
    body = _read_exactly(descriptor, frame_length(header, limit))
    return None if body is None else decode(body)


def _read_exactly(descriptor: int, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = os.read(descriptor, min(count - len(data), 2**20))
        if not piece:
            return None
        data += piece
    return bytes(data)


def write(descriptor: int, message: dict) -> None:
    """Write a message to a blocking descriptor. Raises BrokenPipeError when nobody reads."""
    frame = memoryview(encode(message))
    while frame:
        frame = frame[os.write(descriptor, frame) :]


class FrameBuffer:
    """Collects bytes that arrive in pieces and gives back whole messages."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()

    def feed(self, data: bytes) -> list[dict]:
        """Messages completed by ``data``. Raises ProtocolError."""
        self._data += data
        messages = []
        while len(self._data) >= HEADER_BYTES:
            end = HEADER_BYTES + frame_length(self._data[:HEADER_BYTES], self._limit)
            if len(self._data) < end:
                break
            messages.append(decode(bytes(self._data[HEADER_BYTES:end])))
            del self._data[:end]
        return messages


def limits_message(limits: Limits) -> dict:
    return asdict(limits)


def read_limits(message: dict) -> Limits:
    return Limits(**{**message, "banned_modules": tuple(message["banned_modules"])})


def read_screen(message: dict) -> tuple[str, ...]:
    """The reasons in a message. Raises ProtocolError."""
    reasons = message.get("screen")
    if type(reasons) is not list or len(reasons) > MAX_REASONS or not all(_is_sentence(r) for r in reasons):
        raise ProtocolError("malformed screen")
    return tuple(reasons)


def call_message(result: CallResult) -> dict:
    return {
        "status": result.status.value,
        "value": result.value,
        "error": result.error,
        "wall_s": result.wall_s,
        "cpu_s": result.cpu_s,
    }


def read_call(message: Any, output_bytes: int) -> CallResult:
    """The outcome of one call in a message. Raises ProtocolError unless it is exactly well-formed."""
    if type(message) is not dict or set(message) != {"status", "value", "error", "wall_s", "cpu_s"}:
        raise ProtocolError("malformed call")
    value, error = message["value"], message["error"]
    if type(message["status"]) is not str or message["status"] not in _STATUSES:
        raise ProtocolError("unknown status")
    status = CallStatus(message["status"])
    if (status is CallStatus.OK) != _is_text(value, output_bytes) or (value is not None) != (status is CallStatus.OK):
        raise ProtocolError("malformed value")
    if (error is None) != (status is CallStatus.OK) or not (error is None or _is_sentence(error)):
        raise ProtocolError("malformed error")
    wall_s, cpu_s = (_seconds(message[name]) for name in ("wall_s", "cpu_s"))
    return CallResult(status=status, value=value, error=error, wall_s=wall_s, cpu_s=cpu_s)


_STATUSES = frozenset(status.value for status in CallStatus if status is not CallStatus.LOST)


def read_reply(message: dict, inputs: int, output_bytes: int) -> tuple[tuple[CallResult, ...], tuple[str, ...]]:
    """Call outcomes, one per input, and screen reasons of a reply. Raises ProtocolError."""
    outputs = message.get("outputs")
    if type(outputs) is not list or len(outputs) != inputs:
        raise ProtocolError("malformed outputs")
    return tuple(read_call(output, output_bytes) for output in outputs), read_screen(message)


def sentence(text: str) -> str:
    """``text`` cut to what an error field may hold."""
    return text[:_MAX_SENTENCE]


def _is_sentence(value: object) -> bool:
    return type(value) is str and len(value) <= _MAX_SENTENCE


def _is_text(value: object, limit: int) -> bool:
    return type(value) is str and len(value.encode("utf-8", "surrogatepass")) <= limit


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < _MAX_SECONDS:
        raise ProtocolError("malformed seconds")
    return float(value)
