"""From a step's rewards to one advantage per response token, and the weights of its loss.

Everything is float64 inside, so that sums over a large batch do not depend on its order in float32.

Legend: N samples, R response tokens of all of them, concatenated in order; M samples of a mini-batch; G labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from azr.algorithms.batch import Batch
from azr.config import AlgorithmConfig, Estimator


def estimate_advantages(batch: Batch, estimator: Estimator) -> tuple[Tensor | None, Tensor | None]:
    """Return advantages, float32 (R), and the critic's targets, if the estimator has one.

    A batch's caps come after the estimator, and the KL of the reward last of all: it changes no baseline, no deviation
    and no cap. Both are None if a plug-in's estimator fails.
    """
    advantages_R = estimator.score(batch)
    if advantages_R is None:
        return None, None
    if batch.capped:
        is_capped_R = torch.tensor(batch.capped)[batch.seq_index_R]
        advantages_R = torch.where(is_capped_R, advantages_R.clamp(max=0), advantages_R)
    if batch.kl_R is not None:
        advantages_R = advantages_R - batch.kl_R
    return advantages_R.float(), batch.returns_R


def loss_weights(
    batch: Batch,
    algorithm: AlgorithmConfig,
    mini_batches: Sequence[Sequence[int]],
    kept: Sequence[Sequence[int]],
    max_tokens: int,
) -> Tensor | None:
    """Factor of each token's loss, float32 (R), as ``loss_weighting`` says; None for 1 throughout, which is token.

    An optimizer step divides its sum over K tokens, those of the samples in ``kept``, by K. A token of sample i, which
    has L_i, of a mini-batch of M samples is given

        w = K share_i / L_i

    so sample i's mean loss counts share_i in that step, however many others have no gradient and were left out:

        trajectory  share_i = 1 / M
        kind_role   share_i = v_i / (sum of v over the (kind, role) in the mini-batch · M of i's (kind, role)), where v
                    is ``proposer_share`` for proposers and what it lacks of 1 for solvers
        constant    share_i = L_i / (max_tokens M)                             (arXiv 2503.20783, section 3.2)

    Samples without tokens do not count in the first two, whose shares add up to 1: w is 1 on average over all tokens
    of a mini-batch of which nothing was left out.
    """
    is_auto = algorithm.loss_weighting == "auto"
    weighting = algorithm.estimator.loss_weighting if is_auto else algorithm.loss_weighting
    if weighting == "token":
        return None
    label_N, value_N = torch.zeros_like(batch.kind_role_N), torch.ones(len(batch.kind_roles), dtype=torch.float64)
    if weighting == "kind_role":
        share = algorithm.proposer_share
        values = [share if role == "proposer" else 1 - share for _, role in batch.kind_roles]
        label_N, value_N = batch.kind_role_N, torch.tensor(values, dtype=torch.float64)
    weight_N = torch.zeros(len(label_N), dtype=torch.float64)
    for members, remaining in zip(mini_batches, kept, strict=True):
        tokens = sum(batch.response_lengths[i] for i in remaining)
        if weighting == "constant":
            weight_N[list(remaining)] = tokens / (max_tokens * len(members))
        else:
            index_M = torch.tensor(list(members))
            lengths_M, label_M = batch.lengths_N[index_M], label_N[index_M]
            nonempty_M = (lengths_M > 0).double()
            share_M = value_N[index_M] * nonempty_M / label_M.bincount(nonempty_M)[label_M].clamp(min=1)
            weight_N[index_M] = share_M / (share_M.sum() or 1) * tokens / lengths_M.clamp(min=1)
    return weight_N[batch.seq_index_R].float()
