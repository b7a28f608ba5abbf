"""Estimators that whiten rewards over a whole step, with each response counting as many times as it has tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azr.estimators.base import Estimator

if TYPE_CHECKING:
    from torch import Tensor

    from azr.algorithms.batch import Batch


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
