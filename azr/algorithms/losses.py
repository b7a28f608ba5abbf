"""Losses: a sum over response tokens divided by one explicit normaliser, and sums from which metrics are made.

The normaliser is the number of response tokens of the whole optimizer step, over all micro-batches and ranks. Losses
(and their gradients) of micro-batches and ranks then simply add up to the batch's; a trainer whose gradients are
*averaged* over ranks multiplies the loss by the number of ranks.

Legend: R response tokens of one micro-batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from azr.algorithms.objectives import importance_weights, kl_loss, log_ratio, sampled_objective, trace_objective
from azr.config import AlgorithmConfig

VALUE_CLIP = 0.2
"""Bound on the critic's move from its old value, as in PPO's reference code."""
Sums = dict[str, Tensor]
"""Detached float64 scalars that may be added over micro-batches and ranks."""


def add_sums(total: Sums, more: Sums) -> Sums:
    """Add two sets of sums by name; an empty set is zero."""
    assert not total or total.keys() == more.keys()
    return {name: total[name] + value if total else value for name, value in more.items()}


def _sums(**terms: Tensor) -> Sums:
    return {name: term.detach().double().sum() for name, term in terms.items()}


def policy_loss(
    logprobs_R: Tensor,
    entropy_R: Tensor,
    *,
    advantages_R: Tensor,
    rollout_logprobs_R: Tensor,
    old_logprobs_R: Tensor | None = None,
    reference_logprobs_R: Tensor | None = None,
    loss_weights_R: Tensor | None = None,
    is_trace_R: Tensor | None = None,
    seq_index_R: Tensor | None = None,
    normalizer: float,
    config: AlgorithmConfig,
) -> tuple[Tensor, Sums]:
    """Σ_t w_t (c_t · objective_t + c_t · kl.coef · KL_t - entropy_coef · H_t) / normalizer.

    Returns (scalar loss, sums for ``policy_metrics``). All arrays are (R). c_t is the importance weight of the
    trainer's logprobs over the engine's ``rollout_logprobs_R``, which may be those of older weights. With
    ``kl.where`` reward, KL_t is only measured.
    ``old_logprobs_R`` None: the policy has not moved since the step began to learn, so the ratio is 1, with the
    gradient it should have, and no forward had to be spent on it. ``loss_weights_R`` None: every w_t is 1.
    ``is_trace_R``, bool: tokens that no engine sampled, for which `trace_objective` stands in the place of
    c_t · objective_t and c_t of the KL is 1, and which clipping, KL to the old policy and importance weight of the sums
    leave out. None: all were sampled. ``seq_index_R``: index of each token's sample, if ``config.by_sequence``.
    """
    old_R = logprobs_R.detach() if old_logprobs_R is None else old_logprobs_R
    log_ratio_R = log_ratio(logprobs_R, old_R)
    ratio_R = log_ratio_R.exp()
    importance_R, is_cut_R = importance_weights(old_R, rollout_logprobs_R, config.importance, seq_index_R)
    objective_R, is_low_R, is_high_R = sampled_objective(logprobs_R, old_R, advantages_R, config.objective, seq_index_R)
    objective_R = importance_R * objective_R
    if is_trace_R is not None:
        of_traces_R = trace_objective(logprobs_R, advantages_R, config.off_policy)
        objective_R = torch.where(is_trace_R, of_traces_R, objective_R)
        importance_R = importance_R.masked_fill(is_trace_R, 1)
    loss_R = objective_R
    if config.entropy_coef:  # else the entropy is only a metric, and its gradient is not computed
        loss_R = loss_R - config.entropy_coef * entropy_R
    kl_R = torch.zeros_like(objective_R)
    if config.needs_reference:
        assert reference_logprobs_R is not None, "a KL needs the reference policy's logprobs"
        kl_R = kl_loss(logprobs_R, reference_logprobs_R, ratio_R, config.kl)
        if config.kl.where == "loss":
            loss_R = loss_R + config.kl.coef * importance_R * kl_R
    if loss_weights_R is not None:
        loss_R = loss_R * loss_weights_R
    of_sampled = {
        "clipped_low": is_low_R,
        "clipped_high": is_high_R,
        "approx_kl": ratio_R - 1 - log_ratio_R,
        "importance_weight": importance_R,
        "importance_cut": is_cut_R,
    }
    sums = _sums(
        tokens=torch.ones_like(objective_R),
        loss=loss_R,
        objective=objective_R,
        kl_reference=kl_R,
        entropy_kept=entropy_R,
    )
    if is_trace_R is not None:
        of_sampled = {name: term_R.masked_fill(is_trace_R, 0) for name, term_R in of_sampled.items()}
        of_traces = {"trace_tokens": torch.ones_like(loss_R), "trace_loss": loss_R, "trace_prob": logprobs_R.exp()}
        sums |= _sums(**{name: term_R.masked_fill(~is_trace_R, 0) for name, term_R in of_traces.items()})
    return loss_R.sum() / normalizer, sums | _sums(**of_sampled)


def value_loss(
    values_R: Tensor, *, old_values_R: Tensor, returns_R: Tensor, is_trace_R: Tensor | None = None, normalizer: float
) -> tuple[Tensor, Sums]:
    """½ max((V - R)², (V_clip - R)²), V_clip = V_old + clip(V - V_old, ±VALUE_CLIP).

    Tokens of ``is_trace_R``, bool, are left out: what followed them says nothing of the policy's own returns.
    Returns (scalar loss, sums for ``value_metrics``).
    """
    if is_trace_R is not None:
        values_R, old_values_R, returns_R = (each[~is_trace_R] for each in (values_R, old_values_R, returns_R))
    error_R = returns_R - values_R
    loss_R = error_R.square() / 2
    moved_R = values_R - old_values_R
    bounded_R = old_values_R + moved_R.clamp(-VALUE_CLIP, VALUE_CLIP)
    bounded_loss_R = (returns_R - bounded_R).square() / 2
    clipped_R = (moved_R.abs() > VALUE_CLIP) & (bounded_loss_R > loss_R)  # a rounding of V_clip is not clipping
    loss_R = torch.maximum(loss_R, bounded_loss_R)
    # Explained variance is that of the critic behind the advantages, so it is measured on the old values.
    old_error_R = (returns_R - old_values_R).double()
    sums = _sums(
        tokens=torch.ones_like(loss_R),
        loss=loss_R,
        clipped=clipped_R,
        values=values_R,
        returns=returns_R,
        returns_squared=returns_R.double().square(),
        errors=old_error_R,
        errors_squared=old_error_R.square(),
    )
    return loss_R.sum() / normalizer, sums


def policy_metrics(sums: Sums) -> dict[str, float]:
    """Means per token of the sums of ``policy_loss`` over a whole optimizer step, and the share of clipped tokens.

    Where there may be tokens of traces: how many tokens either origin has, the share of traces, the mean loss of each
    origin, and the mean probability of the traces' tokens. What an origin without tokens would say is left out.
    """
    values = {name: value.item() for name, value in sums.items()}
    tokens, traced = values.pop("tokens"), values.pop("trace_tokens", None)
    sampled = tokens - (traced or 0.0)
    values["clip_fraction"] = values["clipped_low"] + values["clipped_high"]
    if traced is None:
        return {name: value / max(tokens, 1.0) for name, value in values.items()}
    counts = dict.fromkeys(values, sampled) | dict.fromkeys(
        ("loss", "objective", "kl_reference", "entropy_kept"), tokens
    )
    values["sampled_loss"] = values["loss"] - values["trace_loss"]
    counts |= {"sampled_loss": sampled, "trace_loss": traced, "trace_prob": traced}
    metrics = {name: value / counts[name] for name, value in values.items() if counts[name]}
    return metrics | {"trace_tokens": traced, "sampled_tokens": sampled, "trace_share": traced / max(tokens, 1.0)}


def value_metrics(sums: Sums) -> dict[str, float]:
    """Mean loss, clip share, value and return, and explained variance 1 - Var(R - V) / Var(R); 0 for constant R."""
    tokens = max(sums["tokens"].item(), 1.0)
    mean = {name: value.item() / tokens for name, value in sums.items() if name != "tokens"}
    spread = mean["returns_squared"] - mean["returns"] ** 2
    residual = mean["errors_squared"] - mean["errors"] ** 2
    explained = 1 - residual / spread if spread > 1e-12 else 0.0
    return {key: mean[key] for key in ("loss", "clipped", "values", "returns")} | {"explained_variance": explained}


def mismatch_metrics(trainer_R: Tensor, engine_R: Tensor) -> dict[str, float]:
    """Disagreement of trainer and engine on all R > 0 sampled tokens of a step, from gathered logprobs.

    ``mean`` and ``p99`` of |Δ logp| in nats, and ``frac_outside``: the share of tokens with a ratio outside [0.9, 1.1].
    """
    difference_R = (trainer_R - engine_R).double()
    rank = max(1, -(-99 * len(difference_R) // 100))
    return {
        "mean": difference_R.abs().mean().item(),
        "p99": difference_R.abs().kthvalue(rank).values.item(),
        "frac_outside": ((difference_R.exp() - 1).abs() > 0.1).double().mean().item(),
    }
