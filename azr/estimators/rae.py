"""Role-conditioned advantages, of SPIRAL (arXiv 2506.24119)."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean
from typing import TYPE_CHECKING

from azr.config_numbers import Share
from azr.estimators.base import Estimator

if TYPE_CHECKING:
    from torch import Tensor

    from azr.algorithms.batch import Batch


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
