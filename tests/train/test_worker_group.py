"""Waiting, failing and ending: what a group says and what it leaves behind."""

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from ray.exceptions import OutOfMemoryError, RayTaskError

from azr.config import TimeoutConfig
from azr.errors import UserError
from azr.train.model_worker import COLLECTIVE_SHARE, ModelWorker
from azr.train.policy import PolicyWorker
from azr.train.worker_group import ACTOR_DEATH_GRACE_S, RankDied, WorkerGroup
from tests.train.conftest import make_config, on_ranks, process_ids

COLLECTIVE_S = 8.0


class IdleWorker(ModelWorker):
    """Joins its peer ranks and holds no model."""

    def build(self) -> None:
        self.built = True

    def sleep_on_rank_one(self, seconds: float) -> int:
        time.sleep(seconds * self.rank)
        return self.rank

    def wait_on_rank_one(self, file: Path) -> None:
        while self.rank == 1 and not os.access(file, os.F_OK):  # calls no function of Python's, so this frame is named
            time.sleep(0.01)

    def refuse(self) -> None:
        raise ValueError("the knob is wrong: turn it")

    def die_on_rank_one(self) -> None:
        """Rank 0 notices it first, as one does whose connection to a dying peer breaks."""
        if self.rank == 0:
            raise RuntimeError("connection closed")
        time.sleep(0.5)
        os._exit(3)

    def fail_on_rank_zero(self) -> None:
        if self.rank == 0:
            raise RuntimeError("a bug")

    def fill_the_disk(self) -> None:
        raise OSError("no room")

    def never_meet(self, file: Path) -> None:
        if self.rank == 0:
            dist.barrier(group=self.control)
        self.wait_on_rank_one(file)


async def start(path: Path) -> WorkerGroup:
    config = replace(make_config(path), timeout=TimeoutConfig(train_s=COLLECTIVE_S / COLLECTIVE_SHARE))
    return await WorkerGroup.start("policy", IdleWorker, [{"num_cpus": 0.2}] * 2, config, "cpu")


async def test_a_group_from_start_to_end(ray_cluster: None, tmp_path: Path) -> None:
    group = await start(tmp_path)
    pids = await process_ids(group)
    assert await on_ranks(group, lambda worker: torch.get_num_threads()) == [len(os.sched_getaffinity(0)) // 2 or 1] * 2
    assert await group.scatter("sleep_on_rank_one", [(0,), (0.1,)], timeout_s=60) == [0, 1]

    with pytest.raises(TimeoutError, match=r"the driver waited 2 s for policy ranks \[1\] to nap"):
        await group.call("wait_on_rank_one", tmp_path / "over", timeout_s=2.0, to="nap")
    (tmp_path / "over").touch()
    with pytest.raises(ValueError, match=r"^the knob is wrong: turn it$"):
        await group.call("refuse", timeout_s=60)
    with pytest.raises(OSError, match=r"^no room$"):
        await group.call("fill_the_disk", timeout_s=60)
    with pytest.raises(RuntimeError, match="a bug"):
        await group.call("fail_on_rank_zero", timeout_s=60)
    late = (
        r"waited \d.* ranks \[1\] to meet; outside of the others' collective, rank 1 is at .*py:\d+ in wait_on_rank_one"
    )
    with pytest.raises(TimeoutError, match=late):
        await group.call("never_meet", tmp_path / "met", timeout_s=COLLECTIVE_S / COLLECTIVE_SHARE, to="meet")
    (tmp_path / "met").touch()
    with pytest.raises(RankDied, match="policy rank 1 died while the driver waited for it to answer die_on") as death:
        await group.call("die_on_rank_one", timeout_s=60)
    assert (death.value.model_role, death.value.rank) == ("policy", 1)
    with pytest.raises(RankDied, match="policy rank 1 died while the driver waited for it to answer ping"):
        await group.call("ping", timeout_s=60)

    await group.shutdown()
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_a_missing_model_is_one_sentence(ray_cluster: None, tmp_path: Path) -> None:
    config = make_config(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"cannot load the policy model from .*nowhere': give a folder") as error:
        await WorkerGroup.start("policy", PolicyWorker, [{"num_cpus": 0.2}], config, "cpu")
    assert "\n" not in str(error.value)


async def test_a_rank_that_ray_ends_for_want_of_memory_died_of_that() -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answer.set_exception(OutOfMemoryError("2 worker(s) were killed due to the node running low on memory.\nMore"))
    with pytest.raises(
        RankDied, match=r"rank 0 died .* to learn: Ray ended it because .* memory was nearly full$"
    ) as death:
        await WorkerGroup("policy", ())._wait({0: answer}, 1.0, "learn")
    assert death.value.out_of_memory


async def after(error: Exception) -> None:
    """Let a rank raise this while its peer waits for it."""
    waits, fails = (asyncio.get_running_loop().create_future() for _ in range(2))
    fails.set_exception(RayTaskError("update", "Traceback", error).as_instanceof_cause())
    group = WorkerGroup("critic", (), devices=("GPU 2 of 10.0.0.2", "GPU 3 of 10.0.0.2"))
    async with asyncio.timeout(ACTOR_DEATH_GRACE_S / 2):
        await group._wait({0: waits, 1: fails}, 60.0, "learn")


async def test_a_gpu_without_memory_is_one_sentence_and_one_that_fails_is_a_death() -> None:
    with pytest.raises(UserError, match=r"^critic rank 1 ran out of memory on GPU 3 of 10.0.0.2 when it was to"):
        await after(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    for kind in (torch.AcceleratorError, dist.DistBackendError):
        with pytest.raises(RankDied, match=r"critic rank 1 died .* to learn: CUDA error: an illegal memory access$"):
            await after(kind("CUDA error: an illegal memory access\nCUDA kernel errors might be"))
