"""The critic's rank: predicts returns and learns from those that came.

Legend: R response tokens of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from azr.algorithms.losses import Sums, value_loss
from azr.algorithms.models import CriticModel
from azr.algorithms.packing import PackedBatch
from azr.train.worker import RoleWorker, StepReport


class CriticWorker(RoleWorker):
    """One rank of the critic."""

    def build(self) -> None:
        train, model = self.config.train, self.config.model
        load = partial(CriticModel.from_pretrained, gradient_checkpointing=train.gradient_checkpointing)
        self.engine = self._make_engine(load, model.path, train.critic_lr)

    def values(self, batches: Sequence[PackedBatch]) -> list[Tensor]:
        """Per micro-batch (R,) in float32: expected return before each response token.

        Collective: every rank brings as many micro-batches, fillers included.
        """
        return self._score(batches, self._forward)

    def update(self, batches: Sequence[PackedBatch], normalizer: float) -> StepReport:
        """One optimizer step over all micro-batches of all ranks; they must carry old values and returns.

        `normalizer` divides the summed loss: the response tokens of the whole step. Collective, as `values`.
        """
        return self._step(batches, partial(self._loss, normalizer=normalizer))

    def _loss(self, batch: PackedBatch, normalizer: float) -> tuple[Tensor, Sums, Tensor]:
        assert batch.values_R is not None and batch.returns_R is not None
        values_R = self._forward(batch)
        loss, sums = value_loss(
            values_R,
            old_values_R=batch.values_R,
            returns_R=batch.returns_R,
            normalizer=normalizer,
        )
        return loss, sums, values_R

    def _forward(self, batch: PackedBatch) -> Tensor:
        return self.engine(*batch.stream)
