from __future__ import annotations

import asyncio
import os
import signal

import pytest

from azr.runs.stop_signal import StopRequested, StopSignal


class Log(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


async def test_work_is_done_without_a_signal():
    async def work() -> str:
        return "done"

    stop_signal = StopSignal()
    with stop_signal.listening(Log()):
        assert await stop_signal.cancel_on_stop(work()) == "done"
        stop_signal.raise_if_requested()


@pytest.mark.parametrize("received", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_gives_up_work_in_progress(received):
    stop_signal, log, ended = StopSignal(), Log(), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    with stop_signal.listening(log):
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), received)
        with pytest.raises(StopRequested) as stopped:
            await stop_signal.cancel_on_stop(work())
        assert stopped.value.exit_code == 128 + received and ended and len(log) == 1
        with pytest.raises(StopRequested):
            stop_signal.raise_if_requested()


async def test_the_second_signal_cancels_whatever_goes_on():
    async def run() -> None:
        with StopSignal().listening(Log()):
            for delay in (0.05, 0.1):
                asyncio.get_running_loop().call_later(delay, os.kill, os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run())


async def test_failures_of_the_work_are_its_own():
    async def work() -> None:
        raise ValueError("mistake")

    with pytest.raises(ValueError, match="mistake"):
        await StopSignal().cancel_on_stop(work())


async def test_cancelling_the_waiting_cancels_the_work():
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    waiting = asyncio.create_task(StopSignal().cancel_on_stop(work()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended
