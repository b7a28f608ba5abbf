"""Terms of the policy's loss, a function each: importance weights, objectives of sampled tokens and of traces, KL.

docs/algorithms.md has a table of them, with their names elsewhere.

Legend: R response tokens of one micro-batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from azr.config import (
    CISPO,
    GSPO,
    PPO,
    Importance,
    KLConfig,
    NoImportance,
    Objective,
    OffPolicyConfig,
    SequenceCap,
    SequenceMask,
    TokenCap,
)

LOG_RATIO_LIMIT = 20.0
"""exp of more overflows usefulness long before it overflows float32; such a token gets no gradient."""


def log_ratio(numerator_R: Tensor, denominator_R: Tensor) -> Tensor:
    """Difference of log-probabilities, clamped to ±20."""
    return (numerator_R - denominator_R).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def importance_weights(
    trainer_R: Tensor,
    engine_R: Tensor,
    config: Importance,
    sequence_R: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights of sampled tokens, detached, and which of them were cut off at a cap or set to 0, bool.

    They correct for the engine having sampled from other probabilities than the trainer's: slightly, by another
    rounding, or from weights that are some updates older. With the ratio r = exp(logp_trainer - logp_engine) of a
    token, and its geometric mean s over the token's response:

        token_cap      min(r, cap)                         (TIS: F. Yao et al., "Your efficient RL framework ...")
        token_mask     r if 1 / bound ≤ r ≤ bound, else 0  (IcePop, arXiv 2510.18855)
        sequence_cap   min(s, cap)
        sequence_mask  s if 1 / bound ≤ s ≤ bound, else 0  (J. Liu et al., "When speed kills stability")

    ``sequence_R``, int64: index of each token's response, which the last two need.
    """
    apart_R = log_ratio(trainer_R, engine_R).detach()
    if isinstance(config, SequenceCap | SequenceMask):
        assert sequence_R is not None
        apart_R = sequence_means(apart_R, sequence_R)
    ratio_R = apart_R.exp()
    match config:
        case NoImportance():
            return torch.ones_like(ratio_R), torch.zeros_like(ratio_R, dtype=torch.bool)
        case TokenCap() | SequenceCap():
            return ratio_R.clamp(max=config.cap), ratio_R > config.cap
    is_outside_R = apart_R.abs() > math.log(config.bound)
    return ratio_R.masked_fill(is_outside_R, 0), is_outside_R


def sequence_means(x_R: Tensor, sequence_R: Tensor) -> Tensor:
    """Give each token the mean of x over the tokens of its response, whose index is in ``sequence_R``."""
    sequences, index_R, counts = sequence_R.unique(return_inverse=True, return_counts=True)
    means: Tensor = x_R.new_zeros(len(sequences)).index_add(0, index_R, x_R) / counts
    return means[index_R]


def sampled_objective(
    logprobs_R: Tensor,
    old_R: Tensor,
    advantages_R: Tensor,
    config: Objective,
    sequence_R: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Per-token loss of sampled tokens, and which of them are clipped below and above, bool.

    ``sequence_R``, int64: index of each token's response, which gspo alone needs.
    """
    ratio_R = log_ratio(logprobs_R, old_R).exp()
    if isinstance(config, CISPO):
        return cispo(logprobs_R, ratio_R, advantages_R, config.ratio_cap)
    if isinstance(config, GSPO):
        assert sequence_R is not None
        ratio_R = sequence_ratio(logprobs_R, old_R, sequence_R)
    dual_clip = config.dual_clip if isinstance(config, PPO) else None
    return ppo(ratio_R, advantages_R, config.clip_low, config.clip_high, dual_clip)


def ppo(
    ratio_R: Tensor, advantages_R: Tensor, low: float, high: float, dual_clip: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """-min(r A, clip(r, 1 - low, 1 + high) A) (arXiv 1707.06347, eq. 7); ``high`` above ``low``: arXiv 2503.14476.

    ``dual_clip``: at most -dual_clip · A where A < 0 (arXiv 1912.09729, eq. 5).
    """
    loss_R = torch.maximum(-advantages_R * ratio_R, -advantages_R * ratio_R.clamp(1 - low, 1 + high))
    is_low_R = (advantages_R < 0) & (ratio_R < 1 - low)
    is_high_R = (advantages_R > 0) & (ratio_R > 1 + high)
    if dual_clip is not None:
        is_dual_R = (advantages_R < 0) & (ratio_R > dual_clip)
        loss_R, is_high_R = torch.where(is_dual_R, -advantages_R * dual_clip, loss_R), is_high_R | is_dual_R
    return loss_R, is_low_R, is_high_R


def sequence_ratio(logprobs_R: Tensor, old_R: Tensor, sequence_R: Tensor) -> Tensor:
    """GSPO's ratio s = exp(mean of logp - logp_old over the response), for each of its tokens (arXiv 2507.18071).

    As s · p / p, with only the numerator differentiated (eq. 14, GSPO-token): summed over a response whose tokens have
    one advantage, that is the gradient of s for each of them (eq. 7).
    """
    mean_R = sequence_means(log_ratio(logprobs_R, old_R).detach(), sequence_R)
    return mean_R.exp() * (logprobs_R - logprobs_R.detach()).exp()


def cispo(logprobs_R: Tensor, ratio_R: Tensor, advantages_R: Tensor, cap: float) -> tuple[Tensor, Tensor, Tensor]:
    """-min(r, cap) A logp, with only logp differentiated (arXiv 2506.13585, eq. 4, without a lower bound)."""
    weight_R = ratio_R.detach().clamp(max=cap)
    return -weight_R * advantages_R * logprobs_R, torch.zeros_like(ratio_R, dtype=torch.bool), ratio_R > cap


def trace_objective(logprobs_R: Tensor, advantages_R: Tensor, config: OffPolicyConfig) -> Tensor:
    """Per-token loss of tokens that another model's trace gave, with π = exp(logp) (arXiv 2504.14945, section 3).

    That model counts as sure of its tokens, so π is the whole importance weight. ``shaped``: -A f(π) with f(π) =
    π / (π + g) and g = gamma, whose gradient is -A gπ / (π + g)² ∇logp; ``plain``: -A π; ``sft``: -coef · logp,
    whatever the advantage.
    """
    if config.loss == "sft":
        return -config.sft_coef * logprobs_R
    if config.loss == "plain":
        return -advantages_R * logprobs_R.exp()
    return -advantages_R * torch.sigmoid(logprobs_R - math.log(config.gamma))


def kl_estimate(logprobs_R: Tensor, reference_R: Tensor, estimator: str) -> Tensor:
    """Per-token estimate of KL(policy ‖ reference) from tokens that the policy sampled, with d = logp - logp_ref.

    k1: d; k2: d² / 2; k3 and k3_unbiased: exp(-d) - 1 + d (J. Schulman, "Approximating KL divergence"). k1 and k3 are
    unbiased, k2 and k3 never negative.
    """
    d_R = log_ratio(logprobs_R, reference_R)
    if estimator == "k1":
        return d_R
    return d_R.square() / 2 if estimator == "k2" else torch.exp(-d_R) - 1 + d_R


def kl_loss(logprobs_R: Tensor, reference_R: Tensor, ratio_R: Tensor, config: KLConfig) -> Tensor:
    """Per-token KL term of the loss. ``ratio_R``: importance ratio r of the policy to the one that sampled.

    Differentiated as it is, k3 pulls by (1 - exp(-d)) ∇logp, which is the gradient of KL(reference ‖ policy) on
    average, and unbounded. k3_unbiased is r · k3, differentiated through r as well, so its gradient r d ∇logp is that
    of KL(policy ‖ reference) (DeepSeek-V3.2, arXiv 2512.02556, section 3.1). It is written out here: autograd would
    subtract two numbers of size exp(-d), which cancel but for rounding. |d| and |log r| are at most 20.
    """
    estimate_R = kl_estimate(logprobs_R, reference_R, config.estimator)
    if config.estimator != "k3_unbiased":
        return estimate_R
    weight_R = ratio_R * log_ratio(logprobs_R, reference_R)
    return (ratio_R * estimate_R).detach() + weight_R.detach() * (logprobs_R - logprobs_R.detach())
