"""The policy's rank: scores responses, takes optimizer steps, hands its weights to the engines and to disk.

Legend: R response tokens of one micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from ray.actor import ActorHandle
from ray.exceptions import RayActorError
from torch import Tensor, nn
from transformers import AutoTokenizer

from azr.algorithms.losses import Sums, policy_loss
from azr.algorithms.models import PolicyModel
from azr.algorithms.packing import PackedBatch
from azr.cluster.weight_buckets import SharedMemoryBucketWriter
from azr.config import LOGPROB_CHUNK, WEIGHT_BUCKET_BYTES
from azr.hashed_files import HashedFile, hash_file
from azr.train.shards import TensorSpec, write_model
from azr.train.worker import RoleWorker, StepReport
from azr.train.zero3 import gathered, take_part, whole_shape


@dataclass(frozen=True, slots=True)
class PushReport:
    """One push of the weights to every engine."""

    version: int
    digest: str
    """Of all names, types, shapes and bytes that were sent; every engine has confirmed it."""
    nbytes: int
    """Sent once, however many engines read it."""
    seconds: float


def ask_all(engines: Sequence[ActorHandle], timeout_s: float, method: str, *args: object) -> list[Any]:
    """What every engine answers to the same question; see `ask_each`."""
    return ask_each(engines, timeout_s, method, [args] * len(engines))


def ask_each(
    engines: Sequence[ActorHandle], timeout_s: float, method: str, args: Sequence[tuple[object, ...]]
) -> list[Any]:
    """What every engine answers to its own question.

    Raises TimeoutError, naming the late ones, when it takes longer than `timeout_s`, and RuntimeError, naming the dead
    one, when an engine dies meanwhile.
    """
    refs = [getattr(engine, method).remote(*own) for engine, own in zip(engines, args, strict=True)]
    _, late = ray.wait(refs, num_returns=len(refs), timeout=timeout_s)
    if late:
        numbers = sorted(refs.index(ref) for ref in late)
        raise TimeoutError(f"the policy waited {timeout_s:g} s for engines {numbers} to answer {method}")
    return [_answer(ref, number, method) for number, ref in enumerate(refs)]


def _answer(ref: ray.ObjectRef, number: int, method: str) -> Any:
    try:
        return ray.get(ref)
    except RayActorError as error:
        # Not as itself: to the driver it would look like the death of this rank.
        raise RuntimeError(f"engine {number} died while the policy waited for it to answer {method}") from error


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

    def push_weights(self, version: int, engines: Sequence[ActorHandle], timeout_s: float) -> PushReport | None:
        """Send the current weights to every engine; the report on rank 0, None on the others. Collective.

        An engine is an actor with `begin_update(version)`, which answers with Ray's id of its node,
        `load_bucket(bucket[, block])`, and `finish_update(version, digest)`, which echoes `version` and `digest`. The
        block's bytes go along to engines of other nodes. Tensors have Hugging Face names; a tied head is sent as well,
        because an engine may hold it apart. Raises TimeoutError when an engine takes longer than `timeout_s` over one
        of these calls, and whatever an engine raises; the policy stays usable then.
        """
        started = time.perf_counter()
        weights = gathered(list(self._named()), WEIGHT_BUCKET_BYTES, self.dtype)
        if self.rank != 0:
            take_part(weights)
            return None
        ask = partial(ask_all, engines, timeout_s)
        self._writer = self._writer or SharedMemoryBucketWriter(WEIGHT_BUCKET_BYTES >> 20)
        nbytes, digest = 0, ""
        try:
            here = ray.get_runtime_context().get_node_id()
            near = [node == here for node in ask("begin_update", version)]
            for bucket in self._writer.pack(version, weights):
                block = None if all(near) else ray.put(self._writer.filled(bucket))
                own = [(bucket,) if is_near else (bucket, block) for is_near in near]
                ask_each(engines, timeout_s, "load_bucket", own)
                nbytes, digest = nbytes + bucket.nbytes, bucket.digest
        finally:
            take_part(weights)  # when an engine failed half-way, the other ranks still wait for this one
        for engine, echo in enumerate(ask("finish_update", version, digest)):
            if (echo.version, echo.digest) != (version, digest):
                raise RuntimeError(f"engine {engine} was sent weights {version} ({digest}) and has {echo}")
        return PushReport(version, digest, nbytes, time.perf_counter() - started)

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
