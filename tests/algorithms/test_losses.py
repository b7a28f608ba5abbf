import math

import pytest
import torch

from azr.algorithms.losses import add_sums, mismatch_metrics, policy_loss, policy_metrics, value_loss, value_metrics
from azr.config import CISPO, GSPO, PPO, AlgorithmConfig, KLConfig, SequenceCap, SequenceMask, TokenMask

from .tiny import tensor


def close(got: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(got.double(), tensor(*expected), rtol=0, atol=1e-9)


def loss_of(config: AlgorithmConfig, logprobs: torch.Tensor, **given: torch.Tensor | None) -> tuple:
    known: dict = {
        "advantages_R": torch.ones_like(logprobs), "rollout_logprobs_R": logprobs.detach(), "old_logprobs_R": None,
        "reference_logprobs_R": None, "normalizer": 1.0,
    }  # fmt: skip
    entropy = given.pop("entropy_R", torch.zeros_like(logprobs))
    return policy_loss(logprobs, entropy, config=config, **(known | given))


def test_an_unmoved_policy_has_the_policy_gradient_and_an_entropy_without_a_coefficient_none() -> None:
    logprobs = tensor(-1.0, -2.0).requires_grad_()
    loss, sums = loss_of(AlgorithmConfig(), logprobs, advantages_R=tensor(2.0, -3.0), normalizer=4.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.25)
    close(logprobs.grad, -0.5, 0.75)
    assert policy_metrics(sums)["approx_kl"] == 0.0
    entropy = tensor(2.0, 4.0).requires_grad_()
    logprobs = tensor(-1.0, -2.0).requires_grad_()
    loss, sums = loss_of(AlgorithmConfig(entropy_coef=0.0), logprobs, entropy_R=entropy)
    loss.backward()
    assert entropy.grad is None and logprobs.grad.any()
    assert policy_metrics(sums)["entropy_kept"] == 3.0


def test_far_off_logprobs_stay_finite() -> None:
    logprobs = tensor(-900.0, -1.0).requires_grad_()
    far = dict.fromkeys(("old_logprobs_R", "rollout_logprobs_R", "reference_logprobs_R"), tensor(-1.0, -900.0))
    config = AlgorithmConfig(kl=KLConfig(coef=1.0))
    loss, _ = loss_of(config, logprobs, **far, advantages_R=tensor(-1.0, -1.0))
    loss.backward()
    assert loss.isfinite() and logprobs.grad.isfinite().all()


def test_policy_sums_by_hand() -> None:
    ratio = tensor(1.5, 0.5, 1.05, 1.0)
    old = tensor(-1.0, -1.0, -1.0, -1.0)
    given = {"advantages_R": tensor(1.0, -1.0, 1.0, 0.0), "entropy_R": tensor(1.0, 2.0, 3.0, 4.0)}
    rollout = old - tensor(math.log(1.2), 0.0, math.log(1.05), 0.0)
    _, sums = loss_of(AlgorithmConfig(), old + ratio.log(), old_logprobs_R=old, rollout_logprobs_R=rollout, **given)
    metrics = policy_metrics(sums)
    expected = {"clipped_high": 0.25, "clipped_low": 0.25, "entropy_kept": 2.5, "clip_fraction": 0.5}
    expected |= {"importance_cut": 0.0}
    assert {name: metrics[name] for name in expected} == expected
    assert metrics["importance_weight"] == pytest.approx((1.2 + 1.0 + 1.05 + 1.0) / 4)


@pytest.mark.parametrize("objective", [PPO(), GSPO(), CISPO(ratio_cap=1.1)])
@pytest.mark.parametrize("importance", [TokenMask(bound=1.2), SequenceCap(cap=1.05), SequenceMask(bound=1.1)])
def test_losses_of_micro_batches_add_up_where_responses_have_a_weight(objective, importance) -> None:
    config = AlgorithmConfig(objective=objective, importance=importance, kl=KLConfig(coef=0.1))
    generator = torch.Generator().manual_seed(0)
    given = {
        name: 0.3 * torch.randn(12, generator=generator, dtype=torch.float64) - 2
        for name in ("advantages_R", "rollout_logprobs_R", "old_logprobs_R", "reference_logprobs_R")
    }
    given |= {"seq_index_R": torch.arange(4).repeat_interleave(3), "is_trace_R": torch.arange(12) < 3}
    logprobs = 0.3 * torch.randn(12, generator=generator, dtype=torch.float64) - 2
    whole, sums = loss_of(config, logprobs, **given)
    parts = [
        loss_of(config, logprobs[part], **{name: column[part] for name, column in given.items()})
        for part in (slice(0, 3), slice(3, 9), slice(9, 12), slice(0, 0))
    ]
    assert whole.item() == pytest.approx(sum(loss.item() for loss, _ in parts))
    assert sums["importance_cut"].item() == sum(more["importance_cut"].item() for _, more in parts)


def test_explained_variance_adds_over_micro_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    returns = torch.randn(50, generator=generator, dtype=torch.float64)
    values = returns + 0.5 * torch.randn(50, generator=generator, dtype=torch.float64)
    sums: dict[str, torch.Tensor] = {}
    for part in (slice(0, 7), slice(7, 50)):
        _, more = value_loss(values[part], old_values_R=values[part], returns_R=returns[part], normalizer=50.0)
        sums = add_sums(sums, more)
    expected = 1 - (returns - values).var(correction=0) / returns.var(correction=0)
    assert value_metrics(sums)["explained_variance"] == pytest.approx(expected.item())
    ones = tensor(1.0, 1.0)
    _, constant = value_loss(ones, old_values_R=0 * ones, returns_R=ones, normalizer=2.0)
    assert value_metrics(constant)["explained_variance"] == 0.0, "there is none to explain"


def test_mismatch_metrics_by_hand() -> None:
    difference = torch.arange(1.0, 101.0, dtype=torch.float64) / 1000  # exp(d) - 1 > 0.1 from d = 0.096 on
    metrics = mismatch_metrics(difference - 3, torch.full((100,), -3.0, dtype=torch.float64))
    assert metrics["mean"] == pytest.approx(0.0505)
    assert metrics["p99"] == pytest.approx(0.099)
    assert metrics["frac_outside"] == pytest.approx(0.05)
