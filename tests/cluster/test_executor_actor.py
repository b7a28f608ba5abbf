"""The pool's actor is killed while it runs requests: what it ran is run again, and nothing of it is left behind."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import pytest_asyncio

from azr.cluster import executor_actor
from azr.cluster.executor_actor import RemoteExecutor
from azr.config import ExecutorConfig
from azr.execution import CallStatus, ExecutionRequest
from tests.executor.conftest import alive, sandboxes

pytestmark = pytest.mark.asyncio(loop_scope="module")
CONFIG = ExecutorConfig(workers=2, wall_s=60.0, memory_mb=128)
REQUESTS = 1000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor(ray_cluster: None) -> AsyncIterator[RemoteExecutor]:
    executor = RemoteExecutor(CONFIG, timeout_s=120.0)
    await executor.start()
    yield executor
    executor.kill()


async def process(executor: RemoteExecutor) -> int:
    """Of the actor."""
    return await executor.actor.__ray_call__.remote(lambda _: os.getpid())


async def gone(processes: set[int], within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(processes) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    return not alive(processes)


def answer_to(added: int) -> ExecutionRequest:
    return ExecutionRequest(program=f"def f(x): return x + {added}", inputs=("1", "2"))


@pytest.mark.long
async def test_a_killed_pool_costs_no_answer(executor: RemoteExecutor) -> None:
    assert (await executor.execute(answer_to(0))).ok
    assert (await executor.stats_delta())["inputs"] == 2
    dead = await process(executor)
    left_over = sandboxes({dead}) | {dead}
    assert len(left_over) > CONFIG.workers
    running = [asyncio.ensure_future(executor.execute(answer_to(index))) for index in range(REQUESTS)]
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    assert not all(task.done() for task in running)
    os.kill(dead, signal.SIGKILL)
    killed = time.monotonic()
    results = await asyncio.wait_for(asyncio.gather(*running), 300)
    print(f"{REQUESTS} requests answered {time.monotonic() - killed:.1f} s after the death")
    for index, result in enumerate(results):
        assert [output.value for output in result.outputs] == [str(index + 1), str(index + 2)]
    assert executor.restarts == 1 and await process(executor) != dead
    assert await gone(left_over)
    counts = await executor.stats_delta()
    assert 0 < counts["inputs"] <= 2 * REQUESTS and min(counts.values()) >= 0


async def test_it_stays_on_the_node_that_the_run_was_started_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, context = MagicMock(), SimpleNamespace(get_node_id=lambda: "0a" * 28)
    monkeypatch.setattr(executor_actor, "ExecutorPool", pool)
    monkeypatch.setattr(executor_actor.ray, "get_runtime_context", lambda: context)
    await RemoteExecutor(ExecutorConfig(), 1.0)._create_actor()
    strategy = pool.options.call_args.kwargs["scheduling_strategy"]
    assert (strategy.node_id, strategy.soft) == ("0a" * 28, True)


@pytest.mark.long
async def test_a_request_that_loses_every_pool_is_lost_and_the_next_is_not(executor: RemoteExecutor) -> None:
    before = executor.restarts
    endless = ExecutionRequest(program="def f():\n while True: pass", inputs=("", ""))
    running = asyncio.ensure_future(executor.execute(endless))
    while not running.done():
        os.kill(await process(executor), signal.SIGKILL)
        restarts = executor.restarts
        while executor.restarts == restarts and not running.done():
            await asyncio.sleep(0.05)
    result = await running
    assert result.lost and [output.status for output in result.outputs] == [CallStatus.LOST] * 2
    assert executor.restarts == before + 3
    assert (await executor.execute(answer_to(1))).ok
    counts = await executor.stats_delta()
    assert (counts["inputs"], counts["ok"]) == (2, 2)
