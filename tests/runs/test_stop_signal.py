import asyncio
import gc
import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from azr.errors import RunEnded
from azr.records import Judgement, Role, Sample
from azr.runs.stop_signal import MalformedAlarm, StopRequested, StopSignal
from tests.runs.factory import completion, sample


async def work(ended: list[bool], error: Exception | None = None) -> None:
    """Go on for a minute; note the end, and fail there with an error that is given."""
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.01)
        ended.append(True)
        if error is not None:
            raise error


@pytest.mark.parametrize("received", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_the_first_signal_gives_up_work_in_progress(received):
    stop_signal, log, ended = StopSignal(), [], []
    with stop_signal.listening(log.append):
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), received)
        with pytest.raises(StopRequested) as stopped:
            await stop_signal.cancel_on_stop(work(ended))
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
    stop_signal = StopSignal()
    with stop_signal.listening(print):
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
        with pytest.raises(StopRequested):
            await stop_signal.cancel_on_stop(work([], TimeoutError("the driver waited 30 s for a rank to end")))
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == [
        "while it was stopped: the driver waited 30 s for a rank to end"
    ]


def test_a_closed_terminal_stops_as_a_signal_does():
    program = """
import asyncio, sys
from azr.runs.stop_signal import *
async def main():
    stop = StopSignal()
    with stop.listening(lambda text: print(text, flush=True)):
        print('ready', flush=True)
        try: await stop.cancel_on_stop(asyncio.sleep(60))
        except StopRequested as stopped: sys.exit(stopped.exit_code)
asyncio.run(main())
"""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])
    said = b""
    while b"ready\r\n" not in said:  # the line must be out before the terminal is closed
        said += os.read(terminal, 1000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 128 + signal.SIGHUP


async def test_the_second_signal_ends_all_processes_at_once(monkeypatch):
    ended = []
    monkeypatch.setattr("azr.runs.stop_signal.end_now", lambda line, code: ended.append(code))
    with StopSignal().listening(print):
        for received in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), received)
            await asyncio.sleep(0.05)
    assert ended == [128 + signal.SIGTERM]


async def test_cancelling_the_waiting_cancels_the_work():
    waiting = asyncio.create_task(StopSignal().cancel_on_stop(work(ended := [])))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended


LOOK = Path("run/rollouts/step_000003.jsonl.gz")


def fine(role: Role) -> list[Sample]:
    return responses(role, ["malformed"] * 8 + ["right"] * 2)


def bad(role: Role, text: str = "raw", cut_off: int = 0) -> list[Sample]:
    samples = responses(role, ["right"] + ["malformed"] * (9 - cut_off), text)
    return samples + responses(role, ["right"] * cut_off, finish="length")


def responses(role: Role, verdicts: list[str], text: str = "raw", finish: str = "stop") -> list[Sample]:
    said = completion([*map(ord, text)], finish=finish)
    judgements = [Judgement(verdict=each, reason="no_block" if each == "malformed" else "") for each in verdicts]
    return [sample(role, completion=said, judgement=judgement) for judgement in judgements]


def alarm(lines: list[str], *, stop: bool = True) -> MalformedAlarm:
    return MalformedAlarm(lambda ids: "".join(map(chr, ids)), lines.append, stop=stop)


def test_one_line_shows_a_response_as_it_was_sampled_both_ends_of_a_long_one() -> None:
    lines: list[str] = []
    alarm(lines).observe("step 3", bad("proposer", "a\nb<|im_end|>", cut_off=2) + fine("solver"), LOOK)
    assert lines == [
        "ALARM: 9 of 10 proposer responses of step 3 were malformed or cut off (7 no block, 2 cut off); one of them "
        f"reads 'a\\nb<|im_end|>'; all texts are in {LOOK}; what is asked is shown by azr prompts RECIPE"
    ]
    lines: list[str] = []
    alarm(lines).observe("step 3", bad("proposer", "\n" * 250 + "e" * 250))
    shown = repr("\n" * 200 + "\n[… 100 characters …]\n" + "e" * 200)
    assert f"one of them reads {shown};" in lines[0] and "\n" not in lines[0]


def test_three_rounds_of_one_role_in_a_row_end_the_run() -> None:
    lines: list[str] = []
    watch = alarm(lines)
    for solver in (bad, bad, fine, bad, bad):
        watch.observe("a round", solver("solver") + fine("proposer"))
        watch.raise_if_over()
    unasked = sample("solver", finish="given_up", length=0, verdict="ungraded")
    watch.observe("a round without solvers", [unasked, *bad("proposer")])
    watch.raise_if_over()
    watch.observe("a round", bad("solver") + bad("proposer"))
    with pytest.raises(RunEnded, match=r"Over 80% of the solver responses .* in 3 rounds in a row"):
        watch.raise_if_over()
    assert len(lines) == 7
    watch = alarm(lines, stop=False)
    for _ in range(5):
        watch.observe("a round", bad("solver"))
        watch.raise_if_over()
    assert len(lines) == 12, "it continues without an end where it may not stop"


def test_three_rounds_without_an_executor_end_the_run() -> None:
    lost = [sample("proposer", judgement=Judgement(verdict="lost", reason="lost")) for _ in range(9)]
    watch = alarm([], stop=False)
    for more in (lost, lost, [], lost, lost):
        watch.observe("a round", [*more, *fine("solver"), *(fine("proposer") if not more else [])])
        watch.raise_if_over()
    watch.observe("a round of solvers", fine("solver"))
    watch.observe("a round", [*lost, *fine("proposer")[:1]])
    with pytest.raises(RunEnded, match="lost the programs of over 80% of the proposer responses in 3 rounds in a row"):
        watch.raise_if_over()
