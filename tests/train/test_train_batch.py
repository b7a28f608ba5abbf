"""A step's batch: every token is on one rank once, arrays follow it there, and outputs come back in order."""

import time

import numpy as np
import pytest
import ray
import torch

from azr.algorithms.advantages import estimate_advantages, loss_weights
from azr.algorithms.batch import Batch
from azr.algorithms.packing import split_mini_batches, without_samples
from azr.config import GRPO, TRRPP, AlgorithmConfig
from azr.records import Completion
from azr.train.train_batch import RankBatch, TrainBatch
from tests.runs.factory import completion, sample


def targets(batch: RankBatch) -> list[int]:
    return [t for mini in batch for micro in mini for t in micro.target_R.tolist()]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("mini_batches", [[list(range(11))], [[0, 2, 4, 6], [1, 3, 5], [10, 9, 8, 7]]])
def test_arrays_follow_their_tokens_and_outputs_come_back_in_order(ray_cluster, completions, ranks, mini_batches):
    batch = TrainBatch.build(completions, mini_batches, ranks, 64)
    everything = torch.tensor([t for c in completions for t in c.response_ids[c.is_sampled]])
    parts = [columns for _, _, columns in batch.for_ranks({"targets": everything})]
    held = ray.get(list(batch.rank_refs))
    for columns, rank_batch in zip(parts, held, strict=True):
        assert columns["targets"].tolist() == targets(rank_batch)
    assert torch.equal(batch.column([columns["targets"].double() for columns in parts]), everything.double())
    for number, members in enumerate(mini_batches):
        minis = [rank_batch[number] for rank_batch in held]
        assert len({len(mini) for mini in minis}) == 1, "as many micro-batches on every rank"
        assert batch.normalizers[number] == sum(completions[i].num_sampled for i in members)
        here = sorted(t for mini in minis for micro in mini for t in micro.target_R.tolist())
        assert here == sorted(t for i in members for t in completions[i].response_ids[completions[i].is_sampled])


def test_a_batch_of_some_completions_leaves_the_others_out(ray_cluster: None, completions: list[Completion]) -> None:
    batch = TrainBatch.build(completions, [[7, 3], [5, 1]], 2, 64)
    tokens = torch.arange(sum(c.num_sampled for c in completions))
    lengths = [c.num_sampled for c in completions]
    expected = torch.cat([piece for i, piece in enumerate(tokens.split(lengths)) if i in (1, 3, 5, 7)])
    column = batch.column([columns["index"].double() for _, _, columns in batch.for_ranks({"index": tokens})])
    assert column[expected].tolist() == expected.tolist()
    assert column.isnan().sum() == len(tokens) - len(expected), "tokens that are not in the batch"


def test_the_figures_of_a_batch(ray_cluster: None, completions: list[Completion]) -> None:
    """Three of a length on two ranks make a dummy batch; one prompt for all is computed once."""
    three = [completions[0]] * 3
    length = len(three[0].prompt_ids) + len(three[0].response_ids)
    apart = TrainBatch.build(three, [[0, 1, 2]], 2, length)
    assert apart.micro_batches == 2 and apart.packing == pytest.approx(3 * length / (3 * length + 1))
    together = TrainBatch.build(three, [[0, 1, 2]], 1, 1000)
    assert together.micro_batches == 1
    assert together.packing == pytest.approx(3 * length / (3 * length - 2 * len(three[0].prompt_ids)))


def learners_work(count: int) -> float:
    """CPU seconds of everything that a learner does by itself for so many trajectories of 600 and 60 tokens."""
    dice = np.random.default_rng(count)
    prompts = [dice.integers(0, 1000, 600, np.int32) for _ in range(count // 8)]
    responses = [dice.integers(0, 1000, 30 + i % 61, np.int32) for i in range(count)]
    completions = [completion(ids, prompts[i // 8], logprobs=-1.0) for i, ids in enumerate(responses)]
    given = [{"completion": c, "group": f"group {i // 8}", "reward": float(i % 3)} for i, c in enumerate(completions)]
    samples = [sample("solver" if i % 8 else "proposer", **each) for i, each in enumerate(given)]
    began = time.process_time()
    batch = Batch.from_samples(samples)
    mini_batches = split_mini_batches(batch.kind_roles, 2, 1)
    packed = TrainBatch.build(completions, mini_batches, 8, 16_384)
    for estimator in (TRRPP(), GRPO()):
        batch.advantages_R, batch.returns_R = estimate_advantages(batch, estimator)
    kept = without_samples(mini_batches, batch.has_gradient(AlgorithmConfig()), 8)
    batch.loss_weights_R = loss_weights(batch, AlgorithmConfig(loss_weighting="kind_role"), mini_batches, kept, 128)
    ranks = packed.for_ranks(batch.policy_columns(AlgorithmConfig()))
    assert torch.equal(packed.column([columns["advantages"] for _, _, columns in ranks]), batch.advantages_R)
    batch.write_results(samples, batch.rollout_logprobs_R)
    return time.process_time() - began


def test_64_times_the_papers_batch_is_planned_and_packed_in_seconds(ray_cluster: None) -> None:
    """The paper's batch is 64 proposals and 64 solutions of each of three kinds."""
    learners_work(800)  # whatever is done but once
    eighth, whole = learners_work(3072), learners_work(24_576)
    print(f"\n{whole:.2f} CPU seconds for 24,576 trajectories, {eighth:.2f} for an eighth of them")
    assert whole < 10
    assert whole < 20 * max(eighth, 0.1), "it grows faster than the batch"
