"""``azr execute``: what a line asks, what is refused, what an answer looks like; real processes, files and pipes."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from azr.cli import execute
from azr.cli.execute import LineError, answer_all
from azr.execution import MAX_INPUTS, CallResult, CallStatus, ExecutionResult
from tests.executor.conftest import alive, sandboxes

ROOT = Path(__file__).parents[2]
AZR = [sys.executable, "-m", "azr", "execute"]
# Endless loops aside, no verdict of these tests may depend on how busy the machine is.
CALM = ["--wall", "30", "--memory-mb", "128", "--workers", "2", "--backend", "namespace"]
LOOP = "def f(x):\n    while True: pass"


def request(name: object, program: str, *inputs: str) -> str:
    return json.dumps({"id": name, "program": program, "inputs": inputs})


def run(text: str, *options: str) -> list[dict]:
    """The answers to lines on standard input."""
    done = subprocess.run([*AZR, "-", *CALM, *options], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_line_has_its_answer_in_its_place():
    lines = [
        request("double", "def f(x): return x * 2", "2", "'ab'", "[1]"),
        "{broken",
        request({"any": [1]}, "def f(a, b): return a / b", "1, 0", "1, 2"),
        "",
        request("static_check", "x = 1\nimport random\ndef f(x): return x", "1"),
        request("seeded", "def f(x): return hash(x)", "'a'"),
        request("no syntax", "def f(:", "1"),
        request("double", "def f(x): return x * 2", "2"),
    ]
    double, broken, divided, empty, static_check, seeded, unparsed, again = run("\n".join(lines))

    assert list(double) == ["id", "status", "outputs", "deterministic", "static_check"]
    assert [output["value"] for output in double["outputs"]] == ["4", "'abab'", "[1, 1]"]
    assert all(set(output) == {"status", "value", "error", "wall_s"} for output in double["outputs"])
    assert [double[key] for key in ("id", "status", "deterministic", "static_check")] == ["double", "ok", True, []]

    assert (broken["id"], broken["status"], broken["outputs"], broken["line"]) == (None, "rejected", [], 2)
    assert divided["id"] == {"any": [1]} and divided["status"] == "raised"
    assert [output["error"] for output in divided["outputs"]] == ["ZeroDivisionError", None]
    assert (empty["line"], empty["error"]) == (4, "the line is empty")
    assert static_check["status"] == "rejected" and static_check["static_check"] == ["line 2: imports random"]
    assert seeded["status"] == "nondeterministic" and seeded["deterministic"] is False
    assert unparsed["status"] == "rejected" and unparsed["static_check"][0].startswith("line 1: ")
    assert again["outputs"][0]["value"] == "4"


def test_options_reach_the_sandbox():
    clock = request(1, "import time\ndef f(): return time.time() > 0", "")
    (answer,) = run(clock, "--no-static-check", "--repeats", "1")
    assert (answer["status"], answer["deterministic"], answer["outputs"][0]["value"]) == ("ok", None, "True")
    (answer,) = run(request(1, LOOP, "1"), "--wall", "0.2")
    assert answer["status"] == "timeout" and 0.2 <= answer["outputs"][0]["wall_s"] < 2
    (answer,) = run(request(1, "def f(n): return len(bytearray(n))", f"{100 * 2**20}"), "--memory-mb", "64")
    assert answer["status"] == "memory"


def test_a_file_is_read_too(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text(request(1, "def f(): return 1", "") + "\n")
    done = subprocess.run([*AZR, str(path), *CALM], capture_output=True, text=True)
    assert done.returncode == 0
    assert json.loads(done.stdout)["outputs"][0]["value"] == "1"
    assert done.stderr.startswith("programs run behind namespace") and done.stderr.count("\n") == 1


def test_the_example_of_the_docs_gives_the_printed_result():
    text = (ROOT / "docs" / "execute.md").read_text()
    (command,) = re.findall(r"^echo .*azr execute -$", text, re.MULTILINE)
    (printed,) = re.findall(r"```json\n(.*)\n```", text)
    command = command.replace(".venv/bin/azr", f"{sys.executable} -m azr")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer, promised = json.loads(done.stdout), json.loads(printed)
    for output in answer["outputs"] + promised["outputs"]:
        assert 0 <= output.pop("wall_s") < 1
    assert answer == promised


def start(*options: str) -> subprocess.Popen[bytes]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([*AZR, "-", *CALM, *options], bufsize=0, **pipes)


def gone(processes: set[int]) -> bool:
    deadline = time.monotonic() + 10
    while (left := alive(processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not left


def test_an_answer_comes_while_the_input_is_still_open():
    with start() as process:
        for number in range(3):
            process.stdin.write(request(number, "def f(x): return x", str(number)).encode() + b"\n")
            assert json.loads(process.stdout.readline())["outputs"][0]["value"] == str(number)
        process.stdin.close()
        assert process.wait(20) == 0


def test_ctrl_c_ends_it_at_once_and_leaves_no_sandbox():
    with start() as process:
        process.stdin.write(request(0, "def f(): return 0", "").encode() + b"\n")
        assert process.stdout.readline()
        below = sandboxes({process.pid})
        assert below
        process.stdin.write(request(1, LOOP, "1").encode() + b"\n")
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        assert process.wait(20) == 130
        assert time.monotonic() - started < 10
        assert process.stderr.read().splitlines()[1:] == [b"interrupted"]
        assert gone(below)


def test_a_closed_pipe_ends_it_quietly():
    with start() as process:
        process.stdin.write(request(0, "def f(): return 0", "").encode() + b"\n")
        assert process.stdout.readline()
        below = sandboxes({process.pid})
        process.stdout.close()
        process.stdin.write(request(1, "def f(): return 1", "").encode() + b"\n")
        assert process.wait(20) == 141
        assert process.stderr.read().count(b"\n") == 1
        assert gone(below)


def test_a_full_disk_is_one_sentence():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*AZR, "-", *CALM], input=b"x\n", stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith(b"error: reading or writing failed:") and b"No space left" in said


async def test_a_long_input_is_answered_in_order_with_a_bounded_number_in_flight():
    running = most = 0
    jitter = random.Random(1)

    async def lines():
        for number in range(1, 20_001):
            yield number, b""

    async def answer(number: int, line: bytes | None) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(jitter.randrange(4)):
            await asyncio.sleep(0)
        running -= 1
        return f"{number}\n"

    reader, writer = os.pipe()

    def read() -> list[int]:
        with open(reader) as file:
            return [int(line) for line in file]

    reading = asyncio.create_task(asyncio.to_thread(read))
    await answer_all(lines(), answer, 16, writer)
    os.close(writer)
    assert await reading == list(range(1, 20_001))
    assert 8 < most <= 18


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


def outcome(*statuses: CallStatus, **more) -> ExecutionResult:
    return ExecutionResult(outputs=tuple(CallResult(status=status) for status in statuses), **more)


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
        assert [line async for line in execute.read_lines(file.fileno())] == list(enumerate(lines, 1))


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
