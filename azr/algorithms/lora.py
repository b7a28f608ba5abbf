"""Low-rank adapters (LoRA, arXiv 2106.09685), put around a model's linear layers by the package peft.

A layer x W^T becomes x W^T + s x A^T B^T with s = alpha / rank. A and B are trained, W and all else are not. B begins
as zeros, and so the model as the one that was loaded. W may be held in 4 bits, NF4 in blocks of 64 with scales of 8
bits (QLoRA, arXiv 2305.14314), by the package bitsandbytes.

Legend: O outputs and I inputs of a layer, R rank.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from azr.algorithms.architectures import ALL_LINEAR, check_targets
from azr.config import LoraConfig

_NAME = "default"
"""peft's, of a model's only adapters."""
IN_FILES, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
"""Prefix and suffixes of adapters' names in peft's files."""
_FOUR_BIT: dict[str, Any] = {"quant_type": "nf4", "compress_statistics": True}


@dataclass(frozen=True, slots=True)
class Adapter:
    """Adapter of one linear layer with a weight (O, I)."""

    parameters: tuple[nn.Parameter, nn.Parameter]
    """A (R, I) and B (O, R)."""
    scale: float


def four_bit_config(lora: LoraConfig, dtype: torch.dtype) -> BitsAndBytesConfig | None:
    """Return transformers' options to load a model in 4 bits; None for a model in `dtype`."""
    if not (lora.rank and lora.four_bit):
        return None
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=_FOUR_BIT["quant_type"],
        bnb_4bit_use_double_quant=_FOUR_BIT["compress_statistics"],
        bnb_4bit_compute_dtype=dtype,
        # ZeRO-3 partitions tensors of the compute type, so the packed bits pretend to be one.
        bnb_4bit_quant_storage=dtype,
    )


def add_adapters(model: PreTrainedModel, lora: LoraConfig) -> None:
    """Freeze the model's parameters and give its layers adapters; do nothing if the rank is 0.

    Raises UserError where the model has no linear layer of a name in `lora.targets`.
    """
    if not lora.rank:
        return
    from peft import inject_adapter_in_model

    if lora.four_bit:
        from bitsandbytes.nn import Linear4bit

        for layer in filter(lambda module: isinstance(module, Linear4bit), model.modules()):
            # A CPU would reorder the bits when it first scores, and ZeRO-3 would continue with those it keeps.
            layer.support_avx512bf16_for_cpu = False
    names = [name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    check_targets(lora.targets, sorted(set(names)))
    inject_adapter_in_model(peft_config(lora), model, _NAME)
    # ZeRO-3 takes a layer's parameters away before its backward when no gradient passes into its inputs.
    model.enable_input_require_grads()


def peft_config(lora: LoraConfig, base: str | None = None) -> Any:
    """Return peft's own `LoraConfig`; `base` is the model of the adapters, by path or hub name."""
    from peft import LoraConfig as PeftConfig

    return PeftConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=ALL_LINEAR if lora.targets == (ALL_LINEAR,) else list(lora.targets),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )


def adapters_of(model: nn.Module) -> dict[nn.Parameter, Adapter]:
    """Return adapters by the weight that they add to; empty for a model without them."""
    return {layer.base_layer.weight: adapter for _, layer, adapter in _iter_adapters(model)}


def iter_adapter_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the adapters' parameters under their names in peft's files."""
    for name, _, adapter in _iter_adapters(model):
        for part, parameter in zip((DOWN, UP), adapter.parameters, strict=True):
            yield f"{IN_FILES}{name}{part}", parameter


def iter_base_weights(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield all parameters but the adapters' under their names in a model without adapters."""
    adapters = {parameter for _, _, adapter in _iter_adapters(model) for parameter in adapter.parameters}
    for name, parameter in model.named_parameters():
        if parameter not in adapters:
            yield name.replace(".base_layer.", "."), parameter


def is_four_bit(parameter: Tensor) -> bool:
    """Whether a parameter holds packed numbers of 4 bits, as one column of what pretends to be the compute type."""
    if "bitsandbytes" not in sys.modules:
        return False
    from bitsandbytes.nn import Params4bit

    return isinstance(parameter, Params4bit)


def unpack(parameter: Any) -> Tensor:
    """Return the weight of a parameter in the compute type: itself, or its dequantised 4 bits."""
    if not is_four_bit(parameter):
        return torch.as_tensor(parameter)
    from bitsandbytes.functional import dequantize_4bit

    weight: Tensor = dequantize_4bit(parameter.data, parameter.quant_state)
    return weight


def four_bit_rounded(weight_OI: Tensor) -> Tensor:
    """Return the weight, of the compute type, quantised to 4 bits and dequantised again."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    packed, state = quantize_4bit(weight_OI.contiguous(), quant_storage=weight_OI.dtype, **_FOUR_BIT)
    rounded: Tensor = dequantize_4bit(packed, state)
    return rounded


def merge(weight_OI: Tensor, down_RI: Tensor, up_OR: Tensor, scale: float) -> Tensor:
    """Return W + s B A in float32, or float64 for a weight in float64."""
    wide = weight_OI if weight_OI.dtype.itemsize > 4 else weight_OI.float()
    return wide + scale * (up_OR.to(wide.dtype) @ down_RI.to(wide.dtype))


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Disable the model's adapters in the context."""
    layers = [layer for _, layer, _ in _iter_adapters(model)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def _iter_adapters(model: nn.Module) -> Iterator[tuple[str, Any, Adapter]]:
    """Yield the name of each layer in the model as it was loaded, peft's layer, and its adapter."""
    if "peft" not in sys.modules:  # whose import takes seconds, and without which there are no adapters
        return
    from peft.tuners.lora import LoraLayer

    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            assert isinstance(layer, nn.Module)
            down, up = (layer.get_parameter(f"{part}.{_NAME}.weight") for part in ("lora_A", "lora_B"))
            yield name, layer, Adapter((down, up), layer.scaling[_NAME])
