"""Waiting, failing and ending: what a group says and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import psutil
import pytest
import torch
from ray.exceptions import OutOfMemoryError

from azr.train.model_worker import ModelWorker
from azr.train.policy import PolicyWorker
from azr.train.worker_group import RankDied, WorkerGroup
from tests.train.conftest import make_config, on_ranks, process_ids


class IdleWorker(ModelWorker):
    """Joins its peer ranks and holds no model."""

    def build(self) -> None:
        self.built = True

    def sleep_on_rank_one(self, seconds: float) -> int:
        time.sleep(seconds * self.rank)
        return self.rank

    def wait_on_rank_one(self, file: Path) -> None:
        while self.rank == 1 and not file.exists():
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


async def start(path: Path) -> WorkerGroup:
    return await WorkerGroup.start("policy", IdleWorker, [{"num_cpus": 0.2}] * 2, make_config(path), "cpu")


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
