"""The ranks of policy, reference and critic: score responses, train, hand the policy's weights to engines and disk.

Legend: R response tokens of one micro-batch, R_k those of this rank's whole batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import chain
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer

from azr.algorithms.lora import is_four_bit, iter_adapter_weights, iter_base_weights, peft_config, without_adapters
from azr.algorithms.losses import Sums, policy_loss, value_loss
from azr.algorithms.models import CriticModel, PolicyModel
from azr.algorithms.packing import PackedBatch
from azr.cluster.push_choice import bucket_bytes
from azr.cluster.weight_buckets import Receiver
from azr.cluster.weight_sync import PushReport, send_weights
from azr.cluster.weight_transfers import OUTBOXES
from azr.config import LOGPROB_CHUNK, WEIGHT_BUCKET_BYTES
from azr.files import HashedFile, hash_file
from azr.train.adapter_files import ADAPTER_FILE, write_base
from azr.train.model_worker import ModelWorker, StepReport
from azr.train.shards import TensorSpec, write_model, write_safetensors
from azr.train.train_batch import RankBatch
from azr.train.whole import WholeEngine
from azr.train.zero3 import gather_on_host, iter_full_params, whole_shape


class PolicyWorker(ModelWorker):
    """One rank of the policy, or of the reference: the frozen policy that the KL is measured against."""

    def build(self) -> None:
        train, is_trained = self.config.train, self.model_role == "policy"
        load = partial(
            PolicyModel.from_pretrained,
            logprob_chunk=LOGPROB_CHUNK,
            gradient_checkpointing=train.checkpointing if is_trained else "none",
            lora=train.lora,
            fused_head=self.device.type == "cuda" and train.kernels != "plain" and find_spec("triton") is not None,
        )
        lr, mini_batches = train.policy_lr if is_trained else None, self.config.algorithm.policy_mini_batches
        self.engine = self._make_engine(load, lr, mini_batches)
        if not is_trained:
            return
        control = self.control if self.world_size > 1 else None
        self._outbox = OUTBOXES[self.config.cluster.push](self.device, control, self.config.rollout.tensor_parallel)

    def logprobs(self, batch: RankBatch) -> Tensor:
        """Float32 (R_k): log-probability of each response token at the rollout temperature, natural log. Collective."""
        temperature = self.config.rollout.temperature
        return self._score(batch, lambda micro: self.engine(micro, temperature, with_entropy=False)[0])

    def reference_logprobs(self, batch: RankBatch) -> Tensor:
        """Return `logprobs` of the model without its adapters: the reference policy of a run that trains adapters."""
        with without_adapters(self.engine.module):
            return self.logprobs(batch)

    def update(
        self, batch: RankBatch, normalizers: Sequence[float], columns: Mapping[str, Tensor], trace: str = ""
    ) -> tuple[list[StepReport], Tensor, str]:
        """Take one optimizer step per mini-batch. Collective.

        `columns` (R_k): `azr.algorithms.batch.Batch.policy_columns`. `trace`: file for a profile of rank 0, if wanted.
        Returns, float32 (R_k), the log-probability of each response token when its loss was computed, before the step
        of its mini-batch; and of a profile the table of what took longest.
        """
        before: list[Tensor] = []
        temperature, algorithm = self.config.rollout.temperature, self.config.algorithm

        def loss_fn(micro: PackedBatch, of_micro: dict[str, Tensor], normalizer: float) -> tuple[Tensor, Sums]:
            def of_tokens(logprobs: Tensor, entropy: Tensor, at: slice) -> tuple[Tensor, Sums]:
                arrays = {name: column_R[at] for name, column_R in of_micro.items()}
                return policy_loss(logprobs, entropy, **arrays, normalizer=normalizer, config=algorithm)

            everything = slice(None)
            if algorithm.by_sequence:
                logprobs_R, entropy_R = self.engine(micro, temperature)
                before.append(logprobs_R.detach())
                return of_tokens(logprobs_R, entropy_R, everything)
            loss, logprobs_R, entropy_R = self.engine(
                micro, temperature, token_loss=lambda logprobs, entropy, at: of_tokens(logprobs, entropy, at)[0]
            )
            before.append(logprobs_R)
            return loss, of_tokens(logprobs_R, entropy_R, everything)[1]

        kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (self.device.type == "cuda")]
        with profile(activities=kinds) if trace and self.rank == 0 else nullcontext() as profiled:
            steps = self._take_steps(batch, normalizers, columns, loss_fn)
            logprobs_R = torch.cat(before).cpu()
        if profiled is None:
            return steps, logprobs_R, ""
        Path(trace).parent.mkdir(parents=True, exist_ok=True)
        profiled.export_chrome_trace(trace)
        longest = f"self_{self.device.type}_time_total"
        return steps, logprobs_R, profiled.key_averages().table(sort_by=longest, row_limit=20, max_name_column_width=50)

    def send_weights(self, version: int, receivers: Sequence[Receiver], timeout_s: float) -> PushReport | None:
        """Send the current weights to engines that are ready for them, see `azr.cluster.weight_sync`. Collective.

        Adapters are merged into the weights, in float32, before these are rounded to the compute type.
        Rank 0 returns a report. Tensors have Hugging Face names; one that has several comes once. Raises as
        `azr.cluster.weight_sync.send_weights`; the policy stays usable then.
        """
        every = self.config.cluster.push_check_every
        named = list(self.engine.module.named_weights())
        sizes = [prod(whole_shape(parameter)) * self.dtype.itemsize for _, parameter in named]
        bucket = bucket_bytes(self._outbox.transfer, sum(sizes), max(sizes))
        with self._parameters_on_device():
            weights = iter_full_params(self.engine, named, bucket, self.dtype)
            full_check = every > 0 and version % every == 0
            return send_weights(self._outbox, version, weights, bucket, receivers, timeout_s, full_check=full_check)

    def save_hf(self, folder: str) -> list[HashedFile]:
        """Writes a Hugging Face folder: safetensors in the compute type, config and tokenizer. Collective.

        Of a model with adapters it has these instead of the weights, as peft writes them, and `BASE_FILE` says which
        files they belong to. Returns its files on rank 0, which alone writes. Raises OSError on every rank, as
        `save_checkpoint`.
        """
        hf = self.engine.module.hf
        weights = iter_adapter_weights(hf) if self.config.train.lora.rank else self.engine.module.named_weights()
        # By name, which is safetensors' own order.
        named = sorted(weights, key=lambda pair: pair[0])
        bucket, is_whole = WEIGHT_BUCKET_BYTES["host"], isinstance(self.engine, WholeEngine)
        gathered = gather_on_host(named, bucket, self.dtype, self._away.on_host, self.control, is_whole)

        def write() -> list[HashedFile]:
            try:
                return self._write_hf(Path(folder), named, gathered) if self.rank == 0 else []
            finally:
                for _ in gathered:
                    pass  # a rank that writes nothing, or no more, takes part in gathering

        return self._write_together(write, folder)

    def _write_hf(
        self, folder: Path, named: Sequence[tuple[str, nn.Parameter]], weights: Iterator[tuple[str, Tensor]]
    ) -> list[HashedFile]:
        folder.mkdir(parents=True, exist_ok=True)
        model, lora = self.config.model, self.config.train.lora
        hf = self.engine.module.hf
        hf_config = copy.deepcopy(hf.config)
        if lora.four_bit:
            del hf_config.quantization_config  # the folder is of a model in the compute type
        hf_config.save_pretrained(folder)
        hf.generation_config.save_pretrained(folder)
        AutoTokenizer.from_pretrained(model.path).save_pretrained(folder)
        if lora.rank:
            peft_config(lora, model.path).save_pretrained(folder)
            in_four_bits = [name for name, parameter in iter_base_weights(hf) if is_four_bit(parameter)]
            write_base(folder, self.base_files, in_four_bits)
        small = [hash_file(path) for path in sorted(folder.rglob("*")) if path.is_file()]
        specs = [TensorSpec(name, self.dtype, whole_shape(parameter)) for name, parameter in named]
        tensors = (weight for _, weight in weights)
        if lora.rank:
            return [*small, write_safetensors(folder / ADAPTER_FILE, {"format": "pt"}, specs, tensors)]
        # Constants that a folder holds beside the weights, such as those of Apertus' activation.
        kept = hf.state_dict().keys()
        constants = {name: buffer.to(self.dtype) for name, buffer in hf.named_buffers() if name in kept}
        specs += [TensorSpec(name, self.dtype, tuple(each.shape)) for name, each in constants.items()]
        return small + write_model(folder, specs, chain(tensors, constants.values()))


class CriticWorker(ModelWorker):
    """One rank of the critic."""

    def build(self) -> None:
        train = self.config.train
        load = partial(CriticModel.from_pretrained, gradient_checkpointing=train.checkpointing, lora=train.lora)
        self.engine = self._make_engine(load, train.critic_lr, self.config.algorithm.critic_mini_batches)

    def values(self, batch: RankBatch) -> Tensor:
        """Float32 (R_k): expected return before each response token. Collective."""
        return self._score(batch, self.engine)

    def update(self, batch: RankBatch, normalizers: Sequence[float], columns: Mapping[str, Tensor]) -> list[StepReport]:
        """Take one optimizer step per mini-batch. Collective.

        `columns` (R_k): `azr.algorithms.batch.Batch.critic_columns`.
        """

        def loss_fn(micro: PackedBatch, of_micro: dict[str, Tensor], normalizer: float) -> tuple[Tensor, Sums]:
            return value_loss(self.engine(micro), **of_micro, normalizer=normalizer)

        return self._take_steps(batch, normalizers, columns, loss_fn)
