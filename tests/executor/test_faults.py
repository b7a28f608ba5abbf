"""Zygotes, containers and the engine itself end amid 5,000 requests: each request gets exactly one result."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from azr.config import ExecutorConfig
from azr.execution import CallStatus, ExecutionRequest, ExecutionResult
from azr.executor import scheduler
from azr.executor.backends import docker as docker_backend
from azr.executor.backends import docker_image
from azr.executor.pool import SandboxPool
from tests.executor.conftest import execute_many, require, sandboxes

pytestmark = pytest.mark.asyncio(loop_scope="session")
# The limit is far off, so that a busy machine makes no timeouts.
CONFIG = ExecutorConfig(workers=2, wall_s=20.0, memory_mb=128)
REQUESTS = 3000
TRY_AGAIN_S = (0.0, 0.2, 0.5, 1.0)


async def run_amid(pool: SandboxPool, damage: Callable[[], Awaitable[None]]) -> Counter[CallStatus]:
    """How the requests ended; what ended well has the right value. Half of them begin once the damage is done."""
    requests = [ExecutionRequest(program=f"def f(x): return x + {n}", inputs=("1",)) for n in range(REQUESTS)]

    async def afterwards() -> list[ExecutionResult]:
        await damage()
        return await execute_many(pool, requests[REQUESTS // 2 :])

    running = asyncio.gather(execute_many(pool, requests[: REQUESTS // 2]), afterwards())
    first, second = await asyncio.wait_for(running, 300)
    results = first + second
    assert len(results) == REQUESTS
    for number, result in enumerate(results):
        (output,) = result.outputs
        assert output.value == (str(number + 1) if output.status is CallStatus.OK else None)
    return Counter(result.outputs[0].status for result in results)


def is_retrying(pool: SandboxPool) -> bool:
    """Whether a program that has lost a zygote still waits or runs."""
    slots = pool._scheduler.slots
    return bool(pool._scheduler._quarantined) or any(job.losses for slot in slots for job in slot.running)


async def test_killed_zygotes(backend):
    rng = random.Random(1)
    before = sandboxes({os.getpid()})

    async def damage() -> None:
        for _ in range(6):
            await asyncio.sleep(0.7)  # by then the pool has noticed what was lost
            while is_retrying(pool):  # what is lost twice is lost for good
                await asyncio.sleep(0.05)
            mine = sorted(sandboxes({os.getpid()}) - before)
            if mine:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(mine), signal.SIGKILL)

    async with SandboxPool(replace(CONFIG, backend=backend), repeats=1) as pool:
        ended = await run_amid(pool, damage)
        # A program may be killed itself instead of its zygote; that is a crash of its own.
        assert ended[CallStatus.OK] >= REQUESTS - 6 and ended[CallStatus.LOST] == 0
        assert pool.stats()["restarts"] >= 1


class Engine:
    """A Docker engine of the test's own, which can be stopped without harm to the machine's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = f"unix://{folder}/engine.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["dockerd", "--data-root", str(self._folder / "data"), "--exec-root", str(self._folder / "run")]
        command += ["--pidfile", str(self._folder / "pid"), "--host", self.address]
        command += ["--bridge=none", "--iptables=false", "--ip6tables=false"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    def _answers(self) -> bool:
        try:
            client = docker.APIClient(base_url=self.address, version="auto")
        except docker.errors.DockerException:
            return False
        client.close()
        return True


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A running engine that has the executor's image."""
    require("docker")
    if os.geteuid() != 0:
        pytest.skip("an engine of one's own needs root")
    mine = Engine(tmp_path_factory.mktemp("engine"))
    mine.start()
    here = docker.APIClient()
    there = docker.APIClient(base_url=mine.address)
    try:
        there.load_image(here.get_image(docker_image.ensure_image(here)))
        yield mine
    finally:
        here.close()
        there.close()
        mine.stop()


async def test_an_engine_that_is_restarted(engine, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine.address)

    async def damage() -> None:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(engine.stop)
        await asyncio.to_thread(engine.start)

    async with SandboxPool(replace(CONFIG, backend="docker"), repeats=1) as pool:
        ended = await run_amid(pool, damage)
        # What ran while it stopped may have lost a second container to the same stop.
        assert ended[CallStatus.OK] >= REQUESTS - 2 * scheduler.PIPELINE_DEPTH
        assert set(ended) <= {CallStatus.OK, CallStatus.LOST}


@pytest.mark.long
async def test_an_engine_that_stops_for_good(engine, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine.address)
    monkeypatch.setattr(scheduler, "RESTART_WAITS_S", TRY_AGAIN_S)
    monkeypatch.setattr(docker_backend, "_REMOVAL_S", 2)

    async def damage() -> None:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(engine.stop)

    pool = SandboxPool(replace(CONFIG, backend="docker"), repeats=1)
    await pool.start()
    try:
        ended = await run_amid(pool, damage)
        assert ended[CallStatus.OK] + ended[CallStatus.LOST] == REQUESTS
        assert ended[CallStatus.LOST] >= REQUESTS // 2
    finally:
        await pool.close()
        engine.start()
