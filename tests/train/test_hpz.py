"""A copy of the weights per node: it changes where they are gathered from, and no number."""

from pathlib import Path
from statistics import fmean

import pytest
import torch

from azr.hardware import hpz_partition_size
from azr.train.learner import score
from azr.train.policy import PolicyWorker
from azr.train.worker_group import WorkerGroup
from azr.train.zero3 import engine_config
from tests.train.conftest import STEP_S, make_config, on_ranks, one_step, update_policy

pytestmark = pytest.mark.long


class OfTwoRanksANode(PolicyWorker):
    def build(self) -> None:
        self.hpz = 2
        super().build()


def test_a_copy_needs_several_nodes_of_equally_many_ranks_side_by_side() -> None:
    assert hpz_partition_size(["a"] * 8) == 1
    assert hpz_partition_size([*"aaaabbbb"]) == 4
    assert hpz_partition_size([*"abcd"]) == 1
    assert hpz_partition_size([*"aaab"]) == 1
    assert hpz_partition_size([*"abab"]) == 1
    config = engine_config(make_config(Path("model")).train, torch.device("cpu"), 4)
    assert config["zero_optimization"]["zero_hpz_partition_size"] == 4


@pytest.mark.parametrize("ranks", [2, 4])
async def test_updates_are_the_same_bit_for_bit(ranks, lend_group, tiny_model_path, completions, columns, tmp_path):
    config = make_config(tiny_model_path, dtype="bfloat16")

    async def train(group: WorkerGroup, folder: Path) -> tuple[list[dict[str, float]], list[bytes], torch.Tensor]:
        folder.mkdir()
        batch = one_step(completions, group, config)
        metrics = [await update_policy(group, batch, columns, STEP_S)]
        await group.call("save_checkpoint", str(folder), timeout_s=STEP_S)
        await group.call("load_checkpoint", str(folder), timeout_s=STEP_S)
        await group.call("offload", True, timeout_s=STEP_S)
        await group.call("reload", timeout_s=STEP_S)
        logprobs = await score(group, "logprobs", batch, STEP_S)
        metrics.append(await update_policy(group, batch, columns, STEP_S))
        await group.call("save_hf", str(folder), timeout_s=STEP_S)
        return metrics, [(folder / "model.safetensors").read_bytes()], logprobs

    plain = await lend_group("policy", PolicyWorker, config, ranks)
    copied = await lend_group("policy", OfTwoRanksANode, config, ranks)
    expected, found = await train(plain, tmp_path / "plain"), await train(copied, tmp_path / "copied")
    assert found[:2] == expected[:2]
    assert torch.equal(found[2], expected[2])
    await score(copied, "logprobs", one_step(completions, copied, config), STEP_S)
    for group, share in ((copied, 1.0), (plain, 0.0)):
        assert await on_ranks(group, share_with_copy) == [share] * ranks


def share_with_copy(worker: PolicyWorker) -> float:
    worker.engine.optimizer.empty_partition_cache()  # what was gathered of so small a model stays, and then needs none
    return fmean(parameter.ds_secondary_tensor is not None for parameter in worker.engine.module.parameters())
