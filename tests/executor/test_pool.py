from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from azr.config import ExecutorConfig
from azr.executor import protocol
from azr.executor.connection import Connection
from azr.executor.pool import SandboxPool
from azr.executor.protocol import Limits
from azr.executor.slots import Slot, Slots
from azr.records import CallStatus, ExecutionRequest
from tests.executor.conftest import alive, call, descendants, sandboxes, usable_backends, zygotes

pytestmark = pytest.mark.asyncio(loop_scope="session")
SMALL = ExecutorConfig(workers=2, wall_s=2.0, repeats=1)
LOOP = ExecutionRequest(program="def f():\n    while True: pass", inputs=("",))


async def test_results_keep_the_order_of_requests(pool):
    requests = [ExecutionRequest(program=f"def f(x): return x + {n}", inputs=("1", "2")) for n in range(40)]
    results = await pool.execute_many(requests)
    assert [[o.value for o in r.outputs] for r in results] == [[str(n + 1), str(n + 2)] for n in range(40)]


async def test_identical_requests_run_once():
    async with SandboxPool(SMALL) as pool:
        request = ExecutionRequest(program="def f(x): return [x]", inputs=("1",))
        results = await pool.execute_many([request] * 5)
        again = await pool.execute(request)
        other = await pool.execute(ExecutionRequest(program="def f(x): return [x]", inputs=("1",), screen=False))
        assert sorted(r.cached for r in results) == [False, True, True, True, True]
        assert again.cached and again.outputs == results[0].outputs
        assert not other.cached
        stats = pool.stats()
        assert (stats.requests, stats.cache_hits, stats.calls) == (7, 5, {"ok": 2})


@pytest.mark.parametrize("backend", usable_backends())
async def test_killed_sandboxes_cost_no_result(backend):
    """Every request gets exactly one result, and a program that was running gets its second chance."""
    before = sandboxes({os.getpid()})
    async with SandboxPool(replace(SMALL, backend=backend)) as pool:
        honest = [ExecutionRequest(program=f"def f(x): return x * {n}", inputs=("3",)) for n in range(30)]
        running = asyncio.gather(pool.execute(LOOP), pool.execute_many(honest))
        await asyncio.sleep(0.3)
        mine = sandboxes({os.getpid()})
        for zygote in zygotes(pool):
            os.kill(zygote, signal.SIGKILL)
        looped, results = await running
        assert looped.outputs[0].status is CallStatus.TIMEOUT
        assert [r.outputs[0].value for r in results] == [str(3 * n) for n in range(30)]
        assert pool.stats().restarts >= 1
        mine |= sandboxes({os.getpid()})
    assert len(mine - before) >= 5
    assert not alive(mine - before)


async def test_a_request_that_loses_two_sandboxes_is_lost():
    async with SandboxPool(SMALL) as pool:
        running = asyncio.ensure_future(pool.execute(LOOP))
        killed: set[int] = set()
        while not running.done():
            for zygote in set(zygotes(pool)) - killed:
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


async def test_a_slot_asked_for_whole_is_given_under_load():
    limits = Limits(wall_s=1, request_s=8, memory_mb=1, output_bytes=1, banned_modules=())
    slots = Slots([Slot(hash_seed=1, prefix=(), limits=limits)], window=2)
    order: list[str] = []

    async def use(name: str, place: AbstractAsyncContextManager[Slot]) -> None:
        async with place as slot:
            order.append(name)
            assert slot.reserved == (name == "whole")
            await asyncio.sleep(0.01)

    crowd = [asyncio.create_task(use("one", slots.place(()))) for _ in range(6)]
    await asyncio.sleep(0)
    await asyncio.gather(use("whole", slots.whole(())), *crowd)
    assert order.index("whole") == 2 and len(order) == 7


async def test_closing_finishes_what_runs_and_leaves_no_process():
    before = sandboxes({os.getpid()})
    pool = SandboxPool(SMALL)
    await pool.start()
    running = asyncio.ensure_future(pool.execute(LOOP))
    await asyncio.sleep(0.2)
    mine = sandboxes({os.getpid()}) - before
    assert len(mine) >= 3
    await pool.close()
    await pool.close()
    assert (await running).outputs[0].status is CallStatus.TIMEOUT
    assert not alive(mine)


async def test_sandboxes_end_when_the_process_of_the_pool_is_killed():
    program = (
        "import asyncio\nfrom azr.config import ExecutorConfig\nfrom azr.executor.pool import SandboxPool\n"
        "from azr.records import ExecutionRequest\n"
        "async def main():\n"
        "    pool = SandboxPool(ExecutorConfig(workers=2, wall_s=60.0))\n"
        "    await pool.start()\n    print(1, flush=True)\n"
        "    await pool.execute(ExecutionRequest(program='while True: pass', inputs=('',)))\n"
        "asyncio.run(main())"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"1\n"
    await asyncio.sleep(0.3)
    below = descendants(owner.pid)
    assert len(below) >= 3
    owner.kill()
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 5
    while alive(below) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not alive(below)


async def test_a_sandbox_that_talks_nonsense_is_replaced(monkeypatch):
    async with SandboxPool(SMALL) as pool:
        honest = protocol.read_reply
        replies = []

        def strict(reply, inputs, output_bytes):
            replies.append(reply)
            if len(replies) == 1:
                raise protocol.ProtocolError("tampered")
            return honest(reply, inputs, output_bytes)

        monkeypatch.setattr(protocol, "read_reply", strict)
        assert (await call(pool, "def f(): return 1")).value == "1"
        assert len(replies) == 2


async def test_a_machine_whose_walls_do_not_hold_is_refused(monkeypatch):
    async def greeting(self):
        return {"broken_walls": ["network"]}

    monkeypatch.setattr(Connection, "_receive", greeting)
    with pytest.raises(ValueError, match=r"could reach \['network'\]"):
        await SandboxPool(SMALL).start()


@pytest.mark.parametrize("change", [{"workers": 0}, {"repeats": 0}, {"wall_s": 0.0}, {"output_bytes": 10**9}])
async def test_settings_that_cannot_hold_are_refused(change):
    with pytest.raises(ValueError, match=r"executor\."):
        SandboxPool(ExecutorConfig(**change))


async def test_requests_that_cannot_be_met_are_refused(pool):
    for request in (
        ExecutionRequest(program="", inputs=()),
        ExecutionRequest(program="", inputs=("",) * 129),
        ExecutionRequest(program="", inputs=("",), repeats=9),
    ):
        with pytest.raises(ValueError, match=r"request"):
            await pool.execute(request)


@pytest.mark.parametrize(
    "message",
    [
        None,
        {},
        {"status": "ok", "value": None, "error": None, "wall_s": 0, "cpu_s": 0},
        {"status": "ok", "value": "1", "error": "x", "wall_s": 0, "cpu_s": 0},
        {"status": "ok", "value": "1" * 99, "error": None, "wall_s": 0, "cpu_s": 0},
        {"status": "raised", "value": None, "error": None, "wall_s": 0, "cpu_s": 0},
        {"status": "raised", "value": "1", "error": "E", "wall_s": 0, "cpu_s": 0},
        {"status": "lost", "value": None, "error": "E", "wall_s": 0, "cpu_s": 0},
        {"status": [], "value": None, "error": "E", "wall_s": 0, "cpu_s": 0},
        {"status": "raised", "value": None, "error": "E" * 999, "wall_s": 0, "cpu_s": 0},
        {"status": "ok", "value": "1", "error": None, "wall_s": -1, "cpu_s": 0},
        {"status": "ok", "value": "1", "error": None, "wall_s": float("nan"), "cpu_s": 0},
        {"status": "ok", "value": "1", "error": None, "wall_s": True, "cpu_s": 0},
        {"status": "ok", "value": "1", "error": None, "wall_s": 10**400, "cpu_s": 0},
        {"status": "ok", "value": "1", "error": None, "wall_s": 0, "cpu_s": 0, "more": 1},
    ],
)
async def test_a_report_that_is_not_exactly_well_formed_is_refused(message):
    with pytest.raises(protocol.ProtocolError):
        protocol.read_call(message, output_bytes=10)


async def test_frames_survive_any_text_and_any_split():
    message = {"program": "\ud800\x00é'\"\\", "n": [1]}
    frame = protocol.encode(message)
    buffer = protocol.FrameBuffer(1000)
    got = [m for piece in (frame + frame)[:] for m in buffer.feed(bytes([piece]))]
    assert got == [message, message]
    limits = Limits(wall_s=1, request_s=8, memory_mb=1, output_bytes=1, banned_modules=("os",))
    assert protocol.read_limits(protocol.decode(protocol.encode(protocol.limits_message(limits))[4:])) == limits
