"""Each term of the policy's loss against a reference of its own in numpy, its gradient against finite differences."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from azr.algorithms.objectives import importance_weights, kl_loss, sampled_objective
from azr.config import (
    CISPO,
    GSPO,
    PPO,
    Importance,
    KLConfig,
    NoImportance,
    Objective,
    SequenceCap,
    SequenceMask,
    TokenCap,
    TokenMask,
)

from .tiny import tensor


def close(got: Tensor, expected: object, atol: float = 1e-9) -> None:
    torch.testing.assert_close(got.double(), torch.as_tensor(expected, dtype=torch.float64), rtol=1e-9, atol=atol)


LENGTHS = (4, 1, 7, 3)
OWNERS = np.repeat(np.arange(4), LENGTHS)
OBJECTIVES: list[Objective] = [
    PPO(clip_low=0.1, clip_high=0.25), PPO(dual_clip=1.5), GSPO(clip_low=0.1, clip_high=0.15), CISPO(ratio_cap=1.2),
]  # fmt: skip


def reference(config: Objective, logprobs: np.ndarray, old: np.ndarray, advantages: np.ndarray) -> np.ndarray:
    """Losses of tokens by the formulas of PPO and GSPO."""
    ratio = np.exp(logprobs - old)
    if isinstance(config, GSPO):
        ratio = np.exp(np.array([(logprobs - old)[owner == OWNERS].mean() for owner in OWNERS]))
    kept = np.minimum(ratio * advantages, ratio.clip(1 - config.clip_low, 1 + config.clip_high) * advantages)
    if isinstance(config, PPO) and config.dual_clip is not None:
        kept = np.where(advantages < 0, np.maximum(kept, config.dual_clip * advantages), kept)
    return -kept


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-probabilities, old ones, and advantages of which all tokens of a response have the same."""
    rng = np.random.default_rng(seed)
    old = -2 + 0.5 * rng.standard_normal(len(OWNERS))
    return old + 0.4 * rng.standard_normal(len(OWNERS)), old, rng.standard_normal(4)[OWNERS]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("config", OBJECTIVES, ids=["ppo", "dual_clip", "gspo", "cispo"])
def test_an_objective_has_the_value_and_gradient_of_its_formula(config: Objective, seed: int) -> None:
    given, old, advantages = drawn(seed)
    logprobs = torch.tensor(given, requires_grad=True)
    arrays = torch.tensor(old), torch.tensor(advantages), config, torch.tensor(OWNERS)
    losses, is_low, is_high = sampled_objective(logprobs, *arrays)
    losses.sum().backward()
    if isinstance(config, CISPO):
        weight = np.minimum(np.exp(given - old), config.ratio_cap)
        close(losses.detach(), -weight * advantages * given)
        close(logprobs.grad, -weight * advantages)
        assert (is_high.numpy() == (np.exp(given - old) > config.ratio_cap)).all() and not is_low.any()
        return
    close(losses.detach(), reference(config, given, old, advantages))
    differences = []
    for t in range(len(given)):
        step = 1e-6 * (np.arange(len(given)) == t)
        ends = [reference(config, given + sign * step, old, advantages).sum() for sign in (1, -1)]
        differences.append((ends[0] - ends[1]) / 2e-6)
    close(logprobs.grad, differences, atol=1e-7)
    assert ((logprobs.grad == 0).numpy() == (is_low | is_high).numpy()).all(), "a clipped token has no gradient"


RATIOS = (1.0, 1.5, 5.0, 0.1, 1.02, 0.99)
PAIRS = torch.tensor([0, 0, 1, 1, 2, 2])
"""Responses of two tokens each; their mean ratios are 1.22, 0.71 and 1.005."""


@pytest.mark.parametrize(
    ("config", "expected", "cut"),
    [
        (NoImportance(), [1.0] * 6, []),
        (TokenCap(cap=2.0), [1.0, 1.5, 2.0, 0.1, 1.02, 0.99], [2]),
        (TokenMask(bound=2.0), [1.0, 1.5, 0.0, 0.0, 1.02, 0.99], [2, 3]),
        (SequenceCap(cap=1.1), [1.1, 1.1, 0.5**0.5, 0.5**0.5, 1.0098**0.5, 1.0098**0.5], [0, 1]),
        (SequenceMask(bound=1.3), [1.5**0.5, 1.5**0.5, 0.0, 0.0, 1.0098**0.5, 1.0098**0.5], [2, 3]),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_importance_weights_by_hand(config: Importance, expected: list[float], cut: list[int]) -> None:
    trainer = tensor(*RATIOS).log().requires_grad_()
    weights, is_cut = importance_weights(trainer, torch.zeros(6, dtype=torch.float64), config, PAIRS)
    close(weights, expected)
    assert is_cut.nonzero().flatten().tolist() == cut and not weights.requires_grad
    equal, is_cut = importance_weights(trainer, trainer, config, PAIRS)
    assert torch.equal(equal, torch.ones_like(equal)) and not is_cut.any(), "nothing where both agree"
    far, _ = importance_weights(tensor(500.0), tensor(0.0), config, PAIRS[:1])
    assert far.isfinite().all()


@settings(deadline=None, max_examples=50)
@given(st.permutations(range(18)), st.integers(0, 99), st.sampled_from([SequenceCap(cap=1.1), SequenceMask(bound=1.2)]))
def test_weights_of_a_response_do_not_depend_on_where_it_stands(order, seed, config) -> None:
    """Nor on how responses are numbered."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(6), 3)
    apart = torch.tensor(0.2 * rng.standard_normal(18))
    zeros, moved = torch.zeros(18, dtype=torch.float64), torch.tensor(order)
    straight, _ = importance_weights(apart, zeros, config, torch.tensor(owners))
    shuffled, _ = importance_weights(apart[moved], zeros, config, torch.tensor(7 + 3 * owners)[moved])
    close(shuffled, straight[moved])


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


def test_the_unbiased_kl_is_the_kl_whoever_sampled_and_k2_has_its_gradient_and_k3_that_of_the_other_direction() -> None:
    for moved in (0.0, 0.3):
        value, gradient, true, true_gradient = kl_and_gradient("k3_unbiased", moved)
        close(value, true)
        close(gradient, true_gradient)
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
