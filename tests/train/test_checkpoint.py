"""A role's state on disk: continued bit by bit, on other numbers of ranks, after a full disk, a damage or a death."""

import asyncio
import gc
import os
import random
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import Tensor
from torch.distributed import distributed_c10d

from azr.config import Config
from azr.errors import UserError
from azr.files import hash_file
from azr.records import Completion
from azr.train.learner import score, update_critic
from azr.train.model_worker import COLLECTIVE_SHARE, ModelWorker
from azr.train.policy import CriticWorker, PolicyWorker
from azr.train.shards import ShardReader, shard_path
from azr.train.worker_group import RankDied, WorkerGroup
from tests.train.conftest import (
    LR,
    STEP_S,
    make_config,
    on_ranks,
    one_step,
    process_ids,
    random_completion,
    update_policy,
)

pytestmark = pytest.mark.long

KINDS = (Tensor, torch.nn.Parameter)
TOKENS = 24
"""Of each sample. A micro-batch holds just one, so that they are the same ones on one rank and on two."""
EACH_ROLE_IN_ONE_TYPE = pytest.mark.parametrize(
    ("role", "dtype"),
    [
        ("policy", "bfloat16"), ("critic", "float32"), ("policy", "float32"), ("critic", "bfloat16"),
    ],
)  # fmt: skip


@pytest.fixture(scope="module")
def samples() -> list[Completion]:
    dice = random.Random(7)
    return [random_completion(dice, TOKENS // 2, TOKENS // 2) for _ in range(6)]


@dataclass(frozen=True)
class Trained:
    """A group and what it is trained with."""

    group: WorkerGroup
    config: Config
    samples: list[Completion]

    async def update(self, times: int, **given: Tensor) -> list[dict[str, float]]:
        """Metrics of each update by random columns, but for those that are given."""
        generator = torch.Generator().manual_seed(11)
        shape = (sum(c.num_sampled for c in self.samples),)
        step, names = (
            (update_policy, ("advantages", "old_logprobs", "reference_logprobs", "rollout_logprobs"))
            if self.group.model_role == "policy"
            else (update_critic, ("old_values", "returns"))
        )
        columns = {name: torch.randn(shape, generator=generator) - 1 for name in names} | given
        batch = one_step(self.samples, self.group, self.config)
        return [await step(self.group, batch, columns, STEP_S) for _ in range(times)]

    async def save(self, folder: Path) -> Path:
        folder.mkdir()
        written = await self.group.call("save_checkpoint", str(folder), timeout_s=STEP_S)
        paths = [shard_path(folder / self.group.model_role, rank) for rank in range(self.group.size)]
        assert written == [hash_file(path) for path in paths], "hashed while it was written"
        return folder

    async def load(self, folder: Path) -> None:
        await self.group.call("load_checkpoint", str(folder), timeout_s=STEP_S)

    def files(self, folder: Path) -> list[bytes]:
        """Weights, moments, schedule, counters and random states: everything there is."""
        return [shard_path(folder / self.group.model_role, rank).read_bytes() for rank in range(self.group.size)]


Pairs = Callable[[str, str], Coroutine[None, None, tuple[Trained, Trained]]]


@pytest.fixture(scope="module")
def policies() -> dict[str, tuple[Trained, Trained]]:
    """Those that were started, by type."""
    return {}


@pytest.fixture
def pairs(start_group, lend_group, policies, tiny_model_path, samples) -> Pairs:
    """A role of one rank and of two, by role and type. Starting takes most of the time here, so policies are kept."""

    async def start(role: str, dtype: str) -> tuple[Trained, Trained]:
        if role == "policy" and dtype in policies:
            return policies[dtype]
        config = make_config(tiny_model_path, dtype=dtype, warmup_steps=4, tokens_per_micro_batch=TOKENS)
        worker, begin = (PolicyWorker, start_group) if role == "policy" else (CriticWorker, lend_group)
        one, two = await asyncio.gather(*(begin(role, worker, config, ranks) for ranks in (1, 2)))
        pair = Trained(one, config, samples), Trained(two, config, samples)
        if role == "policy":
            policies[dtype] = pair
        return pair

    return start


def whole(folder: Path) -> dict[str, Tensor]:
    """The state's tensors, put together from all ranks' parts."""
    reader = ShardReader(folder)
    tensors = {name: torch.zeros(size) for name, size in reader.totals.items()}
    for name, tensor in tensors.items():
        reader.read(name, 0, tensor)
    return tensors


@EACH_ROLE_IN_ONE_TYPE
async def test_leaves_the_device_is_saved_from_the_host_and_comes_back(role, dtype, pairs, tmp_path) -> None:
    for run in await pairs(role, dtype):
        ranks, call = run.group.size, partial(run.group.call, timeout_s=STEP_S)
        await run.update(1)
        here = await run.save(tmp_path / f"here_{ranks}")
        before = max(await on_ranks(run.group, resident))
        expected = await run.update(2)
        later = await run.save(tmp_path / f"later_{ranks}")

        await run.load(here)
        await call("offload", False)
        if role == "policy":
            assert max(await on_ranks(run.group, resident)) < before / 2, "at least the weights are left"
            await call("save_hf", str(tmp_path / f"hf_{ranks}"))
        await call("offload", True)
        assert run.files(await run.save(tmp_path / f"away_{ranks}")) == run.files(here)
        if role == "policy":  # whose processes are new
            assert max(await on_ranks(run.group, resident)) < before / 100, "nothing is left that counts"
            await call("save_hf", str(tmp_path / f"hf_away_{ranks}"))
            saved = [tmp_path / f"{name}_{ranks}" / "model.safetensors" for name in ("hf", "hf_away")]
            assert saved[0].read_bytes() == saved[1].read_bytes()
        await call("reload")
        assert await run.update(2) == expected
        assert run.files(await run.save(tmp_path / f"again_{ranks}")) == run.files(later)


def resident(worker: ModelWorker) -> int:
    """Bytes under all tensors of the process but the copies on the host. Engines before this one may count as well."""
    gc.collect()
    away = [copy for _, copy in worker._away._away.values() if copy is not None]
    copies = {id(tensor.untyped_storage()) for tensor in sum(worker._away._spare.values(), away)}
    storages = {id(each.untyped_storage()): each.untyped_storage() for each in gc.get_objects() if type(each) in KINDS}
    return sum(storage.nbytes() for place, storage in storages.items() if place not in copies)


@EACH_ROLE_IN_ONE_TYPE
async def test_continues_on_as_many_ranks_and_on_others(role, dtype, pairs, tmp_path) -> None:
    one, two = await pairs(role, dtype)
    if dtype == "bfloat16":  # in which ZeRO-3 has other rotary frequencies
        await on_ranks(one.group, share_alone)
    saved, later = {}, {}
    for run in (one, two):
        ranks = run.group.size
        await run.update(2)
        saved[ranks] = await run.save(tmp_path / f"saved_{ranks}")
        expected = await run.update(2)
        later[ranks] = await run.save(tmp_path / f"later_{ranks}")
        await run.group.call("build", timeout_s=STEP_S)  # a new engine with the first weights
        await run.load(saved[ranks])
        assert await run.update(2) == expected
        assert run.files(await run.save(tmp_path / f"again_{ranks}")) == run.files(later[ranks])

    for run, other in ((one, two), (two, one)):
        await run.load(saved[other.group.size])
        moved = await run.save(tmp_path / f"moved_{run.group.size}")
        before, after = whole(saved[other.group.size] / role), whole(moved / role)
        assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        await run.update(2)
        ended = whole(await run.save(tmp_path / f"ended_{run.group.size}") / role)
        for name, value in whole(later[other.group.size] / role).items():
            if name.startswith("master/"):
                torch.testing.assert_close(ended[name], value, atol=LR / 100, rtol=0)


def share_alone(worker: ModelWorker) -> None:
    """Make the engine anew, by ZeRO-3 on a single rank."""
    worker.config = replace(worker.config, train=replace(worker.config.train, shard="zero3"))
    worker.build()


@pytest.mark.parametrize("before, after", [("bfloat16", "float32"), ("float32", "bfloat16")])
async def test_a_run_may_go_on_where_another_type_is_faster(before, after, pairs, tmp_path) -> None:
    (there, _), (here, _) = await pairs("policy", before), await pairs("policy", after)
    await there.update(1)
    left = await there.save(tmp_path / "left")
    await here.load(left)
    taken = whole(await here.save(tmp_path / "taken") / "policy")
    assert all(torch.equal(taken[name], tensor) for name, tensor in whole(left / "policy").items())
    # By these no token is near a bound of the clip, where the least rounding takes its gradient away.
    batch = one_step(there.samples, there.group, there.config)
    old = await score(there.group, "logprobs", batch, STEP_S)
    [expected], [found] = await there.update(1, old_logprobs=old), await here.update(1, old_logprobs=old)
    assert expected["clip_fraction"] == 0
    assert found == pytest.approx(expected, rel=0.1, abs=0.01)


@pytest.fixture
async def two(pairs: Pairs) -> Trained:
    """A policy of two ranks."""
    return (await pairs("policy", "bfloat16"))[1]


async def test_a_state_of_no_steps_is_a_state(two: Trained, tmp_path: Path) -> None:
    start = await two.save(tmp_path / "start")
    first = await two.update(2)
    await two.load(start)
    assert await two.update(2) == first


async def test_a_full_disk_costs_only_that_save(two: Trained, small_disk: Path, tmp_path: Path) -> None:
    await two.update(1)
    before = await two.save(tmp_path / "before")
    sentence = rf"^policy rank [01] cannot write its checkpoint to {small_disk}: .*No space left on device"
    with pytest.raises(OSError, match=sentence) as error:
        await two.group.call("save_checkpoint", str(small_disk), timeout_s=STEP_S)
    assert "\n" not in str(error.value)
    with pytest.raises(OSError, match=rf"^policy rank 0 cannot write its checkpoint to {small_disk}/hf: "):
        await two.group.call("save_hf", str(small_disk / "hf"), timeout_s=STEP_S)
    assert two.files(await two.save(tmp_path / "after")) == two.files(before)
    expected = await two.update(1)
    await two.load(before)
    assert await two.update(1) == expected


async def test_a_folder_that_a_rank_cannot_see_is_known_at_the_start(two: Trained, tmp_path: Path) -> None:
    from azr.runtime import Driver  # workers import this module too, and what that loads draws a random number

    await two.group.call("check_folder", str(tmp_path), timeout_s=STEP_S)
    assert {file.name for file in tmp_path.iterdir()} == {"policy_0", "policy_1"}
    with pytest.raises(OSError, match=r"^policy rank [01] cannot write its checkpoint to .*nowhere: ") as error:
        await two.group.call("check_folder", str(tmp_path / "nowhere"), timeout_s=STEP_S)

    class OnAnotherNode:
        async def call(self, method: str, folder: str, timeout_s: float) -> None:
            assert method == "check_folder" and Path(folder).is_dir()
            raise error.value

    driver = SimpleNamespace(_run=SimpleNamespace(checkpoints=tmp_path), _config=Config())
    with pytest.raises(UserError, match=r"nowhere: .*Give a folder that all nodes share with --run\.root\.$"):
        await Driver._check_shared(driver, SimpleNamespace(policy=OnAnotherNode()))  # type: ignore[arg-type]


async def test_deepspeeds_groups_wait_as_long_as_the_config_says(two: Trained) -> None:
    def timeouts(worker: ModelWorker) -> set[float]:
        groups = list(distributed_c10d._world.pg_map)
        assert len(groups) > 2, "the world, the control group and DeepSpeed's own"
        return {group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups}

    assert await on_ranks(two.group, timeouts) == [{COLLECTIVE_SHARE * STEP_S}] * 2


async def test_damage_is_named_and_changes_nothing(two: Trained, tmp_path: Path) -> None:
    saved = await two.save(tmp_path / "saved")
    await two.update(1)
    before = await two.save(tmp_path / "before")
    damaged = shard_path(saved / "policy", 1)
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with pytest.raises(UserError, match=f"^{damaged} is damaged"):
        await two.load(saved)
    damaged.unlink()
    with pytest.raises(UserError, match=f"^{damaged} is missing"):
        await two.load(saved)
    assert two.files(await two.save(tmp_path / "after")) == two.files(before)


async def test_a_group_that_lost_a_rank_is_rebuilt_and_continues(two, start_group, tmp_path) -> None:
    saved = await two.save(tmp_path / "saved")
    expected = await two.update(2)
    later = await two.save(tmp_path / "later")

    pids = await process_ids(two.group)
    update = asyncio.create_task(replace(two, samples=two.samples * 200).update(1))
    await asyncio.sleep(1.0)
    assert not update.done()
    killed = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RankDied, match="policy rank 1 died while the driver waited for it to take an") as death:
        await update
    assert (death.value.model_role, death.value.rank) == ("policy", 1)
    with pytest.raises(RankDied, match="policy rank 1 died"):
        await two.group.call("ping", timeout_s=STEP_S)
    await two.group.shutdown()  # rank 0 may still wait for rank 1
    while psutil.pid_exists(pids[0]) and time.monotonic() - killed < 20:
        await asyncio.sleep(0.05)
    assert not psutil.pid_exists(pids[0]), "seconds instead of timeout.train_s"

    again = replace(two, group=await start_group("policy", PolicyWorker, two.config, 2))
    await again.load(saved)
    assert await again.update(2) == expected
    assert again.files(await again.save(tmp_path / "again")) == again.files(later)
