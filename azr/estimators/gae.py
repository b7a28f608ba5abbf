"""Generalised advantage estimation (arXiv 1506.02438), with a critic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azr.config_numbers import Count, CountOrZero, Share
from azr.estimators.base import VARIANCE_FLOOR, Estimator

if TYPE_CHECKING:
    from torch import Tensor

    from azr.algorithms.batch import Batch


class GAE(Estimator):
    """Generalised advantage estimation from a critic, as in PPO, then centred per (kind, role) and divided by the
    deviation of the batch."""

    name = "gae"

    lambda_: Share = 1.0
    """λ, decay per token of later errors: 0 trusts the critic, 1 the rewards."""
    critic_mini_batches: Count = 1
    """Optimizer steps of the critic per training step; the batch is split into as many mini-batches."""
    critic_warmup_steps: CountOrZero = 0
    """Training steps at the beginning of a run in which only the critic learns."""

    def score(self, batch: Batch) -> Tensor:
        """Eq. 16, then centred per (kind, role) and divided by one deviation. Fills in the critic's targets.

        The reward is on the last token, a KL penalty on each, and V = 0 after the last. Undiscounted:
        delta_t = r_t + V_{t+1} - V_t, A_t = Σ_j lambda^j delta_{t+j} and return_t = A_t + V_t.

        A (kind, role) whose rewards are all equal gets 0: what is left there is the critic's error. The deviation is
        that of all others together, within their (kind, role). With one (kind, role) this whitens over the batch.
        """
        assert batch.values_R is not None, "gae needs the critic's values"
        values_R = batch.values_R.double()
        next_R = values_R.roll(-1).index_fill(0, batch.last_token_N, 0.0)
        raw_R = batch.discounted(batch.rewards_R + next_R - values_R, self.lambda_)
        batch.returns_R = (raw_R + values_R).float()
        label_R = batch.kind_role_N[batch.seq_index_R]
        centred_R, differs_R = batch.centred_tokens(raw_R, label_R)
        freedom = int(differs_R.sum()) - len(label_R[differs_R].unique())
        variance = centred_R.square().sum() / max(freedom, 1)
        return centred_R * (variance + VARIANCE_FLOOR).rsqrt()
