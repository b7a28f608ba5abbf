"""The pool's end of one zygote: start it, send it requests, hand back its replies, notice when it is gone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from azr.errors import UserError
from azr.executor import protocol
from azr.executor.backends.sandbox import Launcher, LaunchError, Sandbox
from azr.executor.protocol import Limits

_GREETING_S = 60.0
_CLOSE_S = 5.0

OnPart = Callable[[bytes], bool]
"""Takes a part of a reply; whether it was the last."""


class Connection(asyncio.Protocol):
    """A running zygote. It answers in order; the first sign of trouble ends it.

    Everything happens on the event loop's thread: ``send`` and the callbacks never wait.
    """

    def __init__(self, sandbox: Sandbox, limits: Limits, on_lost: Callable[[], None]) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._on_lost = on_lost
        self._frames = protocol.FrameBuffer(limits.part_bytes)
        self._streams = protocol.StreamSplitter() if sandbox.multiplexed else None
        self._greeting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting: deque[OnPart] = deque()
        self._transport: asyncio.Transport | None = None
        self._closed = False

    @classmethod
    async def open(cls, launcher: Launcher, hash_seed: int, limits: Limits, on_lost: Callable[[], None]) -> Connection:
        """Launch a zygote and wait until it has tested its seal.

        ``on_lost`` is called once when it ends in any other way than by ``close``. Raises UserError when the seal
        does not hold, and LaunchError when the zygote does not start.
        """
        sandbox = await launcher.launch(hash_seed)
        connection = cls(sandbox, limits, on_lost)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sandbox.socket)
            connection._write(protocol.frame(protocol.limits_body(limits)))
            greeting = protocol.decode(await asyncio.wait_for(connection._greeting, _GREETING_S))
        except (OSError, TimeoutError, protocol.ProtocolError) as error:
            await connection.close()
            raise LaunchError("the sandbox did not start") from error
        except BaseException:
            await connection.close()
            raise
        if (failures := greeting.get("self_test_failures")) != []:
            await connection.close()
            raise UserError(
                f"The sandbox does not hold on this machine: a program could reach {failures}. "
                "It needs Linux on x86-64 or aarch64 with seccomp filters."
            )
        return connection

    def send(self, request: bytes, on_part: OnPart) -> None:
        """Queue the frames of a request for the zygote; ``on_part`` gets what it replies unless the zygote is lost."""
        self._waiting.append(on_part)
        self._write(request)

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
            for body in self._frames.feed(data if self._streams is None else self._streams.output(data)):
                self._receive(body)
        except protocol.ProtocolError:
            self.abandon()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._greeting.done():
            self._greeting.set_exception(LaunchError("the sandbox ended before it was ready"))
        elif not self._closed:
            self._sandbox.kill()
            self._on_lost()

    def _receive(self, body: bytes) -> None:
        if not self._greeting.done():
            self._greeting.set_result(body)
            return
        if not self._waiting:
            raise protocol.ProtocolError("a reply to no request")
        if self._waiting[0](body):
            self._waiting.popleft()

    def _write(self, frames: bytes) -> None:
        assert self._transport is not None
        self._transport.write(frames)
