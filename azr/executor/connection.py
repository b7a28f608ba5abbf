"""The pool's end of one zygote: start it, send it requests, hand back its replies, notice when it is gone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import cast

from azr.errors import UserError
from azr.executor import protocol
from azr.executor.backends.sandbox import LaunchError, Sandbox
from azr.executor.protocol import Limits

_GREETING_S = 60.0
_CLOSE_S = 5.0


class Connection(asyncio.Protocol):
    """A running zygote. It answers in order; the first sign of trouble ends it.

    Everything happens on the event loop's thread: ``send`` and the callbacks never wait.
    """

    def __init__(self, sandbox: Sandbox, on_part: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        """``on_part`` gets each part of its replies, and raises ProtocolError for one that it must not send.

        ``on_lost`` is called once when it ends in any other way than by ``close``.
        """
        self._sandbox, self._on_part, self._on_lost = sandbox, on_part, on_lost
        self._streams = protocol.FrameBuffer(math.inf, protocol.DOCKER_HEADER) if sandbox.multiplexed else None
        self._greeting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._closed = False

    async def open(self, limits: Limits) -> None:
        """Wait until the launched zygote has tested its seal.

        Raises UserError when that does not hold, and LaunchError when the zygote does not start; it is closed then.
        """
        self._frames = protocol.FrameBuffer(protocol.PART.size + limits.report_bytes)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self, self._sandbox.socket)
            self.send(protocol.frame(protocol.state_limits(limits)))
            if (reached := await asyncio.wait_for(self._greeting, _GREETING_S)) != protocol.SEALED:
                raise UserError(
                    "The sandbox does not hold on this machine: a program could reach "
                    f"{reached[:200].decode('latin-1')!a}. It needs Linux on x86-64 or aarch64 with seccomp filters."
                )
        except BaseException as error:
            await self.close()
            if isinstance(error, OSError):
                raise LaunchError("the sandbox did not start") from error
            raise

    def send(self, frames: bytes) -> None:
        """Queue frames for the zygote."""
        assert self._transport is not None
        self._transport.write(frames)

    def abandon(self) -> None:
        """Kill the zygote with everything in it; ``on_lost`` follows unless it was closed."""
        self._sandbox.kill()
        assert self._transport is not None
        self._transport.abort()

    async def close(self) -> None:
        """End the zygote and every process below it, and wait for that. Safe to call again."""
        self._closed = True
        if self._transport is None:
            self._sandbox.kill()
            self._sandbox.socket.close()
        else:
            # It ends by itself when its input ends.
            self._transport.abort()
        try:
            await asyncio.wait_for(self._sandbox.wait(), _CLOSE_S)
        except TimeoutError:
            self._sandbox.kill()
            await self._sandbox.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every event loop's transports derive from asyncio's classes; all of them have the methods.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for piece in [data] if self._streams is None else self._streams.feed(data):
                for body in self._frames.feed(piece):
                    if self._greeting.done():
                        self._on_part(body)
                    else:
                        self._greeting.set_result(body)
        except protocol.ProtocolError:
            self.abandon()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._greeting.done():
            self._greeting.set_exception(LaunchError("the sandbox ended before it was ready"))
        elif not self._closed:
            self._sandbox.kill()
            self._on_lost()
