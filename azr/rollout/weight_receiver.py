"""Receiver of weight buckets inside a vLLM worker, as an engine of vLLM's weight-transfer interface.

vLLM imports this module in each worker for the worker's extension class. The import registers the engine, so no entry
point has to be installed. A transfer of `azr.cluster.weight_transfers` brings the bytes; loading them is the same for
all.
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

from azr.cluster.weight_buckets import WeightBucket, WeightDigest
from azr.cluster.weight_transfers import Inbox, make_inbox

BACKEND = "azr"
"""Name of the engine in vLLM's registry."""


@dataclass
class BucketInitInfo(WeightTransferInitInfo):
    """Connection data of a transfer whose ends meet before the first bucket."""

    transfer: str
    info: dict[str, Any]
    """Message of the outbox to its inboxes."""


@dataclass
class BucketUpdateInfo(WeightTransferUpdateInfo):
    bucket: dict[str, Any]
    """`WeightBucket` as plain data for vLLM's message queue."""


class BucketWeightTransferEngine(WeightTransferEngine[BucketInitInfo, BucketUpdateInfo]):
    """Loads weights in checkpoint format (Hugging Face names).

    vLLM repacks linear weights after loading, and the remaining parameters cannot be loaded into. Its layerwise reload
    restores each layer, loads it, and repacks it.
    """

    init_info_cls = BucketInitInfo
    update_info_cls = BucketUpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._names = all_names(self.model)
        self._inboxes: dict[str, Inbox] = {}
        self._expected = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        self._open = False
        self._reset()

    def _reset(self) -> None:
        self._digest: WeightDigest | None = None
        self._hexdigest = ""
        self._loaded: set[str] = set()
        self._tied_done: set[str] = set()
        self._nbytes = 0

    def _inbox(self, transfer: str) -> Inbox:
        if transfer not in self._inboxes:
            self._inboxes[transfer] = make_inbox(transfer, self.device)
        return self._inboxes[transfer]

    def init_transfer_engine(self, init_info: BucketInitInfo) -> None:
        """Meet the sender."""
        self._inbox(init_info.transfer).connect(init_info.info, self.parallel_config)

    def start_weight_update(self) -> None:
        """Start an update, also after one that failed half-way."""
        if self._open:
            self.finish_weight_update()
        self._let_go()
        self._reset()
        initialize_layerwise_reload(self.model)
        self._open = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load one bucket. The base class would also synchronise an accelerator, which a CPU build lacks."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def receive_weights(self, update_info: BucketUpdateInfo) -> None:
        """Load the bucket. Raises ValueError, before anything is loaded, if its bytes differ from the sent ones."""
        bucket = msgspec.convert(update_info.bucket, WeightBucket)
        # The bytes are this process's own: a layer whose parts come in two buckets keeps the first part until then.
        region = self._inbox(bucket.transfer).take(bucket)
        self._digest = self._digest or WeightDigest(full=bucket.full_check)
        self._digest.add(bucket.slots, region)
        self._hexdigest = self._digest.hexdigest()
        if self._hexdigest != bucket.digest:
            raise ValueError(f"weight bucket {bucket.index} of version {bucket.version} arrived damaged or out of turn")
        self._nbytes += bucket.nbytes
        self._loaded |= self.model.load_weights(self._under_all_names(bucket.tensors(region)))

    def _under_all_names(self, received: list[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each tensor under all of its names: a parameter with several is sent once, and a tied output head may
        have a packed copy."""
        for name, tensor in received:
            names = self._names.get(name, [name])
            if names[0] not in self._tied_done:
                self._tied_done |= {names[0]} if len(names) > 1 else set()
                yield from ((its, tensor) for its in names)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        self._open = False
        self._let_go()

    def _let_go(self) -> None:
        for inbox in self._inboxes.values():
            inbox.close()
        if self.device.type == "cuda":
            # What loading took goes back to the GPU, where the KV cache may be waiting for it.
            torch.cuda.empty_cache()

    def report(self) -> dict[str, Any]:
        """Return digest and bytes of the last update, and the parameters of the model that it omitted."""
        missing = sorted(self._expected - self._loaded)
        return {"digest": self._hexdigest, "nbytes": self._nbytes, "missing": missing}

    def shutdown(self) -> None:
        """Release the senders' memory."""
        self._let_go()


class WeightReportExtension:
    """Adds two calls to vLLM's worker class; vLLM mixes it in by its qualified name."""

    weight_transfer_engine: BucketWeightTransferEngine

    def attempt(self, method: str, *args: Any) -> str | None:
        """Call a method of the worker; return its error as text.

        After an exception of one worker vLLM would leave the answers of the others for the next call.
        """
        try:
            getattr(self, method)(*args)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def report_weight_update(self) -> dict[str, Any]:
        return self.weight_transfer_engine.report()


def all_names(model: nn.Module) -> dict[str, list[str]]:
    """Map each name of a parameter that has several names to all of them, in the model's order."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name: its for its in names.values() if len(its) > 1 for name in its}


WeightTransferEngineFactory.register_engine(BACKEND, BucketWeightTransferEngine)
