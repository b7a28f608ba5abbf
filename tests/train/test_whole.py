"""Models that every rank holds whole take the steps of DeepSpeed's ZeRO-3."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from azr.config import Config
from azr.train.policy import PolicyWorker
from azr.train.worker_group import WorkerGroup
from tests.train.conftest import STEP_S, make_config, on_ranks, one_step, update_policy


def sharded(config: Config, shard: str) -> Config:
    return replace(config, train=replace(config.train, shard=shard))


async def weights(group: WorkerGroup) -> dict[str, Tensor]:
    def whole(worker: PolicyWorker) -> dict[str, Tensor]:
        parts = {name: p.ds_tensor.detach().clone() for name, p in worker.engine.module.named_parameters()}
        return {name: part.flatten() for name, part in parts.items()}

    return (await on_ranks(group, whole))[0]


async def test_same_bits_as_zero3_on_one_rank(lend_group, tiny_model_path, completions, columns, tmp_path) -> None:
    config = make_config(tiny_model_path)
    seen, written = [], []
    group = await lend_group("policy", PolicyWorker, sharded(config, "zero3"), 1)
    batch = one_step(completions, group, config)
    broken = columns | {"advantages": columns["advantages"] * torch.nan}
    for shard in ("zero3", "none"):
        if shard == "none":
            group = await lend_group("policy", PolicyWorker, sharded(config, shard), 1)
        metrics = [await update_policy(group, batch, each, STEP_S) for each in (columns, broken, columns, columns)]
        assert [each["skipped_steps"] for each in metrics] == [0, 1, 0, 0]
        (tmp_path / shard).mkdir()
        (file,) = await group.call("save_checkpoint", str(tmp_path / shard), timeout_s=STEP_S)
        seen.append(([metrics[i] for i in (0, 2, 3)], await weights(group)))
        written.append(file.digest)
    assert seen[0][0] == seen[1][0]
    assert all(torch.equal(one, other) for one, other in zip(*(w.values() for _, w in seen), strict=True))
    # It goes on from what ZeRO-3 has written, and from host memory.
    expected = await update_policy(group, batch, columns, STEP_S)
    await group.call("load_checkpoint", str(tmp_path / "zero3"), timeout_s=STEP_S)
    await group.call("offload", True, timeout_s=STEP_S)
    away = await on_ranks(group, lambda worker: sum(copy.nbytes for copy in worker._away.host_memory()))
    assert away[0] >= 12 * sum(w.numel() for w in seen[1][1].values())
    await group.call("reload", timeout_s=STEP_S)
    assert await update_policy(group, batch, columns, STEP_S) == expected


async def test_two_ranks_that_hold_everything_agree_with_one(
    lend_group, tiny_model_path, completions, columns, tmp_path
) -> None:
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
