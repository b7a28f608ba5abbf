"""A whole learning step on real roles: every path through scoring, advantages and updates."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from azr.config import GAE, RLOO, TRRPP, AlgorithmConfig, Config, RewardConfig
from azr.records import Completion, Role, Trajectory
from azr.train.critic import CriticWorker
from azr.train.learner import Learner, shuffled, with_advantages
from azr.train.policy import PolicyWorker
from azr.train.reference import ReferenceWorker
from azr.train.worker_group import WorkerGroup
from tests.train.conftest import StartGroup, make_config

PAPER = AlgorithmConfig(estimator=TRRPP())
PPO = AlgorithmConfig(
    estimator=GAE(),
    gae_lambda=0.95,
    policy_mini_batches=2,
    critic_mini_batches=3,
    kl_coef=0.1,
    kl_in="reward",
    entropy_coef=0.01,
)


@pytest.fixture(scope="module")
def roles(start_group: StartGroup, tiny_model_path: Path) -> tuple[Config, list[WorkerGroup]]:
    """The actors read the algorithm from their own config: one that every case below agrees with."""
    config = replace(make_config(tiny_model_path), algorithm=PPO)

    async def start() -> list[WorkerGroup]:
        named = (("policy", PolicyWorker), ("critic", CriticWorker), ("reference", ReferenceWorker))
        return list(await asyncio.gather(*(start_group(name, worker, config, 1) for name, worker in named)))

    return config, asyncio.run(start())


@pytest.fixture
def trajectories(completions: list[Completion]) -> list[Trajectory]:
    return [
        Trajectory(
            completion=completion,
            role=Role.PROPOSER if number % 3 == 0 else Role.SOLVER,
            kind="deduction" if number % 2 else "abduction",
            task_id=str(number),
            group=str(number // 2),
            reward=float(number % 4 == 1) - 0.5,
        )
        for number, completion in enumerate(completions)
    ]


def phases(seen: Counter[str]):
    def phase(name: str):
        seen[name] += 1
        return nullcontext()

    return phase


async def test_ppo_with_critic_reference_and_several_updates(
    roles: tuple[Config, list[WorkerGroup]], trajectories: list[Trajectory]
) -> None:
    config, groups = roles
    seen: Counter[str] = Counter()
    learned = await Learner(config, *groups, phases(seen)).learn(trajectories, seed=1)
    assert set(seen) == {
        "critic values", "reference logprobs", "policy logprobs", "train critic", "train policy",
    }  # fmt: skip
    assert learned["policy"]["grad_norm"] > 0 and learned["critic"]["grad_norm"] > 0
    assert learned["policy"]["mismatch_mean"] > 0
    steps = [(await group.call("report", timeout_s=60))[0].optimizer_steps for group in groups[:2]]
    assert steps == [2, 3]


async def test_the_papers_algorithm_needs_the_policy_alone(
    roles: tuple[Config, list[WorkerGroup]], trajectories: list[Trajectory]
) -> None:
    config, (policy, *_) = roles
    seen: Counter[str] = Counter()
    learner = Learner(replace(config, algorithm=PAPER), policy, None, None, phases(seen))
    learned = await learner.learn(trajectories, seed=1)
    assert set(seen) == {"train policy"} and set(learned) == {"policy"}


async def test_trajectories_without_advantage_may_be_left_out(
    roles: tuple[Config, list[WorkerGroup]], trajectories: list[Trajectory]
) -> None:
    config, (policy, *_) = roles
    # Every second group has equal rewards: no advantage, no gradient.
    told = {}
    for skip in (False, True):
        algorithm = AlgorithmConfig(estimator=RLOO(), drop_zero_advantage=skip)
        learner = Learner(replace(config, algorithm=algorithm), policy, None, None, phases(Counter()))
        told[skip] = (await learner.learn(trajectories, seed=1))["policy"]
    assert told[True]["grad_norm"] > 0 and told[True]["entropy"] != told[False]["entropy"]


def test_without_advantages_a_part_stays_as_it_is_when_too_little_is_left() -> None:
    advantages = [torch.tensor(values) for values in ([0.0, 0.0], [0.0, 1.0], [0.0], [-1.0], [])]
    assert with_advantages([[0, 1, 2], [3, 4], [2, 0]], advantages, ranks=1) == [[1], [3], [2, 0]]
    assert with_advantages([[0, 1, 2], [1, 3]], advantages, ranks=2) == [[0, 1, 2], [1, 3]]


async def test_more_updates_than_trajectories_are_refused(
    roles: tuple[Config, list[WorkerGroup]], trajectories: list[Trajectory]
) -> None:
    config, (policy, *_) = roles
    many = replace(config, algorithm=replace(PAPER, policy_mini_batches=50))
    with pytest.raises(ValueError, match="cannot be split into 50 updates"):
        await Learner(many, policy, None, None, phases(Counter())).learn(trajectories, seed=1)


def test_shuffled_rewards_stay_in_their_stratum_and_leave_their_group() -> None:
    strata = [("deduction", "solver")] * 60 + [("deduction", "proposer")] * 20
    groups = [number // 6 for number in range(60)]
    rewards = [float(group) for group in groups] + [100.0 + number for number in range(20)]
    found = shuffled(rewards, strata, seed=5)
    assert sorted(found[:60]) == rewards[:60] and sorted(found[60:]) == rewards[60:]
    assert all(len(set(found[group * 6 : group * 6 + 6])) > 1 for group in range(10))
    assert found == shuffled(rewards, strata, seed=5) != shuffled(rewards, strata, seed=6)


async def test_training_sees_shuffled_rewards_only_where_asked(
    roles: tuple[Config, list[WorkerGroup]], trajectories: list[Trajectory]
) -> None:
    config, (policy, *_) = roles
    kept = [t.reward for t in trajectories]
    seen = {}
    for shuffle in (False, True):
        asked = replace(config, algorithm=PAPER, reward=RewardConfig(shuffle=shuffle))
        learner = Learner(asked, policy, None, None, phases(Counter()))
        seen[shuffle] = [learner._advantages(trajectories, {}, seed)["advantages"].tolist() for seed in (1, 2)]
    assert seen[False][0] == seen[False][1] and seen[True][0] != seen[True][1]
    assert [t.reward for t in trajectories] == kept
