"""The policy's rank: scores responses, takes optimizer steps, hands its weights to the engines and to disk.

Legend: R response tokens of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from azr.algorithms.losses import Sums, policy_loss
from azr.algorithms.models import PolicyModel
from azr.algorithms.packing import PackedBatch
from azr.cluster.weight_buckets import SharedMemoryBucketWriter
from azr.cluster.weight_sync import Receiver, WeightUpdate, send_buckets
from azr.config import LOGPROB_CHUNK, WEIGHT_BUCKET_BYTES
from azr.hashed_files import HashedFile, hash_file
from azr.train.shards import TensorSpec, write_model
from azr.train.worker import RoleWorker, StepReport
from azr.train.zero3 import gathered, take_part, whole_shape


class PolicyScorer(RoleWorker):
    """What policy and reference share: both score responses."""

    def logprobs(self, batches: Sequence[PackedBatch]) -> list[Tensor]:
        """Per micro-batch (R, 2) in float32: log-probability of each response token at the rollout temperature, and
        entropy of its distribution. Collective: every rank brings as many micro-batches, fillers included."""
        return self._score(batches, lambda batch: torch.stack(self._forward(batch), dim=-1))

    def _forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        return self.engine(*batch.stream, batch.target_R, self.config.rollout.temperature)

    def _load(self, lr: float | None) -> None:
        train = self.config.train
        load = partial(
            PolicyModel.from_pretrained,
            logprob_chunk=LOGPROB_CHUNK,
            gradient_checkpointing=train.gradient_checkpointing and lr is not None,
        )
        self.engine = self._make_engine(load, self.config.model.path, lr)


class PolicyWorker(PolicyScorer):
    """One rank of the policy."""

    def build(self) -> None:
        self._load(self.config.train.policy_lr)
        self._writer: SharedMemoryBucketWriter | None = None

    def update(self, batches: Sequence[PackedBatch], normalizer: float) -> StepReport:
        """One optimizer step over all micro-batches of all ranks; they must carry advantages.

        `normalizer` divides the summed loss: the response tokens of the whole step. Collective, as `logprobs`.
        """
        return self._step(batches, partial(self._loss, normalizer=normalizer))

    def _loss(self, batch: PackedBatch, normalizer: float) -> tuple[Tensor, Sums, Tensor]:
        assert batch.advantages_R is not None
        logprobs_R, entropy_R = self._forward(batch)
        loss, sums = policy_loss(
            logprobs_R,
            entropy_R,
            advantages_R=batch.advantages_R,
            behaviour_logprobs_R=batch.behaviour_logprobs_R,
            old_logprobs_R=batch.old_logprobs_R,
            reference_logprobs_R=batch.reference_logprobs_R,
            normalizer=normalizer,
            config=self.config.algorithm,
        )
        return loss, sums, logprobs_R

    def send_weights(self, version: int, receivers: Sequence[Receiver], timeout_s: float) -> WeightUpdate | None:
        """Send the current weights to engines that are ready for them, see `azr.cluster.weight_sync`. Collective.

        Rank 0 returns what it sent. Tensors have Hugging Face names; a tied head is sent as well,
        because an engine may hold it apart. Raises as `send_buckets`; the policy stays usable then.
        """
        weights = gathered(list(self._named()), WEIGHT_BUCKET_BYTES, self.dtype)
        try:
            if self.rank != 0:
                return None
            self._writer = self._writer or SharedMemoryBucketWriter(WEIGHT_BUCKET_BYTES)
            return send_buckets(self._writer.pack(version, weights), self._writer, receivers, timeout_s)
        finally:
            take_part(weights)  # every rank gathers everything, also when an engine failed half-way

    def save_hf(self, folder: str) -> list[HashedFile]:
        """Writes a Hugging Face folder: safetensors in the compute type, config and tokenizer. Collective.

        Returns its files on rank 0, which alone writes. Raises OSError on every rank, as `save_checkpoint`.
        """
        # By name, which is safetensors' own order.
        named = sorted(self._named(tied=False), key=lambda pair: pair[0])
        weights = gathered(named, WEIGHT_BUCKET_BYTES, self.dtype)

        def write() -> list[HashedFile]:
            try:
                return self._write_hf(Path(folder), named, weights) if self.rank == 0 else []
            finally:
                take_part(weights)

        return self._write_together(write, folder)

    def _write_hf(
        self, folder: Path, named: Sequence[tuple[str, nn.Parameter]], weights: Iterator[tuple[str, Tensor]]
    ) -> list[HashedFile]:
        folder.mkdir(exist_ok=True)
        hf = self.engine.module.hf
        hf.config.save_pretrained(folder)
        hf.generation_config.save_pretrained(folder)
        AutoTokenizer.from_pretrained(self.config.model.path).save_pretrained(folder)
        small = [hash_file(path) for path in sorted(folder.rglob("*")) if path.is_file()]
        specs = [TensorSpec(name, self.dtype, whole_shape(parameter)) for name, parameter in named]
        return small + write_model(folder, specs, (weight for _, weight in weights))

    def _named(self, tied: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters with Hugging Face names; with `tied`, a shared one comes once per name."""
        return self.engine.module.hf.named_parameters(remove_duplicate=not tied)
