"""Each term of the policy's loss against a reference of its own in numpy, its gradient against finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from azr.algorithms.objectives import clipped_objective, importance_weights, kl_estimate, kl_loss
from azr.config import AlgorithmConfig, KLConfig


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(got: Tensor, expected: object, atol: float = 1e-9) -> None:
    torch.testing.assert_close(got.double(), torch.as_tensor(expected, dtype=torch.float64), rtol=1e-9, atol=atol)


def test_clipping_by_hand_at_the_edges_of_the_band() -> None:
    config = AlgorithmConfig(clip_low=0.2, clip_high=0.3)
    ratio = tensor(0.7, 0.8, 1.0, 1.3, 1.5)
    close(clipped_objective(ratio, tensor(*[1.0] * 5), config), [-0.7, -0.8, -1.0, -1.3, -1.3])
    close(clipped_objective(ratio, tensor(*[-1.0] * 5), config), [0.8, 0.8, 1.0, 1.3, 1.5])


def test_importance_weights_are_capped_and_detached() -> None:
    trainer = tensor(0.0, math.log(1.5), math.log(5.0), math.log(0.1), 500.0).requires_grad_()
    weights = importance_weights(trainer, tensor(0.0, 0.0, 0.0, 0.0, 0.0), 2.0)
    close(weights, [1.0, 1.5, 2.0, 0.1, 2.0])
    assert not weights.requires_grad


def test_the_kl_estimates_by_hand() -> None:
    logprobs, reference = tensor(-1.0, -2.0), tensor(-2.0, -1.0)  # d = 1, -1
    close(kl_estimate(logprobs, reference, "k1"), [1.0, -1.0])
    close(kl_estimate(logprobs, reference, "k2"), [0.5, 0.5])
    for estimator in ("k3", "k3_unbiased"):
        close(kl_estimate(logprobs, reference, estimator), [math.exp(-1), math.e - 2])


def kl_and_gradient(estimator: str, moved: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Exact expectations over a vocabulary of 50: the estimate and its gradient, and those of KL(p ‖ reference).

    Tokens are sampled from a policy that is ``moved`` away from p.
    """
    generator = torch.Generator().manual_seed(0)
    scores, reference, apart = (1.5 * torch.randn(50, generator=generator, dtype=torch.float64) for _ in range(3))
    sampler = (scores + moved * apart).log_softmax(-1)
    scores.requires_grad_()
    logprobs, reference = scores.log_softmax(-1), reference.log_softmax(-1)
    terms = kl_loss(logprobs, reference, (logprobs - sampler).exp(), KLConfig(estimator=estimator))
    found, true = (sampler.exp() * terms).sum(), (logprobs.exp() * (logprobs - reference)).sum()
    gradients = [torch.autograd.grad(each, scores, retain_graph=True)[0] for each in (found, true)]
    return found.detach(), gradients[0], true.detach(), gradients[1]


@pytest.mark.parametrize("moved", [0.0, 0.3])
def test_the_unbiased_kl_has_value_and_gradient_of_the_kl_whoever_sampled(moved: float) -> None:
    value, gradient, true, true_gradient = kl_and_gradient("k3_unbiased", moved)
    close(value, true)
    close(gradient, true_gradient)


def test_k2_has_the_gradient_of_the_kl_on_policy_and_k3_that_of_the_other_direction() -> None:
    _, gradient, _, true_gradient = kl_and_gradient("k2", 0.0)
    close(gradient, true_gradient)
    value, gradient, true, true_gradient = kl_and_gradient("k3", 0.0)
    close(value, true)
    assert (gradient - true_gradient).norm() > 0.5
    value, gradient, true, true_gradient = kl_and_gradient("k1", 0.0)
    close(value, true)
    close(gradient, torch.zeros(50), atol=1e-12)


@pytest.mark.parametrize("distance", [-30.0, -19.0, -10.0, -5.0, -0.1, 0.1, 5.0, 30.0])
def test_the_pull_to_the_reference_is_bounded(distance: float) -> None:
    """In float32, as it is trained: one token at d = -10 weighs 10, not 22,000."""
    logprobs = torch.tensor([distance], requires_grad=True)
    kl_loss(logprobs, torch.zeros(1), torch.ones(1), KLConfig()).sum().backward()
    assert logprobs.grad.item() == pytest.approx(max(-20.0, min(20.0, distance)))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3_unbiased"])
def test_the_gradient_of_each_kl_is_that_of_finite_differences(estimator: str) -> None:
    rng = np.random.default_rng(0)
    given, reference, old = (-2 + 0.7 * rng.standard_normal(20) for _ in range(3))

    def value(at: np.ndarray) -> np.ndarray:
        d = at - reference
        k3 = np.exp(-d) - 1 + d
        return {"k1": d, "k2": d * d / 2, "k3": k3, "k3_unbiased": np.exp(at - old) * k3}[estimator]

    logprobs = torch.tensor(given, requires_grad=True)
    ratio = (logprobs - torch.tensor(old)).exp()
    terms = kl_loss(logprobs, torch.tensor(reference), ratio, KLConfig(estimator=estimator))
    close(terms.detach(), value(given))
    terms.sum().backward()
    close(logprobs.grad, (value(given + 1e-6) - value(given - 1e-6)) / 2e-6, atol=1e-7)
