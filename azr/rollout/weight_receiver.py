"""Receives weight buckets inside a vLLM worker, as an engine of vLLM's own weight-transfer interface.

A worker process imports this module because it is named as the worker's extension class; that import registers the
engine there, so no entry point has to be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import nn
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from azr.cluster.weight_buckets import WeightBucket, WeightDigest, read_bucket

SHARED_MEMORY = "azr_shared_memory"
"""Name of this module's engine in vLLM's registry."""


@dataclass
class SharedMemoryInitInfo(WeightTransferInitInfo):
    """Nothing to agree on beforehand: every bucket says where its block is."""


@dataclass
class SharedMemoryUpdateInfo(WeightTransferUpdateInfo):
    bucket: dict[str, Any]
    """A `WeightBucket` as the plain data that vLLM's message queue carries."""


class SharedMemoryWeightTransferEngine(WeightTransferEngine[SharedMemoryInitInfo, SharedMemoryUpdateInfo]):
    """Loads weights in checkpoint format (Hugging Face names) from shared memory of the same node.

    vLLM repacks linear weights after loading, and the parameters it leaves behind cannot be loaded into. Its layerwise
    reload restores each layer, loads it, and repacks it.
    """

    init_info_cls = SharedMemoryInitInfo
    update_info_cls = SharedMemoryUpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._aliases = tied_names(self.model)
        self._alias_names = {alias for aliases in self._aliases.values() for alias in aliases}
        """Names that are loaded along with the first name of the same parameter."""
        self._expected = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        self._open = False
        self._reset()

    def _reset(self) -> None:
        self._digest = WeightDigest()
        self._loaded: set[str] = set()
        self._nbytes = 0

    def init_transfer_engine(self, init_info: SharedMemoryInitInfo) -> None:
        """No connection to make."""

    def start_weight_update(self) -> None:
        """Start over, also when the last update broke off half-way."""
        if self._open:
            self.finish_weight_update()
        self._reset()
        initialize_layerwise_reload(self.model)
        self._open = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load one bucket. The base class would also synchronise an accelerator, which a CPU build lacks."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def receive_weights(self, update_info: SharedMemoryUpdateInfo) -> None:
        """Raises ValueError, before anything is loaded, when the bytes are not those that were sent."""
        bucket = msgspec.convert(update_info.bucket, WeightBucket)
        received = read_bucket(bucket)
        for name, tensor in received:
            self._digest.add(name, tensor)
        if self._digest.hexdigest() != bucket.digest:
            raise ValueError(f"weight bucket {bucket.index} of version {bucket.version} arrived damaged or out of turn")
        self._nbytes += bucket.nbytes
        self._loaded |= self.model.load_weights(self._with_aliases(received))

    def _with_aliases(self, received: list[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Copies, since a layer whose parts come in two buckets keeps the first part while the block is overwritten.

        Tied weights are loaded under each of their names: a tied output head has a packed copy of its own.
        """
        for name, tensor in received:
            if name in self._alias_names:
                continue
            copy = tensor.clone()
            for alias in (name, *self._aliases.get(name, ())):
                yield alias, copy

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        self._open = False

    def report(self) -> dict[str, Any]:
        """What the last update brought: digest, bytes, and parameters of the model that it left out."""
        missing = sorted(self._expected - self._loaded)
        return {"digest": self._digest.hexdigest(), "nbytes": self._nbytes, "missing": missing}

    def shutdown(self) -> None:
        """No connection to close."""


class WeightReportExtension:
    """Adds one call to vLLM's worker class; vLLM mixes it in by its qualified name."""

    weight_transfer_engine: SharedMemoryWeightTransferEngine

    def report_weight_update(self) -> dict[str, Any]:
        return self.weight_transfer_engine.report()


def tied_names(model: nn.Module) -> dict[str, list[str]]:
    """For each parameter with several names: its first name, and the others."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first: others for first, *others in names.values() if others}


WeightTransferEngineFactory.register_engine(SHARED_MEMORY, SharedMemoryWeightTransferEngine)
