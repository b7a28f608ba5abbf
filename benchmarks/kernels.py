"""Whether the fused kernels compute what the plain path does: values and gradients beside those in float32.

    python -m benchmarks.kernels

On a GPU they are compared in bfloat16, as runs use them, and in float32. Without one, Triton's interpreter runs the
very kernels on the CPU, on tiny shapes. A number passes that is at most `FACTOR` times as far from the plain path in
float32 as the plain path in its own type is, or nearer than `FLOOR`. Exits 1 when one does not pass.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from azr.algorithms.attention import choose_attention
from azr.algorithms.kernels import COVERED, Kernels
from azr.algorithms.logprobs import Chunks, token_logprobs
from azr.algorithms.models import PolicyModel
from azr.algorithms.packing import pack
from azr.records import Completion

FACTOR = 2.0
FLOOR = 2e-5
"""Relative, as are all distances: of an array's norm."""
TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class Gap:
    """Distances of one array from the plain path in float32, relative to that array's norm."""

    what: str
    dtype: str
    fused: float
    plain: float

    @property
    def passes(self) -> bool:
        return self.fused <= max(FACTOR * self.plain, FLOOR)


def compare(device: str) -> Iterator[Gap]:
    """Head and layers in each type that runs on `device`, "cuda" or "cpu"."""
    for dtype in (torch.float32, torch.bfloat16) if device == "cuda" else (torch.float32,):
        yield from _head(device, dtype, None)
        yield from _head(device, dtype, 2.0)
        for family in sorted(COVERED):
            yield from _layers(family, device, dtype)


def complete_interpreter() -> None:
    """Give Triton's interpreter what Liger's kernels use: methods of numbers as arguments, and CUDA's functions."""
    import numpy as np
    import triton.language as tl
    import triton.runtime.interpreter as interpreter

    convert = interpreter._implicit_cvt

    def with_floats(value: object) -> object:
        if isinstance(value, float):
            handle = interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32)
            return tl.core.tensor(handle, tl.float32)
        return convert(value)

    interpreter._implicit_cvt = with_floats
    import liger_kernel.ops.geglu as geglu
    import liger_kernel.ops.rms_norm as rms_norm

    rms_norm.rsqrt = lambda x: 1 / tl.sqrt(x)
    geglu.tanh = lambda x: 2 * tl.sigmoid(2 * x) - 1


def _head(device: str, dtype: torch.dtype, cap: float | None) -> Iterator[Gap]:
    tokens, hidden, vocabulary, chunk = (3000, 1536, 151936, 1024) if device == "cuda" else (7, 8, 8200, 3)
    generator = torch.Generator(device).manual_seed(0)
    states = torch.randn(tokens, hidden, device=device, generator=generator)
    weight = torch.randn(vocabulary, hidden, device=device, generator=generator) / hidden**0.5
    target = torch.randint(vocabulary, (tokens,), device=device, generator=generator)
    mix = torch.randn(2, tokens, device=device, generator=generator)

    def run(dtype: torch.dtype, fused: bool) -> dict[str, Tensor]:
        h, w = (x.to(torch.bfloat16).to(dtype).requires_grad_() for x in (states, weight))
        logprobs, entropy = token_logprobs(h, w, target, Chunks(TEMPERATURE, chunk, fused, cap))
        assert entropy is not None
        ((mix[0] * logprobs).sum() + (mix[1] * entropy).sum()).backward()
        assert h.grad is not None and w.grad is not None
        return {"logprobs": logprobs, "entropy": entropy, "grad of states": h.grad, "grad of weight": w.grad}

    yield from _gaps(
        "head" if cap is None else "capped head", dtype, run(torch.float32, False), run(dtype, False), run(dtype, True)
    )


def _layers(family: str, device: str, dtype: torch.dtype) -> Iterator[Gap]:
    width = 256 if device == "cuda" else 16
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, vocab_size=64, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=width // 4, max_position_embeddings=512,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    weights = {name: 1 + torch.randn(x.shape) / 5 if "norm" in name else torch.randn(x.shape) / x.shape[-1] ** 0.5
               for name, x in AutoModelForCausalLM.from_config(config).state_dict().items()}  # fmt: skip
    lengths = (200, 90, 90, 7) if device == "cuda" else (5, 3, 3, 1)
    prompts = (range(9), range(4, 20), range(4, 20), range(3))
    batch = pack([_completion(tuple(prompt), length) for prompt, length in zip(prompts, lengths, strict=True)])

    def run(dtype: torch.dtype, kernels: Kernels) -> dict[str, Tensor]:
        attention, _ = choose_attention(device, dtype)
        hf = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
        hf.load_state_dict({name: x.to(torch.bfloat16) for name, x in weights.items()})
        model = PolicyModel(hf.to(device), logprob_chunk=64, kernels=kernels, gradient_checkpointing="full").train()
        logprobs, _ = model(batch, TEMPERATURE)
        (logprobs * torch.linspace(-1, 1, len(logprobs), device=device)).sum().backward()
        grads = {f"grad of {name.rpartition('layers.')[2]}": x.grad for name, x in model.hf.named_parameters()}
        return {"logprobs": logprobs} | {name: grad for name, grad in grads.items() if grad is not None}

    yield from _gaps(family, dtype, run(torch.float32, "plain"), run(dtype, "plain"), run(dtype, "liger"))


def _completion(prompt: tuple[int, ...], length: int) -> Completion:
    return Completion(
        prompt_ids=prompt,
        response_ids=tuple((7 * i + length) % 64 for i in range(length)),
        logprobs=(-1.0,) * length,
        finish_reason="stop",
        weight_versions=0,
    )


def _gaps(
    what: str, dtype: torch.dtype, reference: dict[str, Tensor], plain: dict[str, Tensor], fused: dict[str, Tensor]
) -> Iterator[Gap]:
    for name, exact in reference.items():
        scale = exact.float().norm().clamp(min=1e-12)
        apart = [float((x[name].float() - exact.float()).norm() / scale) for x in (fused, plain)]
        yield Gap(f"{what}: {name}", str(dtype).removeprefix("torch."), *apart)


def main() -> int:
    """Prints every distance; 1 when one does not pass."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        if "TRITON_INTERPRET" not in os.environ:  # Triton, which may be there already, reads it when it is imported
            os.execve(sys.executable, [*sys.orig_argv], os.environ | {"TRITON_INTERPRET": "1"})
        complete_interpreter()
    gaps = list(compare(device))
    for gap in gaps:
        verdict = "" if gap.passes else "  TOO FAR"
        print(f"{gap.dtype:9} {gap.what:60} fused {gap.fused:.1e}  plain {gap.plain:.1e}{verdict}")
    failed = sum(not gap.passes for gap in gaps)
    print(f"{len(gaps) - failed} of {len(gaps)} pass on {device}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
