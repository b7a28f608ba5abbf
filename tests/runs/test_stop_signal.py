from __future__ import annotations

import asyncio
import gc
import os
import pty
import signal
import sys

import pytest

from azr.runs.stop_signal import StopRequested, StopSignal


async def test_work_is_done_without_a_signal():
    async def work() -> str:
        return "done"

    stop_signal = StopSignal()
    with stop_signal.listening(print):
        assert await stop_signal.cancel_on_stop(work()) == "done"
        stop_signal.raise_if_requested()


@pytest.mark.parametrize("received", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_the_first_signal_gives_up_work_in_progress(received):
    stop_signal, log, ended = StopSignal(), [], []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    with stop_signal.listening(log.append):
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), received)
        with pytest.raises(StopRequested) as stopped:
            await stop_signal.cancel_on_stop(work())
        assert stopped.value.exit_code == 128 + received and ended and len(log) == 1
        with pytest.raises(StopRequested):
            stop_signal.raise_if_requested()


async def test_nohup_is_obeyed():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal().listening(print) as _:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.05)
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_a_failure_of_work_that_is_given_up_is_one_line(caplog):
    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise TimeoutError("the driver waited 30 s for a rank to end")

    stop_signal = StopSignal()
    with stop_signal.listening(print):
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
        with pytest.raises(StopRequested):
            await stop_signal.cancel_on_stop(work())
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == [
        "while it was stopped: the driver waited 30 s for a rank to end"
    ]


def test_a_closed_terminal_stops_as_a_signal_does():
    program = (
        "import asyncio, sys\nfrom azr.runs.stop_signal import *\n"
        "async def main():\n"
        "    stop = StopSignal()\n"
        "    with stop.listening(lambda text: print(text, flush=True)):\n"
        "        print('ready', flush=True)\n"
        "        try:\n            await stop.cancel_on_stop(asyncio.sleep(60))\n"
        "        except StopRequested as stopped:\n"
        "            print(stopped, flush=True)\n            sys.exit(stopped.exit_code)\n"
        "asyncio.run(main())\n"
    )
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])
    said = b""
    while b"ready\r\n" not in said:  # the line must be out before the terminal is closed
        said += os.read(terminal, 1000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 128 + signal.SIGHUP


async def test_the_second_signal_cancels_whatever_goes_on():
    async def run() -> None:
        with StopSignal().listening(print):
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
