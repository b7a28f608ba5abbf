"""Optimizer steps that must not be taken, on one and two ranks of the real trainer."""

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from azr.algorithms.losses import Sums
from azr.algorithms.packing import PackedBatch
from azr.config import GAE, AlgorithmConfig
from azr.errors import RunEnded
from azr.records import Completion, Sample
from azr.runs.metrics import check_finite
from azr.train import zero3
from azr.train.learner import MAX_SKIPPED_STEPS, Learner
from azr.train.model_worker import LossFn, StepReport
from azr.train.policy import CriticWorker, PolicyWorker
from tests.runs.factory import sample
from tests.train.conftest import STEP_S, make_config, on_ranks, one_step, update_policy

pytestmark = pytest.mark.long

NAN, INF = math.nan, math.inf


class Worker(PolicyWorker):
    """On its last rank, either the loss or the gradient may be infinite while the other is not."""

    last_loss, last_factor = 0.0, 1.0
    offloads = False

    def build(self) -> None:
        def engine_config(*args: Any) -> dict[str, Any]:
            config = config_of(*args)
            if self.offloads:
                config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
            return config

        config_of = zero3.engine_config
        with patch.object(zero3, "engine_config", engine_config):
            super().build()

    def _take_step(self, mini: Any, normalizer: float, columns: Any, loss_fn: LossFn) -> StepReport:
        def with_more(micro: PackedBatch, arrays: dict[str, Tensor], normalizer: float) -> tuple[Tensor, Sums]:
            loss, sums = loss_fn(micro, arrays, normalizer)
            is_last = self.rank == self.world_size - 1
            more = self.last_loss if is_last else 0.0
            if is_last and self.last_factor != 1.0:
                loss.register_hook(lambda gradient: gradient * self.last_factor)
            return loss + more, sums | {"loss": sums["loss"] + more}

        return super()._take_step(mini, normalizer, columns, with_more)


class OffloadedWorker(Worker):
    """As with `train.shard=offload` on a GPU."""

    offloads = True


def held(worker: PolicyWorker) -> list[Tensor]:
    """All that a rank knows that a step changes: weights in both types, moments, learning rate."""
    optimizer = worker.engine.optimizer
    adam = optimizer.optimizer.state
    tensors = [*optimizer.fp32_partitioned_groups_flat, *optimizer.fp16_partitioned_groups_flat]
    tensors += [state[key] for state in adam.values() for key in ("step", "exp_avg", "exp_avg_sq") if key in state]
    return [tensor.detach().clone().cpu() for tensor in (*tensors, torch.tensor(worker.engine.get_lr()))]


def equal(ones: list[list[Tensor]], others: list[list[Tensor]]) -> bool:
    return all(
        len(one) == len(other) and all(map(torch.equal, one, other)) for one, other in zip(ones, others, strict=True)
    )


def misbehave(loss: float = 0.0, factor: float = 1.0) -> Any:
    def set_on(worker: Worker) -> None:
        worker.last_loss, worker.last_factor = loss, factor

    return set_on


@pytest.mark.parametrize(
    ("worker", "ranks", "dtype"), [(Worker, 1, "float32"), (Worker, 2, "bfloat16"), (OffloadedWorker, 2, "bfloat16")]
)
async def test_a_step_that_is_not_finite_leaves_every_bit_where_it_is_and_the_next_is_taken(
    worker, ranks, dtype, lend_group, completions, columns, tiny_model_path
) -> None:
    config = make_config(tiny_model_path, dtype=dtype)
    group = await lend_group("policy", worker, config, ranks)
    batch = one_step(completions, group, config)

    async def update(advantage: float | None = None, **last: float) -> dict[str, float]:
        advantages = columns["advantages"].clone()
        if advantage is not None:
            advantages[0] = advantage  # of one token of one rank
        await on_ranks(group, misbehave(**last))
        return await update_policy(group, batch, columns | {"advantages": advantages}, STEP_S)

    offloads = await on_ranks(group, lambda each: bool(getattr(each.engine.optimizer, "offload_optimizer", False)))
    assert offloads == [worker.offloads] * ranks
    assert (await update())["skipped_steps"] == 0
    before = await on_ranks(group, held)
    for number, bad in enumerate([{"advantage": NAN}, {"factor": INF}, {"loss": INF}], 1):
        told = await update(**bad)
        assert (told["skipped_steps"], told["skipped_in_a_row"]) == (1, number), bad
        assert "loss" not in told and "grad_norm" not in told
        check_finite(1, told)
        assert equal(before, await on_ranks(group, held)), bad
    await group.call("offload", True, timeout_s=STEP_S)
    await group.call("reload", timeout_s=STEP_S)
    after_bad = await update()
    assert after_bad["skipped_in_a_row"] == 0 and not equal(before, await on_ranks(group, held))
    assert all(tensor.isfinite().all() for rank in await on_ranks(group, held) for tensor in rank)

    hurt = await on_ranks(group, held)
    await group.call("build", timeout_s=STEP_S)
    assert [await update(), await update()][1] == after_bad
    assert equal(hurt, await on_ranks(group, held)), "as if the bad steps, and the time elsewhere, had never been"


def answers(completions: list[Completion], reward: float) -> list[Sample]:
    return [sample("solver", reward=reward * (i % 2), group="g", completion=c) for i, c in enumerate(completions)]


async def test_too_many_in_a_row_of_any_model_end_the_run(lend_group, completions, tiny_model_path) -> None:
    config = replace(make_config(tiny_model_path), algorithm=AlgorithmConfig(estimator=GAE(critic_mini_batches=2)))
    policy = await lend_group("policy", PolicyWorker, config, 1)
    critic = await lend_group("critic", CriticWorker, config, 1)
    learner = Learner(config, policy, critic, None, lambda name: nullcontext())
    for _ in range(2):
        told = await learner.learn(answers(completions, NAN), step=1)
    assert told["policy"]["skipped_in_a_row"] == 2 and told["critic"]["skipped_steps"] == 2
    learner.raise_if_diverged()
    assert (await learner.learn(answers(completions, 1.0), step=1))["critic"]["skipped_in_a_row"] == 0
    for _ in range(MAX_SKIPPED_STEPS // 2 + 1):
        learner.raise_if_diverged()
        await learner.learn(answers(completions, NAN), step=1)
    with pytest.raises(RunEnded, match=r"The last 6 optimizer steps of the critic .* train.critic_lr"):
        learner.raise_if_diverged()
