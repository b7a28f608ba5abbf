"""Receiver of weight buckets inside a vLLM worker, as an engine of vLLM's weight-transfer interface.

vLLM imports this module in each worker for the worker's extension class. The import registers the engine, so no entry
point has to be installed. A transfer of `azr.cluster.weight_transfers` brings the bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from azr.cluster.weight_buckets import Inbox, TensorSlot, WeightBucket, WeightDigest
from azr.cluster.weight_transfers import INBOXES

log = logging.getLogger(__name__)
BACKEND = "azr"
"""Name of the engine in vLLM's registry."""
PLAIN = {NoneType, UnquantizedLinearMethod, UnquantizedEmbeddingMethod}
"""Methods of layers that compute with their parameters as loaded, unless vLLM packs them for a CPU."""


class CopyPlan(TorchDispatchMode):
    """The copies that load a model: slices of sent tensors into parts of its parameters, all of a bucket at once.

    vLLM's loader takes a third of a millisecond of a CPU for each tensor, whatever its size. For the plan it runs once,
    on tensors without memory (`blanks`, by name), and what it would copy is noted.
    """

    def __init__(self, model: Any, sent: Mapping[str, TensorSlot], names: Mapping[str, Sequence[str]]) -> None:
        """`sent`: by name. `names`: all names of a parameter, by each. Raises ValueError, or what the loader raises, if
        loading this model is more than copying slices."""
        super().__init__()
        for layer in model.modules():
            if type(getattr(layer, "quant_method", None)) not in PLAIN or hasattr(layer, "cpu_linear"):
                raise ValueError(f"{type(layer).__name__} computes with other tensors than it has loaded")
        self._model, self._addresses = model, [parameter.data_ptr() for parameter in model.parameters()]
        shapes = {name: (slot.shape, getattr(torch, slot.dtype)) for name, slot in sent.items()}
        self.blanks = {name: torch.empty(shape, dtype=dtype, device="meta") for name, (shape, dtype) in shapes.items()}
        self._senders = {blank.untyped_storage(): name for name, blank in self.blanks.items()}
        self._parameters = {parameter.untyped_storage() for parameter in model.parameters()}
        self._copies: dict[str, list[tuple[Tensor, tuple[int, ...], int]]] = {name: [] for name in sent}
        """By name: a part of a parameter, and stride and offset of the slice that fills it."""
        with self:
            model.load_weights((its, blank) for name, blank in self.blanks.items() for its in names.get(name, [name]))
        if not all(self._copies.values()):
            raise ValueError("the loader takes no part of some weight")

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default and args[0].shape == args[1].shape:
            part, source = args[:2]
            sender = self._senders.get(source.untyped_storage())
            if sender is not None and part.untyped_storage() in self._parameters:
                self._copies[sender].append((part, source.stride(), source.storage_offset()))
                return part
        if function.is_view or (function is torch.ops.aten.fill_.Scalar and not args[0].numel()):
            return function(*args, **(kwargs or {}))
        raise ValueError(f"{function} is more than a copy of a slice")

    def stands(self) -> bool:
        """Whether the model's parameters are still where they were."""
        return self._addresses == [parameter.data_ptr() for parameter in self._model.parameters()]

    def load(self, received: Sequence[tuple[str, Tensor]]) -> None:
        """Fill parts of parameters."""
        pairs = []
        for name, tensor in received:
            blank = self.blanks.get(name)
            if blank is None or (tensor.dtype, tensor.shape) != (blank.dtype, blank.shape):
                raise ValueError(f"no weight {name} of this type and shape was sent before")
            for part, stride, offset in self._copies[name]:
                pairs.append((part, tensor.as_strided(part.shape, stride, tensor.storage_offset() + offset)))
        if pairs:
            torch._foreach_copy_([part for part, _ in pairs], [source for _, source in pairs])


class BucketWeightTransferEngine(WeightTransferEngine[Any, Any]):
    """Loads weights in checkpoint format (Hugging Face names).

    vLLM repacks linear weights after loading, and the remaining parameters cannot be loaded into. Its layerwise reload
    restores each layer, loads it, and repacks it. If it repacks none, all but the first update go by a plan.
    """

    init_info_cls = update_info_cls = dict
    _open = False
    _plan: CopyPlan | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        by_parameter: dict[int, list[str]] = {}
        for path, layer in self.model.named_modules():  # each layer once: vLLM's Gemma 4 has its layers in two lists
            for name, parameter in layer.named_parameters(path, recurse=False):
                by_parameter.setdefault(id(parameter), []).append(name)
        self._names = {name: its for its in by_parameter.values() for name in its}
        """All names of a parameter, in the model's order, by each of them."""
        self._inboxes: dict[str, Inbox] = {}
        self._reset()

    def _reset(self) -> None:
        self._digest: WeightDigest | None = None
        self._sent: dict[str, TensorSlot] = {}
        self._passed_on: set[str] = set()
        self._loaded: set[str] = set()
        self._missing: list[str] = []

    def _inbox(self, transfer: str) -> Inbox:
        return self._inboxes.get(transfer) or self._inboxes.setdefault(transfer, INBOXES[transfer](self.device))

    def init_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Meet the sender. `init_info`: ``transfer``, and the ``info`` that its outbox has for its inboxes."""
        self._inbox(init_info["transfer"]).connect(init_info["info"], self.parallel_config)

    def start_weight_update(self) -> None:
        """Start an update, also after one that failed half-way."""
        if self._open:
            self.finish_weight_update()
        self.shutdown()
        self._reset()
        if self._plan is None or not self._plan.stands():
            self._plan = None
            initialize_layerwise_reload(self.model)
        self._open = True

    def update_weights(self, update_info: Mapping[str, Any]) -> None:
        """Load the ``bucket``, a `WeightBucket` in msgpack. Raises ValueError, before anything is loaded, if its bytes
        differ from the sent ones."""
        bucket = msgspec.msgpack.decode(update_info["bucket"], type=WeightBucket)
        inbox = self._inbox(bucket.transfer)
        # A layer whose parts come in two buckets keeps the first part until the loader has the second.
        region = inbox.take(bucket, keep=self._plan is None)
        self._digest = self._digest or WeightDigest(full=bucket.full_check)
        self._digest.add(bucket.slots, region)
        if self._digest.hexdigest() != bucket.digest:
            raise ValueError(f"weight bucket {bucket.index} of version {bucket.version} arrived damaged or out of turn")
        self._sent |= {slot.name: slot for slot in bucket.slots}
        received = bucket.tensors(region)
        if self._plan is not None:
            self._plan.load(received)
        else:
            self._loaded |= self.model.load_weights(self._under_all_names(received))
        if bucket.last:
            inbox.close()
        if self.device.type != "cpu":  # the base class would synchronise without asking, which a CPU build cannot
            torch.accelerator.synchronize(self.device)

    receive_weights = update_weights

    def _under_all_names(self, received: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor under all of its names: a parameter with several is sent once, and a tied output head may
        have a packed copy."""
        for name, tensor in received:
            if name not in self._passed_on:
                names = self._names.get(name, [name])
                self._passed_on.update(names)
                yield from ((its, tensor) for its in names)

    def finish_weight_update(self) -> None:
        if self._plan is not None:
            self._missing = sorted(self._plan.blanks.keys() - self._sent.keys())
            for layer in filter(is_deferred_attention_layer, self.model.modules()):
                layer.process_weights_after_loading(self.model_config.dtype)
        else:
            self._missing = sorted(self._names.keys() - self._loaded)
            finalize_layerwise_reload(self.model, self.model_config)
            if not self._missing:
                try:
                    self._plan = CopyPlan(self.model, self._sent, self._names)
                except Exception as error:  # the loader's too, which is not written for tensors without memory
                    log.debug("weights go through vLLM's loader: %s", error)
        self._open = False
        self.shutdown()

    def shutdown(self) -> None:
        """Release the senders' memory."""
        for inbox in self._inboxes.values():
            inbox.close()
        if self.device.type == "cuda":
            # What loading took goes back to the GPU, where the KV cache may be waiting for it.
            torch.cuda.empty_cache()

    def problem(self, digest: str) -> str | None:
        """Return why the last update must not be served, or None. `digest`: of the last bucket that was sent."""
        its = (self._digest or WeightDigest()).hexdigest()
        if its != digest:
            return f"its digest is {its[:16]}, not {digest[:16]}: parts are missing or damaged"
        return f"these parameters were not sent: {', '.join(self._missing)}" if self._missing else None


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

    def weight_problem(self, digest: str) -> str | None:
        return self.weight_transfer_engine.problem(digest)


WeightTransferEngineFactory.register_engine(BACKEND, BucketWeightTransferEngine)
