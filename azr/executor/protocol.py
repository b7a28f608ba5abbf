"""What the pool, a zygote and its children say to each other: frames with a length in front, over pipes.

    pool → zygote    once ``Limits`` as JSON, then requests: number, count of inputs, texts
    zygote → pool    once JSON ``{self_test_failures}``, then parts, request by request: number, letter, seconds, and a
                     child's report as it came, or what ended the child
    child → zygote   reports: `Part.REASONS` and the reasons, or `Part.CALL`, status, times and text for each input

Nothing here is JSON once programs run, and the zygote looks into nothing: between two forks every page that it or a
child writes to is copied, and reference counts make that every object in use.

What a frame holds is data: the pool checks its size, shape and every field, and obeys nothing in it.
"""

from __future__ import annotations

import json
import marshal
import os
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from azr import values
from azr.records import CallResult, CallStatus

MAX_PROGRAM_BYTES = 2**14
"""Longest program that is run, UTF-8."""
MAX_VALUE_BYTES = 2**16
"""Longest canonical value that a call may return, UTF-8; at most ``values.MAX_BYTES``."""
REPEATS = 2
"""Runs in separate interpreters when a proposal is validated."""
MAX_INPUT_BYTES = 2**20
"""Most bytes of argument text in one request."""
MAX_REASONS = 50
REASONS_BYTES = 2**18
"""Longest report of reasons of the static check."""
_MAX_SENTENCE = 500
_REQUEST_OUTPUTS = 4
"""All values of one request may be this many times as long as one: the pool reads them one after another."""
_MAX_SECONDS = 1e9
LENGTH = struct.Struct("!I")
REQUEST = struct.Struct("!IH")
PART = struct.Struct("!Icf")
CODE = struct.Struct("!h")
"""Exit code of a child, negative for the signal that ended it."""
_REPORT = struct.Struct("!cff")
_REPORTS = {
    CallStatus.OK: b"o",
    CallStatus.RAISED: b"r",
    CallStatus.MEMORY: b"m",
    CallStatus.OUTPUT_TOO_LARGE: b"l",
    CallStatus.REJECTED: b"j",
}
"""What a child may say of a call."""
OK, RAISED, MEMORY, OUTPUT_TOO_LARGE, REJECTED = _REPORTS.values()
_STATUSES = {letter: status for status, letter in _REPORTS.items()}


class Part:
    """Letters of the parts of a reply."""

    CALL, REASONS = b"c", b"s"
    """What a child reported."""
    TIMEOUT, CRASHED, FORGED = b"t", b"x", b"f"
    """How it ended without a report."""


class ProtocolError(Exception):
    """The other side sent something that is not a frame of this protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What every program of a zygote is held to."""

    wall_s: float
    """Wall-clock limit of one call, seconds; of the first, reading the program included."""
    request_s: float
    """Wall-clock limit of all calls of one request, seconds."""
    memory_mb: int
    """Address space of one process, MiB."""
    output_bytes: int = MAX_VALUE_BYTES
    """Longest canonical value, UTF-8."""

    @property
    def report_bytes(self) -> int:
        """Longest report of a child."""
        return max(self.output_bytes + 4096, REASONS_BYTES)

    @property
    def part_bytes(self) -> int:
        """Longest frame about one call."""
        return PART.size + self.report_bytes


def frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def encode(message: dict) -> bytes:
    """The body of a message; ASCII, so that any text survives."""
    return json.dumps(message).encode("ascii")


def decode(body: bytes) -> dict:
    """The message of a body. Raises ProtocolError for anything but a JSON object."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a frame is not JSON") from error
    if type(message) is not dict:
        raise ProtocolError("a frame is not a JSON object")
    return message


HEADER_BYTES = LENGTH.size


def frame_end(data: bytes, limit: int, start: int = 0) -> int:
    """Where the frame that begins at ``start`` ends. Raises ProtocolError when its body is longer than the limit."""
    (length,) = LENGTH.unpack_from(data, start)
    if length > limit:
        raise ProtocolError(f"a frame of {length} bytes exceeds {limit}")
    return start + HEADER_BYTES + length


def write(descriptor: int, body: bytes) -> None:
    """Write one frame to a blocking descriptor. Raises BrokenPipeError when the other end is closed."""
    _write_all(descriptor, memoryview(frame(body)))


def pass_on(descriptor: int, head: bytes, content: memoryview) -> None:
    """Write one frame of two pieces, leaving no copy of the content in memory. Raises as ``write``."""
    start = LENGTH.pack(len(head) + len(content)) + head
    written = os.writev(descriptor, (start, content))
    if written < len(start):
        _write_all(descriptor, memoryview(start)[written:])
    _write_all(descriptor, content[max(0, written - len(start)) :])


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def read(descriptor: int, buffer: bytearray) -> int | None:
    """Read one frame, and nothing of the next, into the buffer; the length of its body, or None at the end."""
    head = _fill(descriptor, memoryview(buffer)[:HEADER_BYTES])
    if not head:
        return None
    (length,) = LENGTH.unpack_from(buffer)
    if length > len(buffer):
        buffer += bytes(length - len(buffer))
    return length if _fill(descriptor, memoryview(buffer)[:length]) else None


def _fill(descriptor: int, room: memoryview) -> bool:
    while room:
        got = os.readv(descriptor, (room,))
        if not got:
            return False
        room = room[got:]
    return True


class FrameBuffer:
    """Collects bytes that arrive in pieces and gives back whole bodies."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Bodies completed by ``data``. Raises ProtocolError for a frame longer than the limit."""
        self._data = data = self._data + data if self._data else data
        bodies, start = [], 0
        while len(data) - start >= HEADER_BYTES:
            end = frame_end(data, self._limit, start)
            if len(data) < end:
                break
            bodies.append(data[start + HEADER_BYTES : end])
            start = end
        self._data = data[start:]
        return bodies


class StreamSplitter:
    """Takes standard output out of Docker's attach stream, whose pieces carry a header of their own."""

    _HEADER = struct.Struct("!B3xI")
    _STDOUT = 1

    def __init__(self) -> None:
        self._data = bytearray()

    def output(self, data: bytes) -> bytes:
        """Standard output completed by ``data``; what the other streams say is dropped."""
        self._data += data
        pieces = []
        while len(self._data) >= self._HEADER.size:
            stream, length = self._HEADER.unpack_from(self._data)
            end = self._HEADER.size + length
            if len(self._data) < end:
                break
            if stream == self._STDOUT:
                pieces.append(bytes(self._data[self._HEADER.size : end]))
            del self._data[:end]
        return b"".join(pieces)


def limits_body(limits: Limits) -> bytes:
    return encode(asdict(limits))


def read_limits(body: bytes) -> Limits:
    return Limits(**decode(body))


def request_body(number: int, program: str, inputs: Sequence[str], static_check: bool) -> bytes:
    return REQUEST.pack(number, len(inputs)) + marshal.dumps((program, *inputs, static_check))


def request_texts(body: bytes | memoryview) -> tuple[str, list[str], bool]:
    """A request's program, its inputs, and whether to check it. The pool is trusted, so marshal may read it."""
    program, *inputs, static_check = marshal.loads(body[REQUEST.size :])
    return program, inputs, static_check


def read_number(part: bytes) -> int:
    """The number of the request that a part answers. Raises ProtocolError."""
    if len(part) < PART.size:
        raise ProtocolError("a cut part")
    return PART.unpack_from(part)[0]


def is_reasons(part: bytes) -> bool:
    """Whether a part says that the program was refused, so that none follows for the other inputs."""
    return PART.unpack_from(part)[1] == Part.REASONS


def read_parts(parts: Sequence[bytes], inputs: int, limits: Limits) -> tuple[tuple[CallResult, ...], tuple[str, ...]]:
    """Call outcomes, one per input, and the reasons of the static check.

    A report that no honest child sends fails its own call only.
    """
    if is_reasons(parts[0]):
        _, _, wall_s = PART.unpack_from(parts[0])
        try:
            reasons = _read_reasons(parts[0][PART.size :])
        except ProtocolError as error:
            return (_invalid(error, wall_s),) * inputs, ()
        return (CallResult(status=CallStatus.REJECTED, error=reasons[0]),) * inputs, reasons
    outcomes: list[CallResult] = []
    left = _REQUEST_OUTPUTS * limits.output_bytes
    for part in parts:
        left -= len(part) - PART.size
        outcomes.append(_outcome(part, limits.output_bytes) if left >= 0 else _TOO_MUCH)
    return tuple(outcomes), ()


def call_report(status: bytes, text: str, wall_s: float, cpu_s: float) -> bytes:
    """A child's report of one call: its canonical value, or an error."""
    return Part.CALL + _REPORT.pack(status, wall_s, cpu_s) + text.encode("utf-8", "backslashreplace")


def screen_report(reasons: Sequence[str]) -> bytes:
    """A child's report of why it refused the program."""
    return Part.REASONS + _join(*(sentence(reason) for reason in reasons[:MAX_REASONS]))


def sentence(text: str) -> str:
    """``text`` cut to what an error field may hold, on one line."""
    return (text if text.isprintable() else ascii(text))[:_MAX_SENTENCE]


def _outcome(part: bytes, output_bytes: int) -> CallResult:
    _, letter, wall_s = PART.unpack_from(part)
    content = part[PART.size :]
    if letter == Part.TIMEOUT:
        return CallResult(status=CallStatus.TIMEOUT, error="the time limit passed", wall_s=wall_s)
    if letter == Part.CRASHED and len(content) == CODE.size:
        (code,) = CODE.unpack(content)
        how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
        return CallResult(status=CallStatus.CRASHED, error=f"the process {how}", wall_s=wall_s)
    try:
        if letter != Part.CALL:
            raise ProtocolError("no report of a call")
        return _read_report(content, wall_s, output_bytes)
    except ProtocolError as error:
        return _invalid(error, wall_s)


_TOO_MUCH = CallResult(status=CallStatus.OUTPUT_TOO_LARGE, error="the returned values are too long together")


def _invalid(error: ProtocolError, wall_s: float) -> CallResult:
    """What a program gets for a report that no honest child sends: its own call failed, and no other."""
    return CallResult(status=CallStatus.CRASHED, error=sentence(f"forged report: {error}"), wall_s=wall_s)


def _read_reasons(content: bytes) -> tuple[str, ...]:
    try:
        reasons = tuple(_split(content, 0))
    except (UnicodeDecodeError, struct.error) as error:
        raise ProtocolError("malformed reasons of the static check") from error
    if not 0 < len(reasons) <= MAX_REASONS or not all(map(_is_sentence, reasons)):
        raise ProtocolError("malformed reasons of the static check")
    return reasons


def _read_report(content: bytes, wall_s: float, output_bytes: int) -> CallResult:
    """A child's claim, its value truly canonical and its times no longer than the zygote measured."""
    if len(content) < _REPORT.size:
        raise ProtocolError("a cut call")
    letter, own_wall_s, own_cpu_s = _REPORT.unpack_from(content)
    try:
        status = _STATUSES[letter]
        text = content[_REPORT.size :].decode()
    except (KeyError, UnicodeDecodeError) as error:
        raise ProtocolError("malformed call") from error
    if not (0 <= own_wall_s < _MAX_SECONDS and 0 <= own_cpu_s < _MAX_SECONDS):
        raise ProtocolError("malformed seconds")
    wall_s = min(own_wall_s, wall_s)
    times = {"wall_s": wall_s, "cpu_s": min(own_cpu_s, wall_s)}
    if status is CallStatus.OK:
        return CallResult(status=status, value=_canonical(text, output_bytes), **times)
    if not _is_sentence(text) or (status is CallStatus.RAISED and not text.isidentifier()):
        raise ProtocolError("malformed error")
    return CallResult(status=status, error=text, **times)


def _is_sentence(text: str) -> bool:
    return 0 < len(text) <= _MAX_SENTENCE and text.isprintable()


def _canonical(value: str, output_bytes: int) -> str:
    try:
        return values.canonical(values.parse(value), max_bytes=output_bytes)
    except values.PlainDataError as error:
        raise ProtocolError(f"the value is not plain data ({error})") from error


def _join(*texts: str) -> bytes:
    pieces: list[bytes] = []
    for text in texts:
        data = text.encode("utf-8", "backslashreplace")
        pieces += (LENGTH.pack(len(data)), data)
    return b"".join(pieces)


def _split(data: bytes, start: int) -> list[str]:
    """Texts that ``_join`` put together. Raises struct.error or UnicodeDecodeError for what it did not."""
    texts = []
    while start < len(data):
        (length,) = LENGTH.unpack_from(data, start)
        start += LENGTH.size
        texts.append(data[start : start + length].decode())
        start += length
    return texts
