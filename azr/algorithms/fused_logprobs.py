"""Triton kernels that reduce a chunk of logits to log-probabilities and entropies in one pass, and back in another.

The same numbers as the functions of that name in `logprobs.py`, which run everywhere; here a row of logits is read once
in the forward, and read once and written once, in the type of the matrix products, in the backward.

Legend: C tokens of a chunk, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192
"""Logits of one row that a program holds at a time."""
WARPS = 16


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _score_kernel(logits, target, logprob, normaliser, entropy, stride, vocab, tau, ENTROPY: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # fmt: skip  # noqa: E501
    """One program per token: its maximum, and sums of exp(z - max) and exp(z - max) (z - max), rescaled as it moves."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    at = tl.arange(0, BLOCK)
    top = -1e30
    total = 0.0
    weighted = 0.0
    for start in range(0, vocab, BLOCK):
        inside = start + at < vocab
        z = tl.load(logits + start + at, mask=inside, other=-1e30).to(tl.float32) / tau
        new_top = tl.maximum(top, tl.max(z, axis=0))
        moved = top - new_top
        shrink = tl.exp(moved)
        below = z - new_top
        weight = tl.where(inside, tl.exp(below), 0.0)
        if ENTROPY:
            weighted = shrink * (weighted + moved * total) + tl.sum(weight * below, axis=0)
        total = shrink * total + tl.sum(weight, axis=0)
        top = new_top
    log_total = tl.log(total)
    chosen = tl.load(logits + tl.load(target + row)).to(tl.float32) / tau
    tl.store(normaliser + row, top + log_total)
    tl.store(logprob + row, chosen - top - log_total)
    if ENTROPY:
        tl.store(entropy + row, log_total - weighted / total)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _grad_kernel(logits, target, normaliser, entropy, grad_logprob, grad_entropy, grad, stride, vocab, tau, LOGPROB: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # fmt: skip  # noqa: E501
    """One program per token and block: the gradient with respect to the logits before they are divided by `tau`."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    z = tl.load(logits + row * stride + at, mask=inside, other=-1e30).to(tl.float32) / tau
    logp = z - tl.load(normaliser + row)
    p = tl.exp(logp)
    out = tl.zeros([BLOCK], dtype=tl.float32)
    if ENTROPY:
        out -= p * (logp + tl.load(entropy + row)) * tl.load(grad_entropy + row)
    if LOGPROB:
        g = tl.load(grad_logprob + row)
        out += tl.where(at == tl.load(target + row), g, 0.0) - p * g
    tl.store(grad + row * vocab + at, (out / tau).to(grad.dtype.element_ty), mask=inside)


def score_logits(
    logits_CV: Tensor, target_C: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Log-probability of each target, log-normaliser and entropy of softmax(logits / temperature), three arrays (C)."""
    rows, vocab = logits_CV.shape
    logprob_C, normaliser_C, entropy_C = torch.empty((3, rows), dtype=torch.float32, device=logits_CV.device)
    if rows:
        _score_kernel[(rows,)](
            logits_CV, target_C, logprob_C, normaliser_C, entropy_C, logits_CV.stride(0), vocab, float(temperature),
            ENTROPY=with_entropy, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return logprob_C, normaliser_C, entropy_C if with_entropy else None


def grad_logits(
    logits_CV: Tensor,
    target_C: Tensor,
    normaliser_C: Tensor,
    entropy_C: Tensor | None,
    grad_logprob_C: Tensor | None,
    grad_entropy_C: Tensor | None,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """Gradient of both outputs of `score_logits` with respect to the logits, (C, V) in `dtype`."""
    rows, vocab = logits_CV.shape
    grad_CV = torch.empty((rows, vocab), dtype=dtype, device=logits_CV.device)
    with_entropy = entropy_C is not None and grad_entropy_C is not None
    # A gradient may come expanded from a scalar; what is not used is never read.
    grad_logprob = normaliser_C if grad_logprob_C is None else grad_logprob_C.contiguous()
    grad_entropy = grad_entropy_C.contiguous() if grad_entropy_C is not None else normaliser_C
    if rows:
        _grad_kernel[(rows, triton.cdiv(vocab, BLOCK))](
            logits_CV, target_C, normaliser_C, entropy_C if with_entropy else normaliser_C, grad_logprob, grad_entropy,
            grad_CV, logits_CV.stride(0), vocab, float(temperature),
            LOGPROB=grad_logprob_C is not None, ENTROPY=with_entropy, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return grad_CV
