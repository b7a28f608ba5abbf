"""Role groups of real Ray actors around the tiny model, shared by the tests of a module."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import torch

from azr.config import AlgorithmConfig, Config, ModelConfig, RolloutConfig, TimeoutConfig, TrainConfig
from azr.records import Completion, FinishReason
from azr.train.worker import RoleWorker
from azr.train.worker_group import WorkerGroup

LR = 1e-3
STEP_S = 120.0
StartGroup = Callable[[str, type[RoleWorker], Config, int], Awaitable[WorkerGroup]]


def make_config(path: Path, **train: object) -> Config:
    """Float32, so that two ways to the same number can be compared tightly; two warm-up steps; real clipping."""
    defaults = {
        "device": "cpu",
        "dtype": "float32",
        "policy_lr": LR,
        "critic_lr": LR,
        "weight_decay": 0.1,
        "warmup_steps": 2,
        "grad_clip": 0.05,
        "tokens_per_micro_batch": 64,
    }
    return Config(
        model=ModelConfig(path=str(path)),
        train=TrainConfig(**(defaults | train)),
        rollout=RolloutConfig(temperature=0.8),
        algorithm=AlgorithmConfig(entropy_coef=0.01, kl_coef=0.1),
        timeout=TimeoutConfig(start_s=STEP_S, train_s=STEP_S),
    )


@pytest.fixture(scope="session")
def completions() -> list[Completion]:
    """Eleven samples of 4 to 40 tokens with random ids."""
    dice = random.Random(3)
    lengths = [(dice.randint(2, 20), dice.randint(2, 20)) for _ in range(11)]
    return [
        Completion(
            prompt_ids=tuple(dice.randrange(256) for _ in range(prompt)),
            response_ids=tuple(dice.randrange(256) for _ in range(response)),
            logprobs=tuple(-5 * dice.random() for _ in range(response)),
            finish_reason=FinishReason.STOP,
            weight_version=0,
        )
        for prompt, response in lengths
    ]


@pytest.fixture(scope="session")
def columns(completions: list[Completion]) -> dict[str, torch.Tensor]:
    """What a policy update needs beside the completions."""
    tokens = sum(len(c.response_ids) for c in completions)
    generator = torch.Generator().manual_seed(5)
    behaviour = torch.tensor([x for c in completions for x in c.logprobs])
    return {
        "advantages": torch.randn(tokens, generator=generator),
        "old_logprobs": behaviour + 0.3 * torch.randn(tokens, generator=generator),
        "reference_logprobs": behaviour + 0.3 * torch.randn(tokens, generator=generator),
    }


@pytest.fixture(scope="module")
def start_group(ray_cluster: None) -> Iterator[StartGroup]:
    """Starts groups, and ends them with the module."""
    groups: list[WorkerGroup] = []

    async def start(role: str, worker: type[RoleWorker], config: Config, ranks: int) -> WorkerGroup:
        groups.append(await WorkerGroup.start(role, worker, [{"num_cpus": 0.2}] * ranks, config, "cpu"))
        return groups[-1]

    yield start
    for group in groups:
        asyncio.run(group.shutdown())
