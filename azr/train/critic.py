"""The critic's rank: predicts returns and learns from the observed ones.

Legend: R response tokens of one micro-batch, R_k those of this rank's whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from azr.algorithms.losses import Sums, value_loss
from azr.algorithms.models import CriticModel
from azr.algorithms.packing import PackedBatch
from azr.train.model_worker import ModelWorker, StepReport
from azr.train.train_batch import RankBatch


class CriticWorker(ModelWorker):
    """One rank of the critic."""

    def build(self) -> None:
        train, model = self.config.train, self.config.model
        load = partial(
            CriticModel.from_pretrained, gradient_checkpointing=train.gradient_checkpointing, lora=train.lora
        )
        self.engine = self._make_engine(load, model.path, train.critic_lr, self.config.algorithm.critic_mini_batches)

    def values(self, batch: RankBatch) -> Tensor:
        """Float32 (R_k): expected return before each response token. Collective."""
        return self._score(batch, self.engine)

    def update(self, batch: RankBatch, columns: Mapping[str, Tensor]) -> list[StepReport]:
        """Take one optimizer step per mini-batch. Collective.

        `columns` (R_k): `azr.algorithms.batch.Batch.critic_columns`.
        """
        return self._take_steps(batch, columns, self._loss)

    def _loss(self, batch: PackedBatch, columns: dict[str, Tensor], normalizer: float) -> tuple[Tensor, Sums]:
        arrays = {f"{name}_R": values_R for name, values_R in columns.items()}
        return value_loss(self.engine(batch), **arrays, normalizer=normalizer)
