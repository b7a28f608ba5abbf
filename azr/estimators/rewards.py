"""Estimators from rewards alone, without a critic."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean
from typing import TYPE_CHECKING

from azr.config_numbers import Share
from azr.estimators.base import Estimator

if TYPE_CHECKING:
    from torch import Tensor

    from azr.algorithms.batch import Batch

DEVIATION_FLOOR = 1e-6
"""Added to GRPO's standard deviation."""


class TRRPP(Estimator):
    """Task-Relative REINFORCE++, the paper's estimator: rewards whitened per (kind, role). No critic.

    Source: arXiv 2505.03335, eq. 8.
    """

    name = "trrpp"

    def score(self, batch: Batch) -> Tensor:
        return batch.whitened(batch.kind_role_N)


class ReinforcePP(Estimator):
    """REINFORCE++: rewards whitened over the whole batch (arXiv 2501.03262)."""

    name = "reinforce++"

    def score(self, batch: Batch) -> Tensor:
        return batch.whitened(batch.kind_role_N.new_zeros(len(batch.rewards)))


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


class RAE(Estimator):
    """Role-conditioned advantages, as in SPIRAL: reward minus a moving average of what its (kind, role) earned. No
    critic, and no group."""

    name = "rae"

    decay: Share = 0.95
    """How much of the average each step keeps; the rest is the step's mean reward."""

    def score(self, batch: Batch) -> Tensor:
        """R - b, where each step first moves its (kind, role)'s b to decay · b + (1 - decay) · mean(R). In a (kind,
        role)'s first step b is the mean."""
        earned = defaultdict[str, list[float]](list)
        for label, reward in zip(batch.kind_roles, batch.rewards, strict=True):
            earned["/".join(label)].append(reward)
        for name, rewards in earned.items():
            now = mean(rewards)
            before = self.state.get(name, now)
            self.state[name] = before + (1 - self.decay) * (now - before)
        baseline_N = batch.rewards_N.new_tensor([self.state["/".join(label)] for label in batch.kind_roles])
        return (batch.rewards_N - baseline_N)[batch.seq_index_R]
