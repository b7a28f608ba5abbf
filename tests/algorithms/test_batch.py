"""The table of a training step, by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from azr.algorithms.batch import Batch
from azr.algorithms.packing import without_samples
from azr.config import AlgorithmConfig, OffPolicyConfig
from azr.records import Sample
from tests.runs import factory
from tests.runs.factory import completion

SFT = AlgorithmConfig(off_policy=OffPolicyConfig(loss="sft"))


def sample(logprobs: Sequence[float], reward: float = 0.0, group: str = "g", trace_tokens: int = 0) -> Sample:
    made = completion(range(len(logprobs)), logprobs=logprobs)
    return factory.sample("solver", reward=reward, group=group, trace_tokens=trace_tokens, completion=made)


def with_advantages(batch: Batch, *advantages: float) -> Batch:
    batch.advantages_R = torch.tensor(advantages)
    return batch


def outcomes(samples: Sequence[Sample]) -> list[tuple[float | None, float | None]]:
    return [(each.advantage, each.mismatch) for each in samples]


def test_results_are_written_into_the_samples_and_tokens_of_traces_have_no_mismatch() -> None:
    samples = [sample([-1.0, -1.0]), sample([]), sample([-2.0]), sample([-3.0])]
    batch = with_advantages(Batch.from_samples(samples), 1.0, 3.0, -2.0, math.nan)
    # The third was not packed; of the last one, the trainer's step was skipped.
    batch.write_results(samples, torch.tensor([-1.5, -1.25, math.nan, math.nan]))
    assert outcomes(samples) == [(2.0, 0.375), (0.0, None), (-2.0, None), (None, None)]
    assert [each.tokens for each in samples] == [[("", -1.0, -1.5), ("", -1.0, -1.25)], [], [], []]
    samples = [sample([0.0, 0.0], trace_tokens=2), sample([-1.0])]
    batch = with_advantages(Batch.from_samples(samples), 1.0, 1.0, 1.0)
    batch.write_results(samples, torch.tensor([-9.0, -9.0, -1.5]))
    assert outcomes(samples) == [(1.0, None), (1.0, 0.5)]


def test_a_column_per_fact_of_the_samples() -> None:
    batch = Batch.from_samples([sample([-1.0, -2.0], 1.0), sample([-0.5], -1.0, "h")])
    assert batch.rewards == [1.0, -1.0] and batch.response_lengths == [2, 1] and batch.groups == ["g", "h"]
    assert batch.kind_roles == [("deduction", "solver")] * 2
    assert batch.seq_index_R.tolist() == [0, 0, 1]
    columns = {name: column.tolist() for name, column in batch.policy_columns(AlgorithmConfig()).items()}
    assert columns == {"rollout_logprobs": [-1.0, -2.0, -0.5]}
    assert not batch.critic_columns() and not batch.only_traces


def test_the_part_that_was_sampled_has_no_trace() -> None:
    samples = [sample([0.0, 0.0], 9.0, trace_tokens=2), sample([-1.0], 1.0), sample([], 2.0)]
    batch = Batch.from_samples(samples)
    batch.values_R = torch.tensor([1.0, 2.0, 3.0])
    assert batch.is_trace_R is not None and batch.is_trace_R.tolist() == [True, True, False]
    part = batch.sampled_part()
    assert part.rewards == [1.0, 2.0] and part.response_lengths == [1, 0] and part.values_R.tolist() == [3.0]
    assert part.is_trace_R is None and Batch.from_samples(samples[:1]).only_traces


def test_a_gradient_comes_from_an_advantage_or_from_imitation() -> None:
    samples = [sample([-1.0, -1.0]), sample([-1.0, -1.0]), sample([]), sample([0.0], trace_tokens=1), sample([-1.0])]
    batch = with_advantages(Batch.from_samples(samples), 0.0, 0.0, 0.0, 1.0, 0.0, math.nan)
    assert batch.has_gradient(AlgorithmConfig()) == [False, True, False, False, True]
    assert batch.has_gradient(SFT) == [False, True, False, True, True]


def test_a_mini_batch_stays_as_it_is_when_too_little_would_be_left() -> None:
    batch = Batch(rewards=[0.0] * 5, response_lengths=[2, 2, 1, 1, 0], kind_roles=["a"] * 5, groups=["g"] * 5)
    keeps = with_advantages(batch, 0.0, 0.0, 0.0, 1.0, 0.0, -1.0).has_gradient(AlgorithmConfig())
    assert without_samples([[0, 1, 2], [3, 4], [2, 0]], keeps, ranks=1) == [[1], [3], [2, 0]]
    assert without_samples([[0, 1, 2], [1, 3]], keeps, ranks=2) == [[0, 1, 2], [1, 3]]


def test_shuffled_rewards_stay_in_their_kind_and_role_and_leave_their_group() -> None:
    kind_roles = [("deduction", "solver")] * 60 + [("deduction", "proposer")] * 20
    groups = [index // 6 for index in range(60)]
    rewards = [float(group) for group in groups] + [100.0 + index for index in range(20)]
    batch = Batch(rewards=rewards, response_lengths=[1] * 80, kind_roles=kind_roles, groups=["g"] * 80)
    shuffled = batch.with_shuffled_rewards(seed=5).rewards
    assert sorted(shuffled[:60]) == rewards[:60] and sorted(shuffled[60:]) == rewards[60:]
    assert all(len(set(shuffled[group * 6 : group * 6 + 6])) > 1 for group in range(10))
    assert shuffled == batch.with_shuffled_rewards(seed=5).rewards != batch.with_shuffled_rewards(seed=6).rewards
    assert batch.rewards == rewards
    capped = replace(batch, capped=[reward % 2 == 1 for reward in rewards]).with_shuffled_rewards(seed=5)
    assert capped.rewards == shuffled and list(capped.capped) == [reward % 2 == 1 for reward in shuffled]
