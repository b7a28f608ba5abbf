"""Estimators that compare the responses to one prompt.

Legend: N samples, R response tokens, G groups, of n samples each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from azr.estimators.base import Estimator

if TYPE_CHECKING:
    from torch import Tensor

    from azr.algorithms.batch import Batch

DEVIATION_FLOOR = 1e-6
"""Added to GRPO's standard deviation."""


class RLOO(Estimator):
    """RLOO: reward minus the mean of the *other* responses to the same prompt (arXiv 2402.14740)."""

    name, compares_groups = "rloo", True

    def score(self, batch: Batch) -> Tensor:
        """n / (n - 1) times the centred reward."""
        group_N = batch.group_N
        size_G = group_N.bincount()
        scale_G = size_G / (size_G - 1).clamp(min=1)
        return (batch.centred(group_N) * scale_G[group_N])[batch.seq_index_R]


class GRPO(Estimator):
    """GRPO: (reward - mean) / (unbiased deviation + 1e-6) in its group (arXiv 2402.03300)."""

    name, compares_groups = "grpo", True

    def score(self, batch: Batch) -> Tensor:
        group_N = batch.group_N
        centred_N = batch.centred(group_N)
        variance_G = group_N.bincount(centred_N**2) / (group_N.bincount() - 1).clamp(min=1)
        return (centred_N * (1 / (variance_G.sqrt() + DEVIATION_FLOOR))[group_N])[batch.seq_index_R]


class DrGRPO(Estimator):
    """Dr. GRPO: reward minus the mean of its group (arXiv 2503.20783); see `algorithm.loss_weighting`."""

    name, compares_groups, loss_weighting = "dr_grpo", True, "constant"

    def score(self, batch: Batch) -> Tensor:
        return batch.centred(batch.group_N)[batch.seq_index_R]
