"""Receiver of weight buckets inside a vLLM worker, as an engine of vLLM's weight-transfer interface.

vLLM imports this module in each worker for the worker's extension class. The import registers the engine, so no entry
point has to be installed. A transfer of `azr.cluster.weight_transfers` brings the bytes; loading them is the same for
all.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from azr.cluster.weight_buckets import WeightBucket, WeightDigest, word_sums
from azr.cluster.weight_transfers import Inbox, make_inbox

log = logging.getLogger(__name__)
BACKEND = "azr"
"""Name of the engine in vLLM's registry."""
PLAIN = {NoneType, UnquantizedLinearMethod, UnquantizedEmbeddingMethod}
"""Methods of layers that compute with their parameters as loaded, unless vLLM packs them for a CPU."""


@dataclass
class BucketInitInfo(WeightTransferInitInfo):
    """Connection data of a transfer whose ends meet before the first bucket."""

    transfer: str
    info: dict[str, Any]
    """Message of the outbox to its inboxes."""


@dataclass
class BucketUpdateInfo(WeightTransferUpdateInfo):
    bucket: bytes
    """`WeightBucket` in msgpack."""


class CopyPlan(TorchDispatchMode):
    """The copies that load a model: slices of sent tensors into parts of its parameters, all of a bucket at once.

    vLLM's loader takes half a millisecond of a CPU for each tensor, whatever its size. For the plan it runs once, on
    tensors without memory, and what it would copy is noted.
    """

    proven = False
    """Whether an update by the loader has left in the parameters what the plan would have."""

    def __init__(self, model: nn.Module, sent: Mapping[str, Tensor], names: Mapping[str, Sequence[str]]) -> None:
        """`sent`: tensors without memory, by name. `names`: see `all_names`.

        Raises ValueError, or what the loader raises, if loading this model is more than copying slices.
        """
        super().__init__()
        layers, self._model, self._sent = list(model.modules()), model, sent
        methods = {type(getattr(layer, "quant_method", None)) for layer in layers}
        if not methods <= PLAIN or any(hasattr(layer, "cpu_linear") for layer in layers):
            raise ValueError("a layer computes with other tensors than it has loaded")
        self._addresses, self._parameters = self._find_addresses(), dict[int, set[str]]()
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._parameters.setdefault(_memory(parameter), set()).add(name)
        self._senders = {_memory(tensor): name for name, tensor in sent.items()}
        self._copies: dict[str, list[tuple[Tensor, tuple[int, ...], int]]] = {name: [] for name in sent}
        """By name: a part of a parameter, and stride and offset of the slice that fills it."""
        self.expected: list[tuple[Tensor, Tensor]] = []
        """Of an update by the loader, see `sums`."""
        with self:
            model.load_weights((its, blank) for name, blank in sent.items() for its in names.get(name, [name]))
        parts = [part for copies in self._copies.values() for part, *_ in copies]
        places = {(_memory(part), part.storage_offset(), part.shape, part.stride()) for part in parts}
        filled = Counter[int]()
        for memory, _, shape, _ in places:
            filled[memory] += shape.numel()
        if filled != Counter({_memory(parameter): parameter.numel() for parameter in model.parameters()}):
            raise ValueError("a part of a parameter is not loaded")

    def _find_addresses(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._model.parameters()]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default and args[0].shape == args[1].shape:
            part, source = args[:2]
            if _memory(part) in self._parameters and _memory(source) in self._senders:
                self._copies[self._senders[_memory(source)]].append((part, source.stride(), source.storage_offset()))
                return part
        if function.is_view or (function is torch.ops.aten.fill_.Scalar and not args[0].numel()):
            return function(*args, **(kwargs or {}))
        raise ValueError(f"{function} is more than a copy of a slice")

    def stands(self) -> bool:
        """Whether the model's parameters are where they were."""
        return self._addresses == self._find_addresses()

    def _pairs(self, received: Sequence[tuple[str, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """Return parts of parameters, and the slices that fill them."""
        pairs = []
        for name, tensor in received:
            blank = self._sent.get(name)
            if blank is None or (blank.dtype, blank.shape) != (tensor.dtype, tensor.shape):
                raise ValueError(f"no weight {name} of this type and shape was sent before")
            start = tensor.storage_offset()
            pairs += [
                (part, tensor.as_strided(part.shape, stride, start + offset))
                for part, stride, offset in self._copies[name]
            ]
        return pairs

    def load(self, received: Sequence[tuple[str, Tensor]]) -> set[str]:
        """Fill parts of parameters; returns the parameters' names."""
        pairs = self._pairs(received)
        if pairs:
            torch._foreach_copy_([part for part, _ in pairs], [source for _, source in pairs])
        return set[str]().union(*(self._parameters[_memory(part)] for part, _ in pairs))

    def sums(self, received: Sequence[tuple[str, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """Return parts of parameters, and the sums of what the loader has to leave in them."""
        return [(part, _sums(source.to(part.dtype))) for part, source in self._pairs(received)]

    def prove(self) -> None:
        """Take the plan as proven if the loader has left what was expected. Raises ValueError otherwise."""
        if len(self.expected) != sum(map(len, self._copies.values())):
            raise ValueError("two updates sent different tensors")
        if not all(torch.equal(_sums(part), sums) for part, sums in self.expected):
            raise ValueError("a layer changes what it has loaded")
        self.proven = True


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _sums(tensor: Tensor) -> Tensor:
    return word_sums(tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8))


class BucketWeightTransferEngine(WeightTransferEngine[BucketInitInfo, BucketUpdateInfo]):
    """Loads weights in checkpoint format (Hugging Face names).

    vLLM repacks linear weights after loading, and the remaining parameters cannot be loaded into. Its layerwise reload
    restores each layer, loads it, and repacks it. If it repacks none, the third update and later ones go by a plan.
    """

    init_info_cls = BucketInitInfo
    update_info_cls = BucketUpdateInfo

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._names = all_names(self.model)
        self._inboxes: dict[str, Inbox] = {}
        self._expected = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        self._open = False
        self._plan: CopyPlan | None = None
        self._by: CopyPlan | None = None
        """What this update goes by; None for vLLM's loader."""
        self._may_plan = True
        self._reset()

    def _reset(self) -> None:
        self._digest: WeightDigest | None = None
        self._hexdigest = ""
        self._loaded: set[str] = set()
        self._tied_done: set[str] = set()
        self._sent: dict[str, Tensor] = {}
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
        if self._plan is not None and not self._plan.stands():
            self._plan, self._may_plan = None, False
        if self._plan is not None:
            self._plan.expected.clear()
        self._by = self._plan if self._plan is not None and self._plan.proven else None
        if self._by is None:
            initialize_layerwise_reload(self.model)
        self._open = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load one bucket. The base class would also synchronise an accelerator, which a CPU build lacks."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def receive_weights(self, update_info: BucketUpdateInfo) -> None:
        """Load the bucket. Raises ValueError, before anything is loaded, if its bytes differ from the sent ones."""
        bucket = msgspec.msgpack.decode(update_info.bucket, type=WeightBucket)
        inbox = self._inbox(bucket.transfer)
        # A layer whose parts come in two buckets keeps the first part until the loader has the second.
        region = inbox.take(bucket, keep=self._by is None)
        self._digest = self._digest or WeightDigest(full=bucket.full_check)
        self._digest.add(bucket.slots, region)
        self._hexdigest = self._digest.hexdigest()
        if self._hexdigest != bucket.digest:
            raise ValueError(f"weight bucket {bucket.index} of version {bucket.version} arrived damaged or out of turn")
        self._nbytes += bucket.nbytes
        self._load(bucket.tensors(region))
        if bucket.last:
            inbox.close()

    def _load(self, received: Sequence[tuple[str, Tensor]]) -> None:
        if self._by is not None:
            self._loaded |= self._by.load(received)
            return
        if self._plan is not None:
            self._plan.expected += self._plan.sums(received)
        self._sent |= {name: torch.empty_like(tensor, device="meta") for name, tensor in received}
        self._loaded |= self.model.load_weights(self._under_all_names(received))

    def _under_all_names(self, received: Sequence[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each tensor under all of its names: a parameter with several is sent once, and a tied output head may
        have a packed copy."""
        for name, tensor in received:
            names = self._names.get(name, [name])
            if names[0] not in self._tied_done:
                self._tied_done |= {names[0]} if len(names) > 1 else set()
                yield from ((its, tensor) for its in names)

    def finish_weight_update(self) -> None:
        if self._by is None:
            finalize_layerwise_reload(self.model, self.model_config)
            self._make_plan()
        else:
            for layer in filter(is_deferred_attention_layer, self.model.modules()):
                layer.process_weights_after_loading(self.model_config.dtype)
        self._open = False
        self._let_go()

    def _make_plan(self) -> None:
        """Make a plan after a whole update by the loader, and prove it after the next."""
        if not self._may_plan or self._expected - self._loaded:
            return
        try:
            if self._plan is None:
                self._plan = CopyPlan(self.model, self._sent, self._names)
            else:
                self._plan.prove()
        except Exception as error:  # the loader's too: it is not written for tensors without memory
            log.info("weights go through vLLM's loader: %s", error)
            self._plan, self._may_plan = None, False

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
