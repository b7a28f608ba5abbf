"""Lines from and bytes to real descriptors."""

import asyncio
import os
import threading

import pytest

from azr.cli import streams
from azr.cli.streams import MAX_LINE_BYTES


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
    return [line async for line in streams.read_lines(descriptor)]


@pytest.mark.parametrize(
    "content, lines",
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\nb\r\n", [b"a", b"b\r"]),
        (b"\n\na", [b"", b"", b"a"]),
        (b"x" * MAX_LINE_BYTES + b"\ny", [b"x" * MAX_LINE_BYTES, b"y"]),
        (b"x" * (MAX_LINE_BYTES + 1) + b"\ny", [None, b"y"]),
        (b"a\n" + b"x" * (MAX_LINE_BYTES + 70_000), [b"a", None]),
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
    lines = streams.read_lines(reader)
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
    writing = asyncio.create_task(streams.write(writer, data))
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
    writing = asyncio.create_task(streams.write(writer, bytes(2**20)))
    await asyncio.sleep(0.05)
    close(reader)
    with pytest.raises(BrokenPipeError):
        await writing
