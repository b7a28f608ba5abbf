"""Models that every rank holds whole take the steps of DeepSpeed's ZeRO-3."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from azr.config import Config, TrainConfig
from azr.train.learner import update_critic
from azr.train.policy import CriticWorker, PolicyWorker
from azr.train.worker_group import WorkerGroup
from azr.train.zero3 import make_whole_engine
from tests.conftest import byte_tokenizer
from tests.tiny_models import save_tiny
from tests.train.conftest import LR, STEP_S, make_config, on_ranks, one_step, update_policy
from tests.train.test_checkpoint import whole

pytestmark = pytest.mark.long


def sharded(config: Config, shard: str) -> Config:
    return replace(config, train=replace(config.train, shard=shard))


async def weights(group: WorkerGroup) -> dict[str, Tensor]:
    def parts(worker: PolicyWorker) -> dict[str, Tensor]:
        parts = {name: p.ds_tensor.detach().clone() for name, p in worker.engine.module.named_parameters()}
        return {name: part.flatten() for name, part in parts.items()}

    return (await on_ranks(group, parts))[0]


@pytest.mark.parametrize("role", ["policy", "critic"])
async def test_same_bits_as_zero3_on_one_rank_and_back(
    role, lend_group, tiny_model_path, completions, columns, tmp_path
) -> None:
    config, worker, update, goal = make_config(tiny_model_path), PolicyWorker, update_policy, "advantages"
    if role == "critic":
        worker, update, goal = CriticWorker, update_critic, "returns"
        columns = {"old_values": columns["rollout_logprobs"], "returns": columns["advantages"]}
    broken = columns | {goal: columns[goal] * torch.nan}
    groups, seen, states = {}, [], []
    for shard in ("zero3", "none"):
        group = groups[shard] = await lend_group(role, worker, sharded(config, shard), 1)
        batch = one_step(completions, group, config)
        metrics = [await update(group, batch, each, STEP_S) for each in (columns, broken, columns, columns)]
        assert [each["skipped_steps"] for each in metrics] == [0, 1, 0, 0] and metrics[0]["micro_batches"] > 2
        (tmp_path / shard).mkdir()
        await group.call("save_checkpoint", str(tmp_path / shard), timeout_s=STEP_S)
        seen.append([metrics[i] for i in (0, 2, 3)])
        states.append(whole(tmp_path / shard / role))
    assert seen[0] == seen[1]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items()), "masters and moments"

    expected = await update(groups["none"], batch, columns, STEP_S)
    for shard, other in (("zero3", "none"), ("none", "zero3")):
        await groups[shard].call("load_checkpoint", str(tmp_path / other), timeout_s=STEP_S)
        await groups[shard].call("offload", True, timeout_s=STEP_S)
        away = await on_ranks(
            groups[shard],
            lambda worker: sum(nbytes for nbytes, copy in worker._away._away.values() if copy is not None),
        )
        assert away[0] >= 4 * sum(value.numel() for value in states[0].values())
        await groups[shard].call("reload", timeout_s=STEP_S)
        assert await update(groups[shard], batch, columns, STEP_S) == expected


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
async def test_rotary_frequencies_are_never_rounded_to_the_compute_type(family, lend_group, tmp_path) -> None:
    """ZeRO-3 made them in bfloat16: the longer a text, the more its model differed from the one that engines sample."""
    path = save_tiny(tmp_path / family, family, byte_tokenizer())
    expected = dict(AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).named_buffers())
    names = [name for name in expected if name.endswith("inv_freq")]
    assert names and all(expected[name].dtype == torch.float32 for name in names)
    for shard in ("zero3", "none"):
        config = sharded(make_config(path), shard)
        config = replace(config, train=replace(config.train, dtype="bfloat16"))
        group = await lend_group("policy", PolicyWorker, config, 1)
        [held] = await on_ranks(group, lambda worker: dict(worker.engine.module.hf.named_buffers()))
        assert all(torch.equal(held[name], expected[name]) for name in names)


def test_all_parameters_have_the_compute_type() -> None:
    """Some families keep a few in float32, which ZeRO-3 does not."""
    model = nn.Sequential(nn.Linear(2, 3, dtype=torch.bfloat16), nn.Linear(3, 2))
    first = [parameter.detach().bfloat16() for parameter in model.parameters()]
    engine = make_whole_engine(model, TrainConfig(dtype="bfloat16"), torch.device("cpu"), LR)
    for parameter, value in zip(engine.module.parameters(), first, strict=True):
        assert parameter.dtype == torch.bfloat16 and torch.equal(parameter, value)


async def test_two_ranks_that_hold_all_agree_with_one(lend_group, tiny_model_path, completions, columns, tmp_path):
    config = sharded(make_config(tiny_model_path), "none")
    seen = []
    for ranks in (1, 2):
        group = await lend_group("policy", PolicyWorker, config, ranks)
        batch = one_step(completions, group, config)
        seen.append([await update_policy(group, batch, columns, STEP_S) for _ in range(3)])
    for one, two in zip(*seen, strict=True):
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
    await group.call("save_checkpoint", str(tmp_path), timeout_s=STEP_S)
    expected = await update_policy(group, batch, columns, STEP_S)
    await group.call("load_checkpoint", str(tmp_path), timeout_s=STEP_S)
    assert await update_policy(group, batch, columns, STEP_S) == expected
    await group.call("save_hf", str(tmp_path / "hf"), timeout_s=STEP_S)
    saved, held = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32), await weights(group)
    assert all(torch.equal(p.flatten(), held[f"hf.{name}"]) for name, p in saved.named_parameters())
