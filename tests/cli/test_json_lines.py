"""Lines of ``azr execute``: what is read as a request, what is refused, and what an answer looks like."""

import asyncio
import json
import os
import threading

import pytest

from azr.cli import execute
from azr.cli.execute import LineError
from azr.execution import MAX_INPUTS, CallResult, CallStatus, ExecutionResult

GOOD = {"id": 1, "program": "def f(x): return x", "inputs": ["1", "'a'"]}


def line(**changes) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def without(key: str) -> bytes:
    return json.dumps({name: value for name, value in GOOD.items() if name != key}).encode()


def test_a_request_is_read_as_it_stands():
    _, asked = execute.parse(line(program="é\ud800"))
    assert (asked.program, asked.inputs) == ("é\ud800", ("1", "'a'"))


@pytest.mark.parametrize("name", [None, True, 7, -0.5, "é\ud800", [1, [2]], {"a": {"b": None}}, 10**400])
def test_ids_of_every_type_are_echoed(name):
    asked, _ = execute.parse(line(id=name))
    result = ExecutionResult(outputs=(CallResult(status=CallStatus.OK, value="'\\ud800'", wall_s=0.12345678),))
    answer = execute.answer(asked, result)
    (output,) = json.loads(answer)["outputs"]
    assert json.loads(answer)["id"] == name and output["value"] == "'\\ud800'" and output["wall_s"] == 0.123457
    assert answer.isascii() and answer.endswith("}\n") and answer.count("\n") == 1


@pytest.mark.parametrize(
    "text, why",
    [
        (None, "the line is longer than"),
        (b"", "the line is empty"),
        (b" \r", "the line is empty"),
        (b"{", "the line is not JSON: Expecting property name enclosed in double quotes (column 2)"),
        (b"\xff", "the line is not UTF-8"),
        (b"[1]", "the line is not a JSON object"),
        (b"[" * 100_000, "the JSON is nested too deep"),
        (b'{"id": NaN}', "the line is not JSON: NaN is no JSON number"),
        (b'{"id": 1e999}', "the line is not JSON: a number is too large"),
        (b'{"id": 1, "id": 2}', "the line is not JSON: a key stands twice"),
        (b'{"id": ' + b"9" * 5000 + b"}", "the line is not JSON: Exceeds the limit"),
        (without("id"), "the key 'id' is missing"),
        (without("program"), "the key 'program' must hold the program's text"),
        (line(program=["x"]), "the key 'program' must hold the program's text"),
        (without("inputs"), "the key 'inputs' must hold a list of argument texts"),
        (line(inputs="1"), "the key 'inputs' must hold a list of argument texts"),
        (line(inputs=["1", 2]), "the key 'inputs' must hold a list of argument texts"),
        (line(inputs=[]), "a program is called with 1 to"),
        (line(inputs=["1"] * (MAX_INPUTS + 1)), "a program is called with 1 to"),
        (line(input=["1"]), "there is no key 'input'; did you mean 'inputs'?"),
        (line(expected="1"), "there is no key 'expected'; a line has id, program, inputs and nothing else"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_request_is_refused_with_its_line_number(text, why):
    with pytest.raises(LineError) as refused:
        execute.parse(text)
    answer = json.loads(execute.refusal(17, refused.value))
    assert answer.pop("error").startswith(why)
    assert answer.pop("id") in (None, 1)
    assert answer == {"status": "rejected", "outputs": [], "deterministic": None, "static_check": [], "line": 17}


def test_a_refused_line_keeps_an_id_that_could_be_read():
    with pytest.raises(LineError) as refused:
        execute.parse(line(id=["x"], inputs=None))
    assert json.loads(execute.refusal(1, refused.value))["id"] == ["x"]


def outcome(
    *statuses: CallStatus, deterministic: bool | None = None, static_check: tuple[str, ...] = ()
) -> ExecutionResult:
    return ExecutionResult(
        outputs=tuple(CallResult(status=status) for status in statuses),
        deterministic=deterministic,
        static_check=static_check,
    )


@pytest.mark.parametrize(
    "result, word",
    [
        (outcome(CallStatus.OK, CallStatus.OK), "ok"),
        (outcome(CallStatus.OK, deterministic=True), "ok"),
        (outcome(CallStatus.OK, deterministic=False), "nondeterministic"),
        (outcome(CallStatus.OK, CallStatus.RAISED, deterministic=False), "nondeterministic"),
        (outcome(CallStatus.OK, CallStatus.RAISED, CallStatus.TIMEOUT, deterministic=True), "raised"),
        (outcome(CallStatus.TIMEOUT, CallStatus.RAISED), "timeout"),
        (outcome(CallStatus.LOST, CallStatus.LOST), "lost"),
        (outcome(CallStatus.REJECTED, static_check=("line 1: imports os",)), "rejected"),
        (outcome(CallStatus.REJECTED), "rejected"),
    ],
)
def test_the_status_of_a_request(result, word):
    assert execute.status(result) == word


def test_a_byte_order_mark_before_a_request_is_no_part_of_it():
    line = b'{"id": 1, "program": "def f(): return 1", "inputs": [""]}'
    assert execute.parse(b"\xef\xbb\xbf" + line) == execute.parse(line)


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    open_ends = {reader, writer}

    def close(end: int) -> None:
        open_ends.discard(end)
        os.close(end)

    yield reader, writer, close
    for end in open_ends:
        os.close(end)


async def all_lines(descriptor: int) -> list[tuple[int, bytes | None]]:
    return [line async for line in execute.read_lines(descriptor)]


@pytest.mark.parametrize(
    "content, lines",
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\nb\r\n", [b"a", b"b\r"]),
        (b"\n\na", [b"", b"", b"a"]),
        (b"x" * execute.MAX_LINE_BYTES + b"\ny", [b"x" * execute.MAX_LINE_BYTES, b"y"]),
        (b"x" * (execute.MAX_LINE_BYTES + 1) + b"\ny", [None, b"y"]),
        (b"a\n" + b"x" * (execute.MAX_LINE_BYTES + 70_000), [b"a", None]),
    ],
    ids=range(7),
)
async def test_a_file_is_read_line_by_line(content, lines, tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(content)
    with path.open("rb", buffering=0) as file:
        assert await all_lines(file.fileno()) == list(enumerate(lines, 1))


async def test_a_line_of_a_pipe_is_there_before_the_next_one_is_written(pipe):
    reader, writer, close = pipe
    lines = execute.read_lines(reader)
    for number in range(1, 4):
        os.write(writer, b"half")
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        os.write(writer, b" whole\n")
        assert await waiting == (number, b"half whole")
    os.write(writer, b"rest")
    close(writer)
    assert await anext(lines) == (4, b"rest")
    with pytest.raises(StopAsyncIteration):
        await anext(lines)


async def test_a_slow_reader_holds_up_the_writing_but_not_the_loop(pipe):
    reader, writer, close = pipe
    data = os.urandom(2**20)
    writing = asyncio.create_task(execute.write(writer, data))
    await asyncio.sleep(0.05)
    assert not writing.done()
    received = bytearray()

    def read() -> None:
        while piece := os.read(reader, 2**16):
            received.extend(piece)

    thread = threading.Thread(target=read)
    thread.start()
    await writing
    close(writer)
    thread.join()
    assert received == data


async def test_a_reader_that_leaves_ends_the_writing(pipe):
    reader, writer, close = pipe
    writing = asyncio.create_task(execute.write(writer, bytes(2**20)))
    await asyncio.sleep(0.05)
    close(reader)
    with pytest.raises(BrokenPipeError):
        await writing
