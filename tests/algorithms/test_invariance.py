"""One batch has one loss and one gradient, however it is cut into micro-batches and spread over ranks."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from azr.algorithms.losses import Sums, add_sums, policy_loss, value_loss
from azr.algorithms.packing import pack, plan_micro_batches
from azr.config import GAE, PPO, AlgorithmConfig, KLConfig

from .tiny import completions, score, tiny_critic, tiny_policy

COUNT = 13
CONFIG = AlgorithmConfig(
    estimator=GAE(), objective=PPO(clip_low=0.1, clip_high=0.15), kl=KLConfig(coef=0.1), entropy_coef=0.01
)
SAMPLES = [
    replace(c, observed=((1, 4),)) if len(c.response_ids) > 5 else c for c in completions(COUNT, seed=3)
]  # fmt: skip
LENGTHS = [c.num_tokens for c in SAMPLES]
TOKENS = sum(c.num_sampled for c in SAMPLES)
TRACED = [c.num_sampled * (i % 4) // 3 if i % 4 else 0 for i, c in enumerate(SAMPLES)]
"""First tokens of each response that a trace gave: none, a third, two thirds or all."""
Result = tuple[torch.Tensor, torch.Tensor, Sums]


def columns() -> dict[str, tuple[torch.Tensor, ...]]:
    """What the losses need of each token, by name and sample."""
    generator = torch.Generator().manual_seed(0)
    names = ("advantages_R", "returns_R", "old_values_R", "old_logprobs_R", "reference_logprobs_R")
    noise = {name: torch.randn(TOKENS, generator=generator, dtype=torch.float64) for name in names}
    for name in ("old_logprobs_R", "reference_logprobs_R"):
        noise[name] = -4.0 + 0.5 * noise[name]
    noise["loss_weights_R"] = 0.5 + torch.rand(TOKENS, generator=generator, dtype=torch.float64)
    noise["is_trace_R"] = torch.cat([torch.arange(c.num_sampled) < n for c, n in zip(SAMPLES, TRACED, strict=True)])
    noise["rollout_logprobs_R"] = torch.tensor(
        [x for c in SAMPLES for x in c.logprobs[c.is_sampled]], dtype=torch.float64
    )
    return {name: column.split([c.num_sampled for c in SAMPLES]) for name, column in noise.items()}


def micro_losses(indices: list[int], policy: torch.nn.Module, critic: torch.nn.Module) -> tuple[torch.Tensor, Sums]:
    batch = pack([SAMPLES[i] for i in indices])
    arrays = {
        name: torch.cat([pieces[i] for i in indices]) if indices else pieces[0][:0]
        for name, pieces in columns().items()
    }
    critic_columns = {name: arrays.pop(name) for name in ("old_values_R", "returns_R")}
    critic_columns["is_trace_R"] = arrays["is_trace_R"]
    logprobs, entropy = score(policy, batch, temperature=0.9)
    first, sums = policy_loss(logprobs, entropy, **arrays, normalizer=TOKENS, config=CONFIG)
    second, more = value_loss(critic(batch), **critic_columns, normalizer=TOKENS)
    return first + second, sums | {f"critic_{name}": value for name, value in more.items()}


def accumulate(micro_batches: list[list[int]]) -> Result:
    """Loss, flat gradient of policy and critic, and sums, added over micro-batches as a trainer does."""
    policy, critic = tiny_policy(), tiny_critic()
    total, sums = torch.zeros((), dtype=torch.float64), {}
    for indices in micro_batches:
        loss, more = micro_losses(indices, policy, critic)
        loss.backward()
        total, sums = total + loss.detach(), add_sums(sums, more)
    return total, torch.cat([p.grad.flatten() for m in (policy, critic) for p in m.parameters()]), sums


def over_ranks(rank: int, rendezvous: str, plan: list[list[list[int]]]) -> Result:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=len(plan))
    loss, gradient, sums = accumulate(plan[rank])
    everything = torch.cat([loss[None], gradient, *(sums[name][None] for name in sorted(sums))])
    dist.all_reduce(everything)
    dist.destroy_process_group()
    tail = everything[1 + len(gradient) :]
    return everything[0], everything[1 : 1 + len(gradient)], dict(zip(sorted(sums), tail, strict=True))


@pytest.fixture(scope="module")
def whole() -> Result:
    return accumulate([list(range(COUNT))])


def same(got: Result, expected: Result) -> None:
    assert expected[1].abs().max() > 1e-3
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-14)


def test_every_term_of_the_loss_is_at_work(whole: Result) -> None:
    _, _, sums = whole
    for name in ("clipped_low", "clipped_high", "kl_reference", "entropy_kept", "critic_clipped", "trace_prob"):
        assert sums[name] > 0, name


def test_any_micro_batch_split_and_any_order(whole: Result) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        order = rng.sample(range(COUNT), COUNT)
        cuts = sorted(rng.sample(range(1, COUNT), seed + 1))
        parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, COUNT], strict=True)]
        same(accumulate(parts), whole)
    same(accumulate([[], *([i] for i in range(COUNT)), []]), whole)


@pytest.mark.long
def test_two_ranks_in_two_processes(whole: Result, tmp_path: Path) -> None:
    plan = plan_micro_batches(LENGTHS, 2, 40)
    assert len(plan[0]) > 1
    rendezvous = str(tmp_path / "rendezvous")
    other = mp.get_context("spawn").Process(target=over_ranks, args=(1, rendezvous, plan), daemon=True)
    other.start()
    result = over_ranks(0, rendezvous, plan)
    other.join(60)
    assert other.exitcode == 0
    same(result, whole)
