"""Fused kernels of the package liger-kernel in place of a model's norms, rotary positions and gated activations.

Only the forwards of one model's modules are bound anew: parameters, names, hooks and transformers itself stay as they
are, so it makes no difference whether parameters are partitioned yet. Numbers agree with the plain path within rounding
(`benchmarks.kernels` measures it); the rotary kernel and the backward of the gated activations write over tensors that
nothing else reads, which holds for the architectures named here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

from azr.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

Kernels = Literal["liger", "compile", "plain"]

COVERED = frozenset({
    "qwen2", "qwen3", "llama", "mistral", "gemma3_text", "smollm3", "exaone4", "ministral", "ministral3",
})  # fmt: skip
"""Architectures, by `model_type`, whose layers Liger's kernels compute: norms, rotary positions and gated activations
of all but Gemma are the code of Llama's."""
IMPORT_S = 300.0
"""Limit for an import of FlashAttention 4, which takes 10 to 20 s."""


def choose_kernels(wanted: Kernels | Literal["auto"], device: str, family: str | None) -> tuple[Kernels, str]:
    """Return the kernels for a model of the `model_type` `family` on `device` ("cpu" or "cuda"), and why.

    Raises UserError when Liger's are wanted and cannot be had.
    """
    if wanted == "compile" or wanted == "plain":  # `in` would not narrow the type
        return wanted, "as train.kernels says"
    lack = None
    if device != "cuda":
        lack = "they need a GPU", "take train.kernels=auto or plain"
    elif find_spec("liger_kernel") is None:
        lack = "the package liger-kernel is not installed", "install it with pip install liger-kernel, or take auto"
    elif family not in COVERED:
        lack = f"they do not cover {family!r} models", "take train.kernels=auto or plain"
    if lack is None:
        return "liger", "as train.kernels says" if wanted == "liger" else "a GPU, and an architecture that they cover"
    if wanted == "liger":
        raise UserError(f"train.kernels is liger, but {lack[0]}: {lack[1]}.")
    return "plain", lack[0]


def check_flash_attn(device: str, dtype: str = "bfloat16") -> None:
    """Raises UserError when train.attention=flash_attn cannot be had on `device` ("cpu" or "cuda")."""
    if device != "cuda" or dtype == "float32":
        raise UserError("train.attention is flash_attn, which needs a GPU and train.dtype=bfloat16: take auto.")
    if problem := flash_attn_problem():
        raise UserError(
            f"train.attention is flash_attn, but FlashAttention 4 cannot be imported ({problem}): make clean, then "
            "make install FLAVOUR=gpu, or take train.attention=auto, which then is torch's own flash kernel."
        )


@cache
def flash_attn_problem() -> str | None:
    """Return why FlashAttention 4 cannot be imported with this interpreter; None if it can.

    It is imported in a child process: packages that do not fit together may end the process, not only raise.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", "import flash_attn.cute"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=IMPORT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it takes more than {IMPORT_S:g} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def apply_liger(model: PreTrainedModel) -> None:
    """Bind the forwards of a model's layers to Liger's kernels. Its `model_type` must be in `COVERED`."""
    config = model.config.get_text_config()
    activation = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
    gated = {"silu": _swiglu, "swish": _swiglu, "gelu_pytorch_tanh": _geglu}.get(str(activation))
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm"):
            _bind(module, _gemma_norm if name.startswith("Gemma") else _norm)
        elif name.endswith("MLP") and gated is not None:
            _bind(module, gated)
        elif name.endswith("Attention"):
            _bind(module, _with_fused_rotary(type(module).forward))


def _bind(module: nn.Module, forward: Any) -> None:
    module.forward = MethodType(forward, module)


@cache
def _ops() -> ModuleType:
    """Return Liger's kernels, which are installed where GPUs are."""
    return import_module("liger_kernel.ops")


def _norm(self: Any, hidden: Tensor) -> Any:
    """As in Llama: the root mean square is taken in float32, and the weight multiplies in the type of the input."""
    return _ops().LigerRMSNormFunction.apply(hidden, self.weight, self.variance_epsilon, 0.0, "llama", False)


def _gemma_norm(self: Any, hidden: Tensor) -> Any:
    """Wholly in float32, with the weight's distance from 1 as parameter.

    Not in place: the gradient of a norm after a sublayer is the residual stream's as well.
    """
    return _ops().LigerRMSNormFunction.apply(hidden, self.weight, self.eps, 1.0, "gemma", False)


def _swiglu(self: Any, hidden: Tensor) -> Any:
    return self.down_proj(_ops().LigerSiLUMulFunction.apply(self.gate_proj(hidden), self.up_proj(hidden)))


def _geglu(self: Any, hidden: Tensor) -> Any:
    """With the approximation of GELU by tanh."""
    return self.down_proj(_ops().LigerGELUMulFunction.apply(self.gate_proj(hidden), self.up_proj(hidden)))


def _rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    """Queries (1, H, T, D) and keys (1, K, T, D) turned by the angles of their positions, (1, T, D), in place."""
    return _ops().LigerRopeFunction.apply(q, k, cos, sin)


def _with_fused_rotary(forward: Any) -> FunctionType:
    """transformers' own forward of an attention layer, for which `apply_rotary_pos_emb` means the kernel."""
    name = "apply_rotary_pos_emb"
    assert isinstance(forward, FunctionType) and name in forward.__code__.co_names, forward
    known = {**forward.__globals__, name: _rotary}
    return FunctionType(forward.__code__, known, forward.__name__, forward.__defaults__, forward.__closure__)
