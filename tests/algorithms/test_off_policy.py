"""Losses of tokens that another model's trace gave, against formulas written out in float64."""

import math

import pytest
import torch
from torch import Tensor

from azr.algorithms.losses import policy_loss, policy_metrics, value_loss, value_metrics
from azr.config import PPO, AlgorithmConfig, KLConfig, OffPolicyConfig, TokenCap

from .tiny import tensor

TRACE = [False, True, True, False, True, False]
"""Of `inputs`."""
CLIPS = {"objective": PPO(clip_low=0.1, clip_high=0.15)}


def inputs(seed: int = 0, traces: list[bool] = TRACE) -> dict[str, Tensor]:
    """All that a policy's loss may need of six tokens; those of traces have the engine's log-probability of 0."""
    generator = torch.Generator().manual_seed(seed)
    count = len(traces)
    noise = [torch.randn(count, generator=generator, dtype=torch.float64) for _ in range(6)]
    is_trace = torch.tensor(traces)
    return {
        "logprobs_R": -1.5 + 0.7 * noise[0], "entropy_R": noise[1].abs(), "advantages_R": noise[2],
        "old_logprobs_R": -1.5 + 0.7 * noise[3],
        "rollout_logprobs_R": torch.where(is_trace, 0.0, -1.5 + 0.7 * noise[3] + 0.2 * noise[4]),
        "reference_logprobs_R": -1.5 + 0.7 * noise[5], "loss_weights_R": 0.5 + noise[1].abs(), "is_trace_R": is_trace,
    }  # fmt: skip


def loss_of(config: AlgorithmConfig, given: dict[str, Tensor], normalizer: float = 1.0) -> tuple[Tensor, dict]:
    rest = {name: column for name, column in given.items() if name not in ("logprobs_R", "entropy_R")}
    return policy_loss(given["logprobs_R"], given["entropy_R"], **rest, normalizer=normalizer, config=config)


def written_out(config: AlgorithmConfig, given: dict[str, Tensor]) -> list[float]:
    """The loss of each token, number by number."""
    columns = {name.removesuffix("_R"): column.tolist() for name, column in given.items()}
    losses = []
    for t in range(len(columns["logprobs"])):
        at = {name: column[t] for name, column in columns.items()}
        prob, advantage, off = math.exp(at["logprobs"]), at["advantages"], config.off_policy
        ratio, correction = math.exp(at["logprobs"] - at["old_logprobs"]), 1.0
        if at["is_trace"]:
            loss = {
                "shaped": -advantage * prob / (prob + off.gamma),
                "plain": -advantage * prob,
                "sft": -off.sft_coef * at["logprobs"],
            }[off.loss]
        else:
            clipped = min(max(ratio, 1 - config.objective.clip_low), 1 + config.objective.clip_high)
            correction = min(math.exp(at["old_logprobs"] - at["rollout_logprobs"]), config.importance.cap)
            loss = -correction * min(ratio * advantage, clipped * advantage)
        d = at["logprobs"] - at["reference_logprobs"]
        loss += correction * config.kl.coef * ratio * (math.exp(-d) - 1 + d) - config.entropy_coef * at["entropy"]
        losses.append(at["loss_weights"] * loss)
    return losses


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", ["shaped", "plain", "sft"])
def test_a_mixed_batch_is_the_sum_of_its_tokens_over_one_normalizer(loss: str, seed: int) -> None:
    off_policy = OffPolicyConfig(loss=loss, gamma=0.3, sft_coef=0.7)
    config = AlgorithmConfig(
        off_policy=off_policy, kl=KLConfig(coef=0.2), entropy_coef=0.05, importance=TokenCap(cap=1.1), **CLIPS
    )
    given = inputs(seed)
    expected = written_out(config, given)
    total, sums = loss_of(config, given, normalizer=11.0)
    assert total.item() == pytest.approx(sum(expected) / 11, rel=1e-12)
    metrics = policy_metrics(sums)
    of = {origin: [x for x, trace in zip(expected, TRACE, strict=True) if trace == origin] for origin in (True, False)}
    assert metrics["loss"] == pytest.approx(sum(expected) / 6)
    assert metrics["trace_loss"] == pytest.approx(sum(of[True]) / 3)
    assert metrics["sampled_loss"] == pytest.approx(sum(of[False]) / 3)
    assert metrics["trace_prob"] == pytest.approx(given["logprobs_R"].exp()[given["is_trace_R"]].mean().item())
    assert (metrics["trace_tokens"], metrics["sampled_tokens"], metrics["trace_share"]) == (3, 3, 0.5)


@pytest.mark.parametrize("loss", ["shaped", "plain", "sft"])
def test_what_is_known_of_sampled_tokens_alone_is_as_if_there_were_no_others(loss: str) -> None:
    config = AlgorithmConfig(off_policy=OffPolicyConfig(loss=loss), **CLIPS)
    given = inputs(seed=1)
    sampled = {name: column[~given["is_trace_R"]] for name, column in given.items()}
    del sampled["is_trace_R"]
    mixed, alone = policy_metrics(loss_of(config, given)[1]), policy_metrics(loss_of(config, sampled)[1])
    for name in ("approx_kl", "importance_weight", "importance_cut", "clipped_low", "clipped_high", "clip_fraction"):
        assert mixed[name] == pytest.approx(alone[name], rel=1e-12), name
    assert alone["clip_fraction"] > 0 and alone["importance_weight"] != 1 and alone["approx_kl"] > 0
    assert alone["loss"] == pytest.approx(mixed["sampled_loss"])


def test_no_token_of_a_trace_is_clipped() -> None:
    given = inputs(traces=[True] * 6) | {"old_logprobs_R": torch.full((6,), -30.0).double()}
    given["logprobs_R"].requires_grad_()
    loss, sums = loss_of(AlgorithmConfig(), given)
    loss.backward()
    assert given["logprobs_R"].grad.all()
    assert "clip_fraction" not in policy_metrics(sums)


@pytest.mark.parametrize("loss", ["shaped", "plain", "sft"])
def test_a_mask_without_traces_changes_no_bit(loss: str) -> None:
    config = AlgorithmConfig(off_policy=OffPolicyConfig(loss=loss), kl=KLConfig(coef=0.2), entropy_coef=0.05, **CLIPS)
    results = []
    for dtype in (torch.float32, torch.float64):
        for mask in ({"is_trace_R": torch.zeros(6, dtype=torch.bool)}, {}):
            given = {name: column.to(dtype) for name, column in inputs().items() if name != "is_trace_R"} | mask
            given["logprobs_R"].requires_grad_()
            loss_R, sums = loss_of(config, given)
            loss_R.backward()
            metrics = policy_metrics(sums)
            results.append((loss_R.item(), given["logprobs_R"].grad.tolist(), metrics))
        (masked, masked_grad, masked_metrics), (plain, grad, metrics) = results[-2:]
        assert masked == plain and masked_grad == grad
        added = {"trace_tokens": 0, "sampled_tokens": 6, "trace_share": 0, "sampled_loss": metrics["loss"]}
        assert masked_metrics == metrics | added


def test_improbable_and_impossible_tokens_stay_finite() -> None:
    for loss in ("shaped", "plain", "sft"):
        given = inputs(traces=[True] * 6) | {"logprobs_R": torch.full((6,), -900.0)}
        given["logprobs_R"].requires_grad_()
        total, _ = loss_of(AlgorithmConfig(off_policy=OffPolicyConfig(loss=loss)), given)
        total.backward()
        assert total.isfinite() and given["logprobs_R"].grad.isfinite().all(), loss


def test_the_critic_is_fitted_to_what_the_policy_sampled() -> None:
    values, old, returns = tensor(1.0, 0.1, 1.0, 0.5), tensor(0.0, 0.0, 0.0, 0.5), tensor(1.0, 1.0, 0.0, 9.0)
    is_trace = torch.tensor([False, False, False, True])
    values.requires_grad_()
    loss, sums = value_loss(values, old_values_R=old, returns_R=returns, is_trace_R=is_trace, normalizer=4.0)
    loss.backward()
    assert loss.item() == pytest.approx((0.5 * 0.64 + 0.5 * 0.81 + 0.5 * 1.0) / 4)
    assert values.grad[is_trace].tolist() == [0.0] and value_metrics(sums)["clipped"] == pytest.approx(1 / 3)
    few = [each.detach()[~is_trace] for each in (values, old, returns)]
    alone = value_loss(few[0], old_values_R=few[1], returns_R=few[2], normalizer=4.0)[1]
    assert value_metrics(sums) == value_metrics(alone)
