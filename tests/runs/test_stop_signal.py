from __future__ import annotations

import asyncio
import os
import signal

import pytest

from azr.runs.stop_signal import Interrupt, Stopped


class Notes(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


async def test_work_is_done_as_long_as_nobody_asks():
    async def work() -> str:
        return "done"

    interrupt = Interrupt()
    with interrupt.listening(Notes()):
        assert await interrupt.unless_asked(work()) == "done"
        interrupt.check()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_gives_up_work_in_progress(number):
    interrupt, notes, ended = Interrupt(), Notes(), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    with interrupt.listening(notes):
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), number)
        with pytest.raises(Stopped) as stopped:
            await interrupt.unless_asked(work())
        assert stopped.value.exit_code == 128 + number and ended and len(notes) == 1
        with pytest.raises(Stopped):
            interrupt.check()


async def test_the_second_signal_cancels_whatever_goes_on():
    async def run() -> None:
        with Interrupt().listening(Notes()):
            for delay in (0.05, 0.1):
                asyncio.get_running_loop().call_later(delay, os.kill, os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run())


async def test_failures_of_the_work_are_its_own():
    async def work() -> None:
        raise ValueError("mistake")

    with pytest.raises(ValueError, match="mistake"):
        await Interrupt().unless_asked(work())


async def test_cancelling_the_waiting_cancels_the_work():
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    waiting = asyncio.create_task(Interrupt().unless_asked(work()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended
