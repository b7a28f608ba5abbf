"""Worker groups of real Ray actors around the tiny model. Starting a process takes long, so groups pass them on."""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from azr.cluster.supervisor import SupervisedActor
from azr.config import (
    AlgorithmConfig,
    ClusterConfig,
    Config,
    KLConfig,
    ModelConfig,
    RolloutConfig,
    TimeoutConfig,
    TrainConfig,
)
from azr.records import Completion
from azr.train import learner
from azr.train.model_worker import ModelWorker
from azr.train.train_batch import TrainBatch
from azr.train.worker_group import RankDied, WorkerGroup
from tests.cluster.receiving_engine import start_receiver
from tests.runs.factory import completion

LR = 1e-3
STEP_S = 120.0
IDLE_RANKS = 4
"""So many processes are kept for later tests; each takes half a GiB, and another process of pytest has its own."""

StartGroup = Callable[[str, type[ModelWorker], Config, int], Awaitable[WorkerGroup]]


def make_config(path: Path, **train: object) -> Config:
    """Float32, so that two ways to the same number can be compared tightly; two warm-up steps; real clipping."""
    defaults = {
        "device": "cpu", "dtype": "float32", "policy_lr": LR, "critic_lr": LR, "weight_decay": 0.1, "warmup_steps": 2,
        "grad_clip": 0.05, "tokens_per_micro_batch": 64,
    }  # fmt: skip
    return Config(
        model=ModelConfig(path=str(path)),
        train=TrainConfig(**(defaults | train)),
        rollout=RolloutConfig(temperature=0.8),
        cluster=ClusterConfig(push="host"),
        algorithm=AlgorithmConfig(entropy_coef=0.01, kl=KLConfig(coef=0.1)),
        timeout=TimeoutConfig(start_s=STEP_S, train_s=STEP_S),
    )


async def on_ranks(group: WorkerGroup, function: Callable[[Any], Any]) -> list[Any]:
    """What the function returns of the worker of each rank, in its process."""
    return list(await asyncio.gather(*(actor.__ray_call__.remote(function) for actor in group.actors)))


async def rebuild(config: Config, *groups: WorkerGroup) -> None:
    """Give groups a config and new models by it."""

    def adopt(worker: ModelWorker) -> None:
        worker.config, worker.dtype = config, getattr(torch, config.train.dtype)

    await asyncio.gather(*(on_ranks(group, adopt) for group in groups))
    await asyncio.gather(*(group.call("build", timeout_s=STEP_S) for group in groups))


def one_and_two(
    start_group: StartGroup, worker: type[ModelWorker], two: Config, **of_one: object
) -> dict[int, WorkerGroup]:
    """Start policies of one and of two ranks; `of_one`: how the training of the first differs."""

    async def start() -> list[WorkerGroup]:
        ways = {1: replace(two, train=replace(two.train, **of_one)), 2: two}
        return await asyncio.gather(*(start_group("policy", worker, ways[ranks], ranks) for ranks in (1, 2)))

    return dict(zip((1, 2), asyncio.run(start()), strict=True))


async def process_ids(group: WorkerGroup) -> list[int]:
    return await on_ranks(group, lambda worker: os.getpid())


def with_micro_batches(config: Config, tokens: int) -> Config:
    return replace(config, train=replace(config.train, tokens_per_micro_batch=tokens))


def one_step(completions: Sequence[Completion], group: WorkerGroup, config: Config) -> TrainBatch:
    """All completions in one mini-batch."""
    return TrainBatch.build(completions, [range(len(completions))], group.size, config.train.tokens_per_micro_batch)


async def update_policy(
    group: WorkerGroup, batch: TrainBatch, columns: Mapping[str, torch.Tensor], timeout_s: float
) -> dict[str, float]:
    """Metrics of the learner's `update_policy`."""
    return (await learner.update_policy(group, batch, columns, timeout_s))[0]


def rollout_logprobs(completions: Sequence[Completion]) -> torch.Tensor:
    return torch.tensor([x for c in completions for x in c.logprobs[c.is_sampled]])


@pytest.fixture(scope="module")
def engine(ray_cluster: None) -> SupervisedActor:
    return asyncio.run(start_receiver())


@pytest.fixture(scope="session")
def completions() -> list[Completion]:
    """Eleven samples of 4 to 40 tokens with random ids; in some, an environment wrote tokens between others."""
    dice = random.Random(3)
    lengths = [(dice.randint(2, 20), dice.randint(2, 20)) for _ in range(11)]
    spans = [((2, 5), (length - 4, length - 1)) if length > 12 else () for _, length in lengths]
    assert sum(map(bool, spans)) > 2
    return [replace(random_completion(dice, *each), observed=of) for each, of in zip(lengths, spans, strict=True)]


def random_completion(dice: random.Random, prompt: int, response: int) -> Completion:
    """A completion of so many tokens."""
    prompt_ids, response_ids = ([dice.randrange(256) for _ in range(count)] for count in (prompt, response))
    return completion(response_ids, prompt_ids, logprobs=[-5 * dice.random() for _ in response_ids])


@pytest.fixture(scope="session")
def columns(completions: list[Completion]) -> dict[str, torch.Tensor]:
    """What a policy update needs beside the tokens."""
    tokens = sum(c.num_sampled for c in completions)
    generator = torch.Generator().manual_seed(5)
    rollout = rollout_logprobs(completions)
    return {
        "rollout_logprobs": rollout,
        "advantages": torch.randn(tokens, generator=generator),
        "old_logprobs": rollout + 0.3 * torch.randn(tokens, generator=generator),
        "reference_logprobs": rollout + 0.3 * torch.randn(tokens, generator=generator),
    }


IdleGroups = list[tuple[type[ModelWorker], WorkerGroup]]
"""With the class of their workers; the longest idle comes first."""


class Lease:
    """Starts groups; an idle one gets the config and a new model instead of new processes.

    By `train.shard` auto, one rank has its model whole, and two share theirs by ZeRO-3.
    """

    def __init__(self, idle: IdleGroups) -> None:
        self._idle = idle
        self._used: list[tuple[type[ModelWorker], WorkerGroup]] = []

    async def start(self, role: str, worker: type[ModelWorker], config: Config, ranks: int) -> WorkerGroup:
        config = replace(config, train=replace(config.train, data_parallel=ranks))
        group = next((g for kind, g in self._idle if kind is worker and g.size == ranks), None)
        if group is not None:
            self._idle.remove((worker, group))
            await rebuild(config, group)
        else:
            group = await WorkerGroup.start(role, worker, [{"num_cpus": 0.2}] * ranks, config, "cpu")
        self._used.append((worker, group))
        return group

    async def end(self) -> None:
        """What was started is idle from now on; groups that a test has ended are forgotten, the longest idle end."""
        for worker, group in self._used:
            try:
                await group.call("ping", timeout_s=STEP_S)
            except RankDied:
                continue
            self._idle.append((worker, group))
        while sum(group.size for _, group in self._idle) > IDLE_RANKS:
            await self._idle.pop(0)[1].shutdown()


@pytest.fixture(scope="package")
def idle_groups(ray_cluster: None) -> Iterator[IdleGroups]:
    idle: IdleGroups = []
    yield idle
    for _, group in idle:
        asyncio.run(group.shutdown())


def _leased(idle_groups: IdleGroups) -> Iterator[StartGroup]:
    """Starts groups: of `start_group` those that the tests of a module share, of `lend_group` those of one test."""
    lease = Lease(idle_groups)
    yield lease.start
    asyncio.run(lease.end())


start_group = pytest.fixture(scope="module", name="start_group")(_leased)
lend_group = pytest.fixture(name="lend_group")(_leased)
