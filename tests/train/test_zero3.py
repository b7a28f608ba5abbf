"""What needs no process of its own around DeepSpeed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from azr.config import TrainConfig
from azr.train.zero3 import lr_lambda
from playground.orz_7b_ppo import config as orz_7b_ppo


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1, 1]),
        ({"warmup_steps": 2}, [0.5, 1, 1, 1, 1, 1, 1]),
        ({"decay_steps": 4}, [1, 0.75, 0.5, 0.25, 0, 0, 0]),
        ({"warmup_steps": 2, "decay_steps": 4}, [0.5, 1, 1, 0.75, 0.5, 0.25, 0]),
    ],
)
def test_the_rate_warms_up_and_falls(schedule: dict[str, int], expected: list[float]) -> None:
    train = TrainConfig(**schedule)
    assert [lr_lambda(step, train, mini_batches=1) for step in range(7)] == expected


def test_decay_counts_training_steps_however_many_optimizer_steps_a_model_takes_in_each() -> None:
    train = replace(orz_7b_ppo.train, decay_steps=950)
    critic_steps = orz_7b_ppo.algorithm.critic_mini_batches
    assert orz_7b_ppo.algorithm.policy_mini_batches == 1 and critic_steps > 1 and train.warmup_steps == 50
    for step in (4, 62, 63, 500, 949):
        # Optimizer steps of a model before this training step, of which the warm-up takes 50 of either model.
        critic, policy = (lr_lambda(train.warmup_steps + step * each, train, each) for each in (critic_steps, 1))
        assert critic == policy == 1 - step / 950
    for each in (critic_steps, 1):
        assert lr_lambda(train.warmup_steps + 950 * each, train, each) == 0
        assert lr_lambda(24, train, each) == 0.5, "warm-up is of optimizer steps"
