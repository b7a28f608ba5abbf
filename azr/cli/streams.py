"""Lines in and bytes out of descriptors, without threads and without ever blocking the event loop for long.

A loop that stood still while somebody reads slowly would take its own sandboxes for silent.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator, Callable

MAX_LINE_BYTES = 2**22
"""Longest line kept; it holds the longest request a pool accepts, escapes included."""

_PIECE_BYTES = 2**16


async def read_lines(descriptor: int) -> AsyncIterator[tuple[int, bytes | None]]:
    """Each line as soon as it is there, with its number from 1; None stands for one beyond ``MAX_LINE_BYTES``.

    A last line need not end in a newline. Raises OSError as reading does.
    """
    loop = asyncio.get_running_loop()
    number, start, too_long = 1, bytearray(), False
    while True:
        await _ready(descriptor, loop.add_reader, loop.remove_reader)
        if not (piece := os.read(descriptor, _PIECE_BYTES)):
            break
        *ends, rest = piece.split(b"\n")
        for end in ends:
            yield number, None if too_long or len(start) + len(end) > MAX_LINE_BYTES else bytes(start + end)
            number, start, too_long = number + 1, bytearray(), False
        start += rest
        if len(start) > MAX_LINE_BYTES:
            start, too_long = bytearray(), True
    if start or too_long:
        yield number, None if too_long else bytes(start)


async def write(descriptor: int, data: bytes) -> None:
    """Write all of it. Raises BrokenPipeError when nobody reads any more."""
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        await _ready(descriptor, loop.add_writer, loop.remove_writer)
        # A pipe that is ready takes this much at once; more might block.
        rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]


async def _ready(descriptor: int, watch: Callable[..., None], unwatch: Callable[[int], bool]) -> None:
    ready = asyncio.Event()
    try:
        watch(descriptor, ready.set)
    except PermissionError:
        return  # A file or a device that is always ready: the kernel does not watch those.
    try:
        await ready.wait()
    finally:
        unwatch(descriptor)
