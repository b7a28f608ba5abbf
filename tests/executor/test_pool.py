import asyncio
import contextlib
import errno
import itertools
import os
import signal
import socket
import struct
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import psutil
import pytest

from azr import values
from azr.config import ExecutorConfig
from azr.errors import UserError
from azr.execution import CallStatus, ExecutionRequest
from azr.executor import protocol, scheduler
from azr.executor.backends.sandbox import LaunchError
from azr.executor.pool import SandboxPool
from azr.executor.protocol import Kind, Limits, Part
from tests import tables
from tests.executor.conftest import alive, call, descendants, execute_many, sandboxes, zygotes

pytestmark = pytest.mark.asyncio(loop_scope="session")
SMALL = ExecutorConfig(workers=2, wall_s=2.0)
FORTY_BYTES = Limits(wall_s=1, request_s=8, memory_mb=1, output_bytes=40)
LOOP = ExecutionRequest(program="def f():\n    while True: pass", inputs=("",))


POOL = tables.programs(Path(__file__).with_name("programs.txt"), "process")["a busy pool"]


async def test_a_program_ends_with_every_process_above_it(backend):
    """A busy program, its zygote and the command in front of that end with whichever is killed."""
    for killed in itertools.count():
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", POOL, backend, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert await process.stdout.readline() == b"up\n"
            async with asyncio.timeout(60):
                while not (chain := above_the_busiest(process.pid)):
                    await asyncio.sleep(0.1)
            if killed == len(chain) - 1:
                return
            os.kill(chain[killed], signal.SIGKILL)
            async with asyncio.timeout(10):
                while alive(set(chain[killed + 1 :])):
                    await asyncio.sleep(0.1)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def above_the_busiest(pool: int) -> list[int]:
    """Processes from a pool down to its program, once that has computed for a while."""
    below = sandboxes({pool})
    below |= {process for each in below for process in descendants(each)}
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            busy = psutil.Process(process)
            if busy.cpu_times().user > 1.0:
                above = [each.pid for each in busy.parents()[::-1] if each.pid in below | {pool}]
                chain = [*above, process]
                return chain if chain[0] == pool else [pool, *chain]
    return []


async def test_a_request_that_loses_two_sandboxes_is_lost():
    before = sandboxes({os.getpid()})
    async with SandboxPool(replace(SMALL, backend="namespace"), repeats=1) as pool:
        running = asyncio.ensure_future(pool.execute(LOOP))
        killed: set[int] = set()
        while not running.done():
            for zygote in sandboxes({os.getpid()}) - before - killed:
                if descendants(zygote):
                    os.kill(zygote, signal.SIGKILL)
                    killed.add(zygote)
            await asyncio.sleep(0.02)
        result = running.result()
        assert result.lost and not result.ok
        assert result.outputs[0].status is CallStatus.LOST
        # It is not remembered: the next attempt runs, and so does everything else.
        assert (await pool.execute(LOOP)).outputs[0].status is CallStatus.TIMEOUT
        assert (await call(pool, "def f(): return 1")).value == "1"


async def test_a_program_that_lost_a_sandbox_runs_alone_under_load():
    """Its second try shares a zygote with nobody, so nobody else can be lost twice because of it."""
    async with SandboxPool(replace(SMALL, workers=1), repeats=1) as pool:
        slot = pool._scheduler.slots[0]
        crowd = [pool.execute(ExecutionRequest(program=f"def f(x): return x * {n}", inputs=("3",))) for n in range(60)]
        running = asyncio.gather(pool.execute(LOOP), *crowd)
        (zygote,) = zygotes(pool)
        while not (slot.running and descendants(zygote)) and not running.done():
            await asyncio.sleep(0.005)
        os.kill(zygote, signal.SIGKILL)
        most_beside_a_suspect = 0
        while not running.done():
            if slot.exclusive:
                most_beside_a_suspect = max(most_beside_a_suspect, len(slot.running))
            await asyncio.sleep(0.001)
        looped, *results = running.result()
        assert looped.outputs[0].status is CallStatus.TIMEOUT
        assert [r.outputs[0].value for r in results] == [str(3 * n) for n in range(60)]
        assert most_beside_a_suspect == 1


async def test_zygotes_are_replaced_after_long_service(monkeypatch):
    monkeypatch.setattr(scheduler, "RECYCLE_AFTER", 20)
    async with SandboxPool(SMALL, repeats=1) as pool:
        before = set(zygotes(pool))
        requests = [ExecutionRequest(program=f"def f(x): return x - {n}", inputs=("0",)) for n in range(120)]
        results = await execute_many(pool, requests)
        assert [r.outputs[0].value for r in results] == [str(-n) for n in range(120)]
        assert pool.stats()["restarts"] >= 4
        assert not alive(before)


async def test_calls_are_shared_by_input_with_requests_before_and_with_the_same_request_at_one_time():
    async with SandboxPool(SMALL, repeats=1) as pool:
        program = "def f(x): return x + 1"
        asked = ExecutionRequest(program=program, inputs=("1", "2", "3"))
        first, same, other = await execute_many(pool, [asked, asked, replace(asked, inputs=("2", "3"))])
        assert [o.value for o in first.outputs] == [o.value for o in same.outputs] == ["2", "3", "4"]
        assert [o.value for o in other.outputs] == ["3", "4"]
        assert (first.cached, same.cached, other.cached) == (False, True, False)
        second = await pool.execute(ExecutionRequest(program=program, inputs=("3", "4", "1")))
        assert [o.value for o in second.outputs] == ["4", "5", "2"] and not second.cached
        stats = pool.stats()
        assert (stats["inputs"], stats["cache_hits"], stats["calls"], stats["ok"]) == (11, 5, 6, 6)
        again = ExecutionRequest(program=program, inputs=("4",))
        assert (await pool.execute(again)).cached and not (
            await pool.execute(replace(again, static_check=False))
        ).cached


async def test_a_repeat_that_runs_out_of_time_is_a_timeout_and_no_contradiction():
    async with SandboxPool(replace(SMALL, wall_s=0.3)) as pool:
        for n in range(6):
            program = f"def f(x):\n    while x and hash('k{n}') % 2:\n        pass\n    return x"
            result = await pool.execute(
                ExecutionRequest(program=program, inputs=("0", "1"), repeats=2, static_check=False)
            )
            assert result.deterministic is not False
            late = result.outputs[1].status is CallStatus.TIMEOUT
            assert late or result.ok
            again = ExecutionRequest(program=program, inputs=("0",), repeats=2, static_check=False)
            # Not remembered as long as no repeat has confirmed it.
            unchecked = result.deterministic is None
            assert (await pool.execute(again)).cached is not unchecked
            if late:
                break
        else:
            pytest.fail("interpreters with other hash seeds agreed six times")


async def test_a_deterministic_pool_gives_each_program_the_same_hash_seeds_whatever_else_runs():
    """What hangs on them, where it was not found out, is then the same in every run."""
    programs = [f"def f(x): return list({{'a{n}', 'b{n}', 'c{n}'}})" for n in range(30)]
    requests = [ExecutionRequest(program=program, inputs=("0",)) for program in programs]
    async with SandboxPool(replace(SMALL, workers=4), repeats=1, seed=7) as pool:
        together = await execute_many(pool, requests)
    async with SandboxPool(replace(SMALL, workers=4), repeats=1, seed=7) as pool:
        alone = [await pool.execute(request) for request in reversed(requests)]
    assert [r.outputs[0].value for r in together] == [r.outputs[0].value for r in reversed(alone)]


async def test_closing_finishes_what_runs_and_leaves_no_process():
    before = sandboxes({os.getpid()})
    pool = SandboxPool(SMALL, repeats=1)
    await pool.start()
    running = asyncio.ensure_future(pool.execute(LOOP))
    mine: set[int] = set()
    while (len(mine) < 2 or not any(map(descendants, mine))) and not running.done():
        mine = sandboxes({os.getpid()}) - before
        await asyncio.sleep(0.02)
    assert len(mine) >= 2
    await pool.close()
    await pool.close()
    assert (await running).outputs[0].status is CallStatus.TIMEOUT
    assert not alive(mine)


async def test_a_sandbox_that_talks_nonsense_is_replaced(monkeypatch):
    async with SandboxPool(SMALL, repeats=1) as pool:
        honest = protocol.letter_of
        parts = []

        def strict(part):
            parts.append(part)
            if len(parts) == 1:
                raise protocol.ProtocolError("tampered")
            return honest(part)

        monkeypatch.setattr(protocol, "letter_of", strict)
        assert (await call(pool, "def f(): return 1")).value == "1"
        assert len(parts) > 2


async def test_a_sandbox_is_replaced_though_too_many_files_are_open_when_it_ends(monkeypatch):
    before = sandboxes({os.getpid()})
    async with SandboxPool(replace(SMALL, workers=1, backend="namespace"), repeats=1) as pool:
        assert (await call(pool, "def f(): return 1")).value == "1"
        refused, zygotes_now = OSError(errno.EMFILE, "Too many open files"), sandboxes({os.getpid()}) - before
        with monkeypatch.context() as patch:
            patch.setattr("pathlib.Path.read_text", Mock(side_effect=refused))
            patch.setattr("socket.socketpair", Mock(side_effect=[refused, socket.socketpair()]))
            for zygote in zygotes_now:
                with contextlib.suppress(ProcessLookupError):  # it has ended with the one before it
                    os.kill(zygote, signal.SIGKILL)
            assert (await asyncio.wait_for(call(pool, "def f(): return 2"), 30)).value == "2"


async def test_a_lost_program_is_given_up_with_the_only_slot_that_it_may_take(monkeypatch):
    class Zygote:
        def __init__(self, sandbox, on_part, on_lost):
            self.on_lost = on_lost

        async def open(self, limits): ...
        async def close(self): ...
        def send(self, frames): ...

    monkeypatch.setattr(scheduler, "Connection", Zygote)
    monkeypatch.setattr(scheduler, "RESTART_WAITS_S", (0.0, 0.0))
    launcher, taken = AsyncMock(), set()
    slots = scheduler.Scheduler(launcher, 2, 2, FORTY_BYTES)
    await slots.start()
    jobs = [scheduler.Job(request=b"", order=0, count=1, is_apart=False, taken=taken) for _ in range(2)]
    for job in jobs:
        slots.submit(job)
    launcher.launch.side_effect = LaunchError("no process")
    slots.slots[1].connection.on_lost()
    assert await asyncio.wait_for(jobs[1].reply, 30) is None
    await slots.close()


async def test_repeats_of_a_value_longer_than_other_pools_take_are_compared():
    program = "import random\ndef f(): return [random.random() for _ in range(20_000)]"
    async with SandboxPool(SMALL, answers=True) as pool:
        said = await pool.execute(ExecutionRequest(program=program, inputs=("",), repeats=2, static_check=False))
    assert said.deterministic is False


async def test_a_machine_whose_walls_do_not_hold_is_refused(monkeypatch):
    monkeypatch.setattr(protocol, "SEALED", b"another")
    with pytest.raises(ValueError, match=r"a program could reach 'sealed'\. It needs Linux"):
        await SandboxPool(SMALL, repeats=1).start()


async def test_settings_and_requests_that_cannot_be_met_are_refused(pool):
    for change in ({"workers": 0}, {"wall_s": 0.0}):
        with pytest.raises(UserError, match=r"executor\."):
            SandboxPool(ExecutorConfig(**change))
    with pytest.raises(UserError, match="repeats"):
        SandboxPool(ExecutorConfig(), repeats=0)
    assert protocol.MAX_VALUE_BYTES <= values.MAX_BYTES, "a value that a call may return can be parsed"
    for inputs, repeats in (((), 1), (("",) * 129, 1), (("",), 9)):
        with pytest.raises(ValueError, match=r"request"):
            await pool.execute(ExecutionRequest(program="", inputs=inputs, repeats=repeats))


CLAIMS = (b"", b"o1 + 1", b"o" + b"1" * 99, b"o\xff", b"?1", b"r" + b"1E" * 60, b"r", b"rno name", b"mtwo\nlines")


async def test_a_report_that_is_not_exactly_well_formed_fails_its_own_call():
    others = ((Part.LAST, b"r\xed\xa0\x80"), (b"?", b""), (Part.CRASHED, b"long"))
    for letter, content in (*((Part.CALL, claim) for claim in CLAIMS), *others):
        (output,) = protocol.read_calls([protocol.PART.pack(letter, 1.0, 0.5) + content], FORTY_BYTES)
        assert output.status is CallStatus.CRASHED and output.error.startswith("forged report: "), (letter, content)


async def test_reasons_and_parts_that_are_not_exactly_well_formed_are_none():
    for content in (b"", b"\xff", b"a reason\n", b"a\x00reason", b"r" * 999, b"\n".join([b"r"] * 51)):
        with pytest.raises(protocol.ProtocolError):
            protocol.read_reasons(protocol.PART.pack(Part.REASONS, 0.0, 0.0) + content)
    with pytest.raises(protocol.ProtocolError):
        protocol.letter_of(b"\x00\x00")


async def test_cpu_time_is_never_longer_than_wall_time_and_values_together_are_bounded():
    (output,) = protocol.read_calls([protocol.PART.pack(Part.CALL, 0.5, 99.0) + b"o1"], FORTY_BYTES)
    assert (output.value, output.wall_s, output.cpu_s) == ("1", 0.5, 0.5)
    part = protocol.PART.pack(Part.CALL, 0.5, 0.1) + b"o" + b"12345678" * 4
    statuses = [output.status for output in protocol.read_calls([part] * 9, FORTY_BYTES)]
    assert statuses[0] is CallStatus.OK and statuses[-1] is CallStatus.OUTPUT_TOO_LARGE


async def test_a_frame_is_read_whole_and_nothing_of_the_next_whatever_its_text_and_split():
    reader, writer = os.pipe()
    protocol.write(writer, b"first" * 9)
    protocol.write(writer, b"second")
    buffer = bytearray(8)
    assert bytes(buffer[: protocol.read(reader, buffer)]) == b"first" * 9
    assert bytes(buffer[: protocol.read(reader, buffer)]) == b"second"
    os.close(writer)
    assert protocol.read(reader, buffer) is None
    os.close(reader)
    program, texts = "\ud800\x00é'\"\\".encode("utf-8", "surrogatepass"), ["\udfff", ""]
    frames = protocol.request_frames(Kind.SOURCE, program, texts)
    buffer = protocol.FrameBuffer(1000)
    got = [body for piece in frames + frames for body in buffer.feed(bytes([piece]))]
    head = protocol.REQUEST.pack(Kind.SOURCE, 2)
    assert got == [head + program, *(text.encode("utf-8", "surrogatepass") for text in texts)] * 2
    limits = Limits(wall_s=1, request_s=8, memory_mb=1, output_bytes=1)
    assert protocol.read_limits(protocol.state_limits(limits)) == limits


async def test_docker_streams_are_split_at_any_point():
    pieces = [(1, b"ab"), (2, b"warning"), (1, b""), (1, b"cde")]
    stream = b"".join(struct.pack("!B3xI", kind, len(text)) + text for kind, text in pieces)
    for size in (1, 3, 100):
        splitter = protocol.FrameBuffer(1000, protocol.DOCKER_HEADER)
        cuts = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert b"".join(piece for cut in cuts for piece in splitter.feed(cut)) == b"abcde"
