"""Protocol of the pool, a zygote and its children: frames with a length in front, over pipes.

    pool → zygote    once ``Limits`` as JSON, then requests: kind, count of inputs and the program in one frame, and
                     a frame for each input, which the zygote reads when its turn has come
    zygote → pool    once `SEALED`, or names of what a sealed child could reach; then parts, request by request: letter,
                     seconds, and what a child reported, or what ended it
    zygote → child   a frame for each further input
    child → zygote   reports: a letter of `Part`, then the reasons against the program, or its suspicion and code, or
                     status and text of a call

Requests have no numbers: a zygote answers in order, and no program can learn how many were before it. Nothing here is
JSON once programs run, and the zygote looks into nothing: between two forks every page that it or a child writes to
is copied, and reference counts make that every object in use.

What a frame holds is data: the pool checks its size, shape and every field, and obeys nothing in it.
"""

from __future__ import annotations

import json
import marshal
import os
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import CodeType

from azr import values
from azr.execution import CallResult, CallStatus
from azr.executor.suspicion import STATE

MAX_PROGRAM_BYTES = 2**14
"""Longest program that is run, UTF-8, of those that the static check reads."""
MAX_UNCHECKED_BYTES = 2**18
"""Longest program that is run without the static check, UTF-8."""
MAX_VALUE_BYTES = 2**16
"""Longest canonical value that a call may return, UTF-8; at most ``values.MAX_BYTES``."""
REPEATS = 4
"""Runs in separate interpreters when a proposal is validated, if nothing about it is suspect."""
SUSPECT_FACTOR = 2
"""Times as many runs for a program whose result may depend on hashes or addresses."""
PATIENCE = 20
"""Most wall-clock time of a call that a busy machine gives little CPU time, in multiples of its limit."""
MAX_INPUT_BYTES = 2**20
"""Most bytes of argument text in one request."""
MAX_REASONS = 50
REASONS_BYTES = 2**18
"""Longest report of reasons of the static check."""
CODE_BYTES = 2**18 - 2**10
"""Longest marshalled code that is kept for further runs; of longer programs the source is sent again."""
_MAX_SENTENCE = 500
REQUEST_VALUES = 4
"""All values of one request may be this many times as long as one: the pool reads them one after another."""
SEALED = b"sealed"
"""What a zygote says of its seal if that holds."""
LENGTH = struct.Struct("!I")
REQUEST = struct.Struct("!BH")
PART = struct.Struct("!cff")
"""Letter, wall-clock seconds and CPU seconds, both by the zygote's clocks."""
CODE = struct.Struct("!h")
"""Exit code of a child, negative for the signal that ended it."""
DOCKER_HEADER, _STDOUT = struct.Struct("!B3xI"), 1
"""Number of a stream and length of a piece of it, and the number of standard output."""
_STATUSES = {
    b"o": CallStatus.OK,
    b"r": CallStatus.RAISED,
    b"m": CallStatus.MEMORY,
    b"l": CallStatus.OUTPUT_TOO_LARGE,
    b"j": CallStatus.REJECTED,
}
"""By the letters of a child's report on a call."""
OK, RAISED, MEMORY, OUTPUT_TOO_LARGE, REJECTED = _STATUSES


class Kind:
    """Bits that say what a request holds and how it is run."""

    CODE, SOURCE = 1, 2
    """Form of the program: marshalled code, which is run as it is, or source, which is checked first."""
    UNCHECKED = 4
    """Source is not held to the static check."""
    APART = 8
    """Every call runs in a process of its own."""
    ONCE = 16
    """Single-call source: skip the report on the program."""
    ALONE = 32
    """Time is limited by the CPU clock alone."""


class Part:
    """Letters of reports and of the parts of a reply."""

    LOADED, REASONS = b"l", b"s"
    """Report on a program that came as source: it may run, or the reasons against it."""
    CALL, LAST = b"c", b"e"
    """A child's report of a call; after the last it takes no further one."""
    ANSWERS = (CALL, LAST)
    TIMEOUT, CRASHED, FORGED = b"t", b"x", b"f"
    """End of a call without a report."""


class ProtocolError(Exception):
    """The other side sent something that is not a frame of this protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of every program of a zygote."""

    wall_s: float
    """Time limit of one call, seconds; of the first, reading the program included."""
    request_s: float
    """Time limit of all calls of one request, seconds."""
    memory_mb: int
    """Address space of one process, MiB."""
    output_bytes: int = MAX_VALUE_BYTES
    """Longest canonical value, UTF-8."""
    input_bytes: int = values.MAX_BYTES
    """Longest argument text of one call, UTF-8."""
    modules: tuple[str, ...] = ()
    """Modules that are loaded beside those that a proposal may import, which the static check still refuses."""

    @property
    def report_bytes(self) -> int:
        """Longest report of a child."""
        return max(self.output_bytes + 4096, REASONS_BYTES)


def frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


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
    if not _fill(descriptor, memoryview(buffer)[: LENGTH.size]):
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

    def __init__(self, limit: float, header: struct.Struct = LENGTH) -> None:
        """``header``: ends with the length, and may begin with a stream's number, as Docker's attach stream does."""
        self._limit, self._header = limit, header
        self._data = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Bodies completed by ``data``; of several streams, only those of standard output.

        Raises ProtocolError for a frame longer than the limit.
        """
        self._data = data = self._data + data if self._data else data
        bodies, start, size = [], 0, self._header.size
        while len(data) - start >= size:
            *stream, length = self._header.unpack_from(data, start)
            if length > self._limit:
                raise ProtocolError(f"a frame of {length} bytes exceeds {self._limit}")
            end = start + size + length
            if len(data) < end:
                break
            if stream in ([], [_STDOUT]):
                bodies.append(data[start + size : end])
            start = end
        self._data = data[start:]
        return bodies


def state_limits(limits: Limits) -> bytes:
    """The limits as `read_limits` reads them."""
    return json.dumps(asdict(limits)).encode()


def read_limits(body: bytes) -> Limits:
    """The limits that the pool states."""
    stated = json.loads(body)
    return Limits(**stated | {"modules": tuple(stated["modules"])})


def request_frames(kind: int, program: bytes, inputs: Sequence[str]) -> bytes:
    """All frames of a request; ``program`` is source in UTF-8 or marshalled code, as the kind says."""
    head = frame(REQUEST.pack(kind, len(inputs)) + program)
    return b"".join([head, *(frame(text.encode("utf-8", "surrogatepass")) for text in inputs)])


def read_bytes(descriptor: int) -> bytes:
    """Body of the next frame, by plain reads, which are all that a sealed child may do. Raises EOFError at the end."""
    data, length = b"", LENGTH.size
    while len(data) < length:
        piece = os.read(descriptor, length - len(data))
        if not piece:
            raise EOFError("no further input")
        data += piece
        if len(data) == length == LENGTH.size:
            length += LENGTH.unpack(data)[0]
    return data[LENGTH.size :]


def letter_of(part: bytes) -> bytes:
    """Letter of a part. Raises ProtocolError for what is too short to be one."""
    if len(part) < PART.size:
        raise ProtocolError("a cut part")
    return part[:1]


def is_complete(parts: Sequence[bytes], count: int, apart: bool) -> bool:
    """Whether these are all parts of a reply to ``count`` calls; ``apart``: each in a process of its own.

    No call follows where a program that came as source is refused, or is only loaded, for its calls must not share a
    process.
    """
    letter = letter_of(parts[-1])
    if letter == Part.LOADED:
        return count > 1 and not apart and carries_state(parts[-1][PART.size :])
    if letter == Part.REASONS:
        return True
    return len(parts) >= count and sum(letter_of(part) != Part.LOADED for part in parts) == count


def carries_state(report: bytes | memoryview) -> bool:
    """Whether a report of a loaded program says that its calls must not share a process."""
    return len(report) > 0 and bool(report[0] & STATE)


def read_loaded(part: bytes) -> tuple[int, bytes]:
    """Suspicion and marshalled code of a program that was loaded; no code when it is too long to be passed on."""
    report = part[PART.size :]
    return (report[0] if report else 0), report[1:]


def read_reasons(part: bytes) -> tuple[str, ...]:
    """Why a program is refused. Raises ProtocolError for what no honest child says."""
    try:
        reasons = tuple(part[PART.size :].decode().split("\n"))
    except UnicodeDecodeError as error:
        raise ProtocolError("malformed reasons of the static check") from error
    if len(reasons) > MAX_REASONS or not all(map(_is_sentence, reasons)):
        raise ProtocolError("malformed reasons of the static check")
    return reasons


def read_calls(parts: Sequence[bytes], limits: Limits, first: Sequence[CallResult] = ()) -> tuple[CallResult, ...]:
    """Call outcomes, one per part. A report that no honest child sends fails its own call only.

    ``first``: outcomes of the same calls in a run before. What states their values to the letter is not parsed again.
    """
    outcomes: list[CallResult] = []
    left = REQUEST_VALUES * limits.output_bytes
    for index, part in enumerate(parts):
        left -= len(part) - PART.size
        known = first[index].value if first else None
        outcomes.append(_outcome(part, limits.output_bytes, known) if left >= 0 else TOO_MUCH)
    return tuple(outcomes)


def failure(error: BaseException) -> tuple[bytes, str]:
    """Return status and sentence of a call that raised."""
    kind = type(error)
    if kind is values.TooLargeError:
        return OUTPUT_TOO_LARGE, sentence(f"the returned value: {error}")
    if kind is values.PlainDataError:
        return REJECTED, sentence(f"the returned value: {error}")
    # Without memory to note where it was, the interpreter may lose the MemoryError and raise this in its place,
    # in no frame of the program's.
    is_lost = kind is SystemError and error.__traceback__ is not None and error.__traceback__.tb_next is None
    if issubclass(kind, MemoryError) or is_lost:
        return MEMORY, "the program ran out of memory"
    name = values.type_name(kind)
    return RAISED, sentence(name) if name.isidentifier() else "Exception"


def call_report(status: bytes, text: str) -> bytes:
    """A child's report of one call: its canonical value, or an error."""
    return status + text.encode("utf-8", "backslashreplace")


def reasons_report(reasons: Sequence[str]) -> bytes:
    """A child's report of why it refused the program: a line each."""
    return "\n".join(map(sentence, reasons[:MAX_REASONS])).encode()


def loaded_report(suspected: int, code: CodeType) -> bytes:
    """A child's report of a program that may run."""
    try:
        data = marshal.dumps(code)
    except ValueError:  # nested too deeply
        data = b""
    return bytes([suspected]) + (data if len(data) <= CODE_BYTES else b"")


def sentence(text: str) -> str:
    """``text`` cut to what an error field may hold, on one line."""
    return (text if text.isprintable() else ascii(text))[:_MAX_SENTENCE]


def _outcome(part: bytes, output_bytes: int, known: str | None) -> CallResult:
    letter, wall_s, cpu_s = PART.unpack_from(part)
    content = part[PART.size :]
    if letter == Part.TIMEOUT:
        return CallResult(status=CallStatus.TIMEOUT, error="the time limit passed", wall_s=wall_s, cpu_s=cpu_s)
    if letter == Part.CRASHED and len(content) == CODE.size:
        (code,) = CODE.unpack(content)
        how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
        return CallResult(status=CallStatus.CRASHED, error=f"the process {how}", wall_s=wall_s)
    try:
        status, text = _STATUSES.get(content[:1]), content[1:].decode()
        if letter not in Part.ANSWERS or status is None:
            raise ProtocolError("no report of a call")
        times = {"wall_s": wall_s, "cpu_s": min(cpu_s, wall_s)}
        if status is CallStatus.OK:
            if text != known:
                most = max(output_bytes, values.MAX_BYTES)
                text = values.canonical(values.parse(text, max_bytes=most), max_bytes=output_bytes)
            return CallResult(status=status, value=text, **times)
        if not _is_sentence(text) or (status is CallStatus.RAISED and not text.isidentifier()):
            raise ProtocolError("malformed error")
        return CallResult(status=status, error=text, **times)
    except (ProtocolError, UnicodeDecodeError, values.PlainDataError) as error:
        return invalid(error, wall_s)


TOO_MUCH = CallResult(status=CallStatus.OUTPUT_TOO_LARGE, error="the returned values are too long together")
"""Result of a call whose request returned too much in total."""


def invalid(error: Exception, wall_s: float) -> CallResult:
    """Return the result of a call with a forged report: this call failed, and no other."""
    return CallResult(status=CallStatus.CRASHED, error=sentence(f"forged report: {error}"), wall_s=wall_s)


def _is_sentence(text: str) -> bool:
    return 0 < len(text) <= _MAX_SENTENCE and text.isprintable()
