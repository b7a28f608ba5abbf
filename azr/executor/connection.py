"""The pool's end of one zygote: start it, send it requests, notice when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path

from azr.executor import protocol
from azr.executor.protocol import HEADER_BYTES, Limits

_WORKER = Path(__file__).with_name("worker.py")
_START_S = 60.0
_CLOSE_S = 5.0
_GRACE_S = 10.0


class WorkerLostError(Exception):
    """The zygote ended, or fell silent, before it replied."""


class Connection:
    """A running zygote. Replies are matched by id; the first sign of trouble ends it and fails what waits."""

    def __init__(self, process: asyncio.subprocess.Process, limits: Limits) -> None:
        self._process = process
        self._limits = limits
        self._waiting: dict[int, asyncio.Future[dict]] = {}
        self._ids = itertools.count()
        self._reader: asyncio.Task[None] | None = None
        self.lost = False

    @classmethod
    async def open(cls, prefix: tuple[str, ...], hash_seed: int, limits: Limits) -> Connection:
        """Start a zygote and wait until it has tried out its walls.

        Raises ValueError when a wall does not hold and WorkerLostError when it does not start.
        """
        # -I would ignore the hash seed, so isolation comes from -P -s -S and from this environment.
        process = await asyncio.create_subprocess_exec(
            *(*prefix, sys.executable, "-P", "-s", "-S", "-B", str(_WORKER)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PYTHONHASHSEED": str(hash_seed), "PYTHONUTF8": "1", "PATH": os.defpath},
            cwd="/",
            start_new_session=True,
        )
        connection = cls(process, limits)
        try:
            connection._send(protocol.limits_message(limits))
            greeting = await asyncio.wait_for(connection._receive(), _START_S)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, protocol.ProtocolError) as error:
            await connection.close()
            raise WorkerLostError("the sandbox did not start") from error
        broken = greeting.get("broken_walls")
        if broken != []:
            await connection.close()
            raise ValueError(
                f"The sandbox does not hold on this machine: a program could reach {broken}. It needs Linux on x86-64 "
                "with seccomp filters."
            )
        connection._reader = asyncio.create_task(connection._read_replies())
        return connection

    async def call(self, request: dict, timeout_s: float) -> dict:
        """The reply to a request. Raises WorkerLostError when the zygote ends or is silent for ``timeout_s``."""
        if self.lost:
            raise WorkerLostError("the sandbox is gone")
        number = next(self._ids)
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({**request, "id": number})
            return await asyncio.wait_for(reply, timeout_s + _GRACE_S)
        except TimeoutError as error:
            self._abandon()
            raise WorkerLostError("the sandbox fell silent") from error
        finally:
            del self._waiting[number]

    async def close(self) -> None:
        """End the zygote and every process below it. Safe to call again."""
        self.lost = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _CLOSE_S)
        except TimeoutError:
            self._abandon()
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    def _send(self, message: dict) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(protocol.encode(message))

    async def _receive(self) -> dict:
        assert self._process.stdout is not None
        header = await self._process.stdout.readexactly(HEADER_BYTES)
        length = protocol.frame_length(header, self._limits.reply_bytes)
        return protocol.decode(await self._process.stdout.readexactly(length))

    async def _read_replies(self) -> None:
        try:
            while True:
                message = await self._receive()
                number = message.get("id")
                if type(number) is not int or number not in self._waiting:
                    raise protocol.ProtocolError("a reply to no request")
                if not self._waiting[number].done():
                    self._waiting[number].set_result(message)
        except (asyncio.IncompleteReadError, ConnectionError, protocol.ProtocolError):
            self._abandon()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(WorkerLostError("the sandbox ended"))
        await self._process.wait()

    def _abandon(self) -> None:
        """Kill it with everything in its session's process group; its children die with it."""
        self.lost = True
        if self._process.returncode is None:
            # It may have ended without the event loop having heard of it yet.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
