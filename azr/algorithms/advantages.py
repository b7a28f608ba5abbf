"""Advantage estimators: a reward per sample in, one number per response token out; and weights of the loss.

Everything is float64 inside, so that sums over a large batch do not depend on its order in float32.

Legend: N samples, R response tokens of all of them, concatenated in order; M samples of a mini-batch; G labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from azr.algorithms.batch import Batch
from azr.config import GAE, GRPO, RLOO, TRRPP, AlgorithmConfig, DrGRPO, Estimator, ReinforcePP

VARIANCE_FLOOR = 1e-8
"""Added to the variance before its root is taken, as in verl's masked whitening."""
DEVIATION_FLOOR = 1e-6
"""Added to GRPO's standard deviation."""


OWN_ESTIMATORS: dict[str, Callable[[Batch], Tensor | None]] = {}
"""Estimators of plug-ins, by name: advantages, float32 (R); None if one fails."""


def estimate_advantages(batch: Batch, estimator: Estimator) -> tuple[Tensor, Tensor]:
    """Run the configured estimator. Returns advantages and the critic's targets, both float32 (R)."""
    advantages_R, returns_R = ESTIMATORS[type(estimator)](batch, estimator)
    return charge_kl(cap_advantages(advantages_R, batch), batch).float(), returns_R.float()


def cap_advantages(advantages_R: Tensor, batch: Batch) -> Tensor:
    """Return the advantages, none above 0 of samples that the batch caps."""
    if not batch.capped:
        return advantages_R
    is_capped_R = torch.tensor(batch.capped)[batch.seq_index_R]
    return torch.where(is_capped_R, advantages_R.clamp(max=0), advantages_R)


def charge_kl(advantages_R: Tensor, batch: Batch) -> Tensor:
    """Subtract the KL of the reward, last of all: it changes no baseline, no deviation and no cap."""
    return advantages_R if batch.kl_R is None else advantages_R - batch.kl_R


def weighting_of(algorithm: AlgorithmConfig) -> str:
    """``algorithm.loss_weighting``, decided."""
    if algorithm.loss_weighting != "auto":
        return algorithm.loss_weighting
    return "constant" if isinstance(algorithm.estimator, DrGRPO) else "token"


def loss_weights(
    batch: Batch,
    weighting: str,
    mini_batches: Sequence[Sequence[int]],
    kept: Sequence[Sequence[int]],
    max_tokens: int,
    proposer_share: float = 0.5,
) -> Tensor | None:
    """Factor of each token's loss, float32 (R); None for 1 throughout, which is ``weighting`` token.

    An optimizer step divides its sum over K tokens, those of the samples in ``kept``, by K. A token of sample i, which
    has L_i, of a mini-batch of M samples is given

        w = K share_i / L_i

    so sample i's mean loss counts share_i in that step, however many others have no gradient and were left out:

        trajectory  share_i = 1 / M
        kind_role   share_i = v_i / (sum of v over the (kind, role) in the mini-batch · M of i's (kind, role)), where v
                    is ``proposer_share`` for proposers and what it lacks of 1 for solvers
        constant    share_i = L_i / (max_tokens M)                             (arXiv 2503.20783, section 3.2)

    Samples without tokens do not count in the first two, whose shares add up to 1: w is 1 on average over all tokens
    of a mini-batch of which nothing was left out. ``weighting`` is that of `weighting_of`.
    """
    if weighting == "token":
        return None
    label_N, value_N = torch.zeros_like(batch.kind_role_N), torch.ones(len(batch.kind_roles), dtype=torch.float64)
    if weighting == "kind_role":
        values = [proposer_share if role == "proposer" else 1 - proposer_share for _, role in batch.kind_roles]
        label_N, value_N = batch.kind_role_N, torch.tensor(values, dtype=torch.float64)
    weight_N = torch.zeros(len(label_N), dtype=torch.float64)
    for members, remaining in zip(mini_batches, kept, strict=True):
        tokens = sum(batch.response_lengths[i] for i in remaining)
        if weighting == "constant":
            weight_N[list(remaining)] = tokens / (max_tokens * len(members))
        else:
            index_M = torch.tensor(list(members))
            weight_N[index_M] = _equal_weights(batch.lengths_N[index_M], label_N[index_M], value_N[index_M], tokens)
    return weight_N[batch.seq_index_R].float()


def _equal_weights(lengths_M: Tensor, label_M: Tensor, value_M: Tensor, tokens: int) -> Tensor:
    """Weight of a token of each sample when labels weigh by their value in a mean over so many tokens, and the samples
    of a label the same."""
    nonempty_M = (lengths_M > 0).double()
    share_M = value_M * nonempty_M / _segment_sum(label_M, nonempty_M)[label_M].clamp(min=1)
    return share_M / (share_M.sum() or 1) * tokens / lengths_M.clamp(min=1)


def discounted_sum(x_R: Tensor, seq_index_R: Tensor, decay: float) -> Tensor:
    """y_t = Σ_{j≥0} decay^j x_{t+j}, within the tokens of one sample (R).

    Doubling scan: each pass doubles the reach of every sum, so 8192-token responses take 13 vector passes.
    """
    y_R = x_R.clone()
    reach, longest = 1, int(torch.bincount(seq_index_R).max()) if len(seq_index_R) else 0
    while reach < longest:
        same = seq_index_R[reach:] == seq_index_R[:-reach]
        y_R[:-reach] += decay**reach * torch.where(same, y_R[reach:], 0.0)
        reach *= 2
    return y_R


def whiten(x_N: Tensor, label_N: Tensor, lengths_N: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over the tokens of each label (R), with the unbiased variance; a sample's x and
    label are those of each of its tokens.

    A label whose numbers are all equal becomes exactly 0.
    """
    x, label, lengths = (each_N[lengths_N > 0] for each_N in (x_N, label_N, lengths_N))
    label_R, count_G = label.repeat_interleave(lengths), _segment_sum(label, lengths)
    # Only sums need every token; they are added one by one, as for numbers that differ within a sample.
    centred = x - (_segment_sum(label_R, x.repeat_interleave(lengths)) / count_G)[label]
    squares_G = _segment_sum(label_R, (centred**2).repeat_interleave(lengths))
    whitened = centred * (squares_G / (count_G - 1).clamp(min=1) + VARIANCE_FLOOR).rsqrt()[label]
    return torch.where(_is_constant(x, label), 0.0, whitened).repeat_interleave(lengths)


def _segment_sum(label: Tensor, x: Tensor) -> Tensor:
    """Sum of x over the elements of each label (G)."""
    return torch.bincount(label, weights=x)


def _centred(x: Tensor, label: Tensor) -> Tensor:
    """Subtract each label's mean."""
    return x - (_segment_sum(label, x) / torch.bincount(label))[label]


def _is_constant(x: Tensor, label: Tensor) -> Tensor:
    """Whether all elements of the element's label are equal, bool: rounding of their mean must teach nothing."""
    shape = (int(label.max()) + 1 if len(label) else 0,)
    low_G = x.new_zeros(shape).scatter_reduce(0, label, x, "amin", include_self=False)
    high_G = x.new_zeros(shape).scatter_reduce(0, label, x, "amax", include_self=False)
    return (low_G == high_G)[label]


def trrpp(batch: Batch, knobs: TRRPP) -> tuple[Tensor, Tensor]:
    """Task-Relative REINFORCE++: returns whitened per (kind, role) (arXiv 2505.03335, eq. 8)."""
    advantages_R = whiten(batch.rewards_N, batch.kind_role_N, batch.lengths_N)
    return advantages_R, batch.rewards_N[batch.seq_index_R]


def reinforce_plus_plus(batch: Batch, knobs: ReinforcePP) -> tuple[Tensor, Tensor]:
    """REINFORCE++: returns whitened over the whole batch (arXiv 2501.03262)."""
    advantages_R = whiten(batch.rewards_N, torch.zeros_like(batch.kind_role_N), batch.lengths_N)
    return advantages_R, batch.rewards_N[batch.seq_index_R]


def gae(batch: Batch, knobs: GAE) -> tuple[Tensor, Tensor]:
    """Generalised advantages (arXiv 1506.02438, eq. 16), then centred per (kind, role) and divided by one deviation.

    The reward is on the last token, a KL penalty on each, and V = 0 after the last. Undiscounted:
    delta_t = r_t + V_{t+1} - V_t, A_t = Σ_j lambda^j delta_{t+j} and return_t = A_t + V_t.

    A (kind, role) whose rewards are all equal gets 0: what is left there is the critic's error. The deviation is that
    of all others together, within their (kind, role). With one (kind, role) this whitens over the batch.
    """
    assert batch.values_R is not None, "gae needs the critic's values"
    values_R, seq_index_R = batch.values_R.double(), batch.seq_index_R
    next_R = torch.zeros_like(values_R)
    next_R[:-1] = torch.where(seq_index_R[1:] == seq_index_R[:-1], values_R[1:], 0.0)
    raw_R = discounted_sum(batch.rewards_R + next_R - values_R, seq_index_R, knobs.lambda_)
    label_R = batch.kind_role_N[seq_index_R]
    is_constant_R = _is_constant(batch.rewards_N[seq_index_R], label_R)
    centred_R = torch.where(is_constant_R, 0.0, _centred(raw_R, label_R))
    freedom = int((~is_constant_R).sum()) - len(label_R[~is_constant_R].unique())
    variance = centred_R.square().sum() / max(freedom, 1)
    return centred_R * (variance + VARIANCE_FLOOR).rsqrt(), raw_R + values_R


def _group_relative(batch: Batch, scale: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Rewards centred in their group and scaled by ``scale(variance_G, size_G)``."""
    group_N, rewards_N = batch.group_N, batch.rewards_N
    size_G = torch.bincount(group_N)
    centred_N = _centred(rewards_N, group_N)
    variance_G = _segment_sum(group_N, centred_N**2) / (size_G - 1).clamp(min=1)
    scores_N = centred_N * scale(variance_G, size_G)[group_N]
    scores_N = torch.where(_is_constant(rewards_N, group_N), 0.0, scores_N)
    return scores_N[batch.seq_index_R], rewards_N[batch.seq_index_R]


def rloo(batch: Batch, knobs: RLOO) -> tuple[Tensor, Tensor]:
    """Reward minus the mean of the *other* members of its group (arXiv 2402.14740): n / (n - 1) times centred."""
    return _group_relative(batch, lambda _, size_G: size_G / (size_G - 1).clamp(min=1))


def grpo(batch: Batch, knobs: GRPO) -> tuple[Tensor, Tensor]:
    """(reward - mean) / (unbiased deviation + 1e-6) in its group (arXiv 2402.03300)."""
    return _group_relative(batch, lambda variance_G, _: 1 / (variance_G.sqrt() + DEVIATION_FLOOR))


def dr_grpo(batch: Batch, knobs: DrGRPO) -> tuple[Tensor, Tensor]:
    """Reward minus its group's mean (arXiv 2503.20783)."""
    return _group_relative(batch, lambda variance_G, _: torch.ones_like(variance_G))


ESTIMATORS: dict[type[Estimator], Callable[[Batch, Any], tuple[Tensor, Tensor]]] = {
    TRRPP: trrpp,
    ReinforcePP: reinforce_plus_plus,
    GAE: gae,
    RLOO: rloo,
    GRPO: grpo,
    DrGRPO: dr_grpo,
}
"""By the type of the estimator's options: from a batch and these to advantages and returns per
token, both float64 (R)."""
