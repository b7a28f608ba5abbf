"""Log-probabilities and entropy in float32, without ever holding the logits of all tokens.

Legend: R tokens, C tokens of a chunk, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn


class _PlainOps:
    """What is done to a chunk of logits h·Wᵀ/τ, by torch operations, in place where they can be."""

    @staticmethod
    def score_logits(
        logits_CV: Tensor, target_C: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Log-probability of each target, log-normaliser and entropy, three arrays (C); the logits stay as they are."""
        normaliser_C = logits_CV.logsumexp(-1)
        logprob_C = logits_CV.gather(-1, target_C[:, None]).squeeze(-1) - normaliser_C
        if not with_entropy:
            return logprob_C, normaliser_C, None
        probs_CV = (logits_CV - normaliser_C[:, None]).exp_()
        return logprob_C, normaliser_C, normaliser_C - probs_CV.mul_(logits_CV).sum(-1)

    @staticmethod
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
        """Gradient of both outputs with respect to h·Wᵀ, (C, V) in `dtype`. Overwrites the logits."""
        logp_CV = logits_CV.sub_(normaliser_C[:, None])
        if grad_entropy_C is not None and entropy_C is not None:
            probs_CV = logp_CV.exp()
            grad_CV = logp_CV.add_(entropy_C[:, None]).mul_(grad_entropy_C[:, None]).mul_(probs_CV).neg_()
            if grad_logprob_C is not None:
                grad_CV.addcmul_(probs_CV, grad_logprob_C[:, None].expand_as(probs_CV), value=-1)
        elif grad_logprob_C is not None:
            grad_CV = logp_CV.exp_().mul_(grad_logprob_C[:, None]).neg_()
        else:
            grad_CV = logp_CV.zero_()
        if grad_logprob_C is not None:
            grad_CV.scatter_add_(1, target_C[:, None], grad_logprob_C[:, None])
        return _scale_(grad_CV, temperature).to(dtype)


def _scale_(logits_CV: Tensor, temperature: float) -> Tensor:
    return logits_CV if temperature == 1 else logits_CV.div_(temperature)


def _chunk_ops(fused: bool) -> type[_PlainOps]:
    """Return the functions above, or those of the same names and signatures in `fused_logprobs`."""
    if not fused:
        return _PlainOps
    from azr.algorithms import fused_logprobs  # only here: Triton is there where GPUs are

    return cast("type[_PlainOps]", fused_logprobs)


def _mixed(hidden_RH: Tensor) -> bool:
    """Whether a GPU multiplies 16-bit numbers and keeps the sums in float32."""
    return hidden_RH.is_cuda and hidden_RH.dtype in (torch.bfloat16, torch.float16)


def _weight_for(hidden_RH: Tensor, weight_VH: Tensor) -> Tensor:
    """Return the transposed weight in the type that `_logits` multiplies in, cast once for all chunks."""
    return (weight_VH if _mixed(hidden_RH) else weight_VH.to(_sum_type(hidden_RH))).t()


def _sum_type(hidden_RH: Tensor) -> torch.dtype:
    return torch.promote_types(hidden_RH.dtype, torch.float32)


@dataclass(frozen=True, slots=True)
class Chunks:
    """How logits z = h·Wᵀ, or cap · tanh(h·Wᵀ / cap) with a ``cap``, are computed and divided by the temperature."""

    temperature: float
    chunk: int
    """Tokens whose logits exist at a time, in the forward and in the backward."""
    fused: bool = False
    """By the kernels of `fused_logprobs`, which take a GPU, and agree within float32's rounding."""
    cap: float | None = None

    def logits(self, hidden_CH: Tensor, weight_HV: Tensor) -> Tensor:
        """(C, V) in at least float32: 16-bit products are accumulated and kept in float32.

        Capped, then divided by the temperature, unless it is the fused kernels that read them.
        """
        if _mixed(hidden_CH):
            logits_CV = torch.mm(hidden_CH, weight_HV, out_dtype=torch.float32)
        else:
            logits_CV = hidden_CH.to(weight_HV.dtype) @ weight_HV
        if self.cap is not None:
            logits_CV.div_(self.cap).tanh_().mul_(self.cap)
        return logits_CV if self.fused else _scale_(logits_CV, self.temperature)

    def grad_products(self, logits_CV: Tensor, *scores: Any, dtype: torch.dtype) -> Tensor:
        """Gradient with respect to h·Wᵀ, (C, V) in `dtype`: that of a capped logit z times 1 - (z/cap)². Overwrites
        what `logits` returned. `scores`: what `grad_logits` takes before the temperature."""
        grad_logits: Callable[..., Tensor] = _chunk_ops(self.fused).grad_logits
        if self.cap is None:
            return grad_logits(logits_CV, *scores, self.temperature, dtype)
        slope_CV = (logits_CV * ((1.0 if self.fused else self.temperature) / self.cap)).square_().neg_().add_(1.0)
        return grad_logits(logits_CV, *scores, self.temperature, logits_CV.dtype).mul_(slope_CV).to(dtype)


def _add_product(total_VH: Tensor | None, grad_CV: Tensor, hidden_CH: Tensor) -> Tensor:
    """The sum plus gradᵀ · hidden, kept in at least float32: adding many small 16-bit terms would lose them."""
    if _mixed(hidden_CH):
        if total_VH is None or not _sums_mixed(hidden_CH.device, hidden_CH.dtype):
            product_VH = torch.mm(grad_CV.t(), hidden_CH, out_dtype=torch.float32)
            return product_VH if total_VH is None else total_VH.add_(product_VH)
        return torch.addmm(total_VH, grad_CV.t(), hidden_CH, out_dtype=torch.float32, out=total_VH)
    product_VH = (grad_CV.t() @ hidden_CH).to(_sum_type(hidden_CH))
    return product_VH if total_VH is None else total_VH.add_(product_VH)


@cache
def _sums_mixed(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this torch adds a product of 16-bit matrices to a float32 one in place, which its releases differ in."""
    total, one = torch.ones((8, 8), device=device), torch.ones((8, 8), device=device, dtype=dtype)
    try:
        torch.addmm(total, one, one, out_dtype=torch.float32, out=total)
    except RuntimeError:
        return False
    return True


class _ChunkedLogprobs(torch.autograd.Function):
    """Forward and backward each compute the logits of one chunk at a time; only the log-normalisers are kept.

    With z = h·Wᵀ/τ, p = softmax(z), target y and entropy E = -Σ p log p:
    ∂log p_y/∂z = onehot(y) - p  and  ∂E/∂z = -p (log p + E). A cap c makes z = c·tanh(h·Wᵀ/c)/τ.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_RH: Tensor, weight_VH: Tensor, target_R: Tensor, chunks: Chunks, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        ops, weight_HV, size = _chunk_ops(chunks.fused), _weight_for(hidden_RH, weight_VH), chunks.chunk
        parts = [
            ops.score_logits(chunks.logits(hidden_CH, weight_HV), target_C, chunks.temperature, with_entropy)
            for hidden_CH, target_C in zip(hidden_RH.split(size), target_R.split(size), strict=True)
        ]
        logprobs_R, normaliser_R = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        entropy_R = torch.cat([part[2] for part in parts if part[2] is not None]) if with_entropy else None
        ctx.save_for_backward(hidden_RH, weight_VH, target_R, normaliser_R, entropy_R)
        ctx.chunks = chunks
        ctx.set_materialize_grads(False)
        return logprobs_R, entropy_R

    @staticmethod
    def backward(ctx: Any, grad_logprobs_R: Tensor | None, grad_entropy_R: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_RH, weight_VH, target_R, normaliser_R, entropy_R = ctx.saved_tensors
        weight_HV = _weight_for(hidden_RH, weight_VH)
        chunks: Chunks = ctx.chunks

        def grad_logits(at: slice) -> Tensor:
            return chunks.grad_products(
                chunks.logits(hidden_RH[at], weight_HV),
                target_R[at],
                normaliser_R[at],
                None if grad_entropy_R is None else entropy_R[at],
                None if grad_logprobs_R is None else grad_logprobs_R[at],
                None if grad_entropy_R is None else grad_entropy_R[at],
                dtype=hidden_RH.dtype,
            )

        return *_gradients(ctx, hidden_RH, weight_VH, chunks.chunk, grad_logits), *[None] * 3


def _gradients(
    ctx: Any, hidden_RH: Tensor, weight_VH: Tensor, chunk: int, grad_logits: Callable[[slice], Tensor]
) -> tuple[Tensor, Tensor | None]:
    """Gradients of hidden states and weight from those of each chunk's logits; None if the weight is not trained."""
    grad_hidden_RH, grad_weight_VH = torch.empty_like(hidden_RH), None
    for start in range(0, len(hidden_RH), chunk):
        at = slice(start, start + chunk)
        grad_CV = grad_logits(at)
        grad_hidden_RH[at] = grad_CV @ weight_VH
        if ctx.needs_input_grad[1]:
            grad_weight_VH = _add_product(grad_weight_VH, grad_CV, hidden_RH[at])
        del grad_CV  # before the next chunk's logits are made
    if not ctx.needs_input_grad[1]:
        return grad_hidden_RH, None
    return grad_hidden_RH, torch.zeros_like(weight_VH) if grad_weight_VH is None else grad_weight_VH.to(weight_VH.dtype)


TokenLoss = Callable[[Tensor, Tensor, slice], Tensor]
"""Scalar loss of the tokens of a slice, from their log-probabilities and entropies; that of all tokens is the sum."""


class _ChunkedLoss(torch.autograd.Function):
    """The loss, and in the same pass over the chunks its gradient: no chunk's logits are computed twice."""

    @staticmethod
    def forward(
        ctx: Any, hidden_RH: Tensor, weight_VH: Tensor, target_R: Tensor, chunks: Chunks, token_loss: TokenLoss
    ) -> tuple[Tensor, Tensor, Tensor]:
        ops, weight_HV = _chunk_ops(chunks.fused), _weight_for(hidden_RH, weight_VH)
        sum_type = _sum_type(hidden_RH)
        loss = hidden_RH.new_zeros((), dtype=sum_type)
        logprobs_R, entropy_R = (hidden_RH.new_empty(len(hidden_RH), dtype=sum_type) for _ in range(2))

        def grad_logits(at: slice) -> Tensor:
            nonlocal loss
            logits_CV = chunks.logits(hidden_RH[at], weight_HV)
            logprob_C, normaliser_C, entropy_C = ops.score_logits(logits_CV, target_R[at], chunks.temperature, True)
            assert entropy_C is not None
            logprobs_R[at], entropy_R[at] = logprob_C, entropy_C
            with torch.enable_grad():
                leaves = logprob_C.detach().requires_grad_(), entropy_C.detach().requires_grad_()
                part = token_loss(*leaves, at)
                of_logprob_C, of_entropy_C = torch.autograd.grad(part, leaves, allow_unused=True)
            loss += part.detach()
            scores = target_R[at], normaliser_C, None if of_entropy_C is None else entropy_C, of_logprob_C, of_entropy_C
            return chunks.grad_products(logits_CV, *scores, dtype=hidden_RH.dtype)

        ctx.gradients = _gradients(ctx, hidden_RH, weight_VH, chunks.chunk, grad_logits)
        ctx.mark_non_differentiable(logprobs_R, entropy_R)
        return loss, logprobs_R, entropy_R

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden_RH, of_weight_VH = ctx.gradients
        del ctx.gradients
        of_weight_VH = None if of_weight_VH is None else of_weight_VH.mul_(grad_loss)
        return of_hidden_RH.mul_(grad_loss), of_weight_VH, *[None] * 3


def token_logprobs(
    hidden_RH: Tensor, weight_VH: Tensor, target_R: Tensor, chunks: Chunks, *, with_entropy: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target and entropy of its distribution softmax(z / temperature), natural log.

    Returns two arrays (R,) in float32 (float64 for float64 input), both differentiable in ``hidden_RH`` and
    ``weight_VH``; None in place of the entropy where it is not wanted. An entropy that is in no loss costs a pass over
    the logits in the forward only.
    """
    scores = _ChunkedLogprobs.apply(hidden_RH, weight_VH, target_R, chunks, with_entropy)  # type: ignore[no-untyped-call]
    return cast("tuple[Tensor, Tensor | None]", scores)


def token_losses(
    hidden_RH: Tensor, weight_VH: Tensor, target_R: Tensor, chunks: Chunks, token_loss: TokenLoss
) -> tuple[Tensor, Tensor, Tensor]:
    """The summed ``token_loss``, differentiable once, and the values of `token_logprobs` without gradient.

    A backward pass costs next to nothing: its products were computed here, chunk by chunk, from the same logits.
    """
    losses = _ChunkedLoss.apply(hidden_RH, weight_VH, target_R, chunks, token_loss)  # type: ignore[no-untyped-call]
    return cast("tuple[Tensor, Tensor, Tensor]", losses)


class LogprobHead(nn.Module):
    """A causal LM's output head that returns log-probabilities instead of logits.

    It holds the very Parameter of the head it replaces, and uses it only inside its own forward, so tied embeddings
    stay tied and a sharded optimizer's hooks gather it in time.
    """

    def __init__(self, weight_VH: nn.Parameter, chunk: int, *, fused: bool = False, cap: float | None = None) -> None:
        super().__init__()
        self.weight = weight_VH
        self.chunk, self.fused, self.cap = chunk, fused, cap

    def forward(
        self,
        hidden_RH: Tensor,
        target_R: Tensor,
        temperature: float,
        with_entropy: bool,
        token_loss: TokenLoss | None = None,
    ) -> tuple[Tensor | None, ...]:
        """Return ``token_logprobs`` with this head, or ``token_losses`` for a `token_loss`."""
        chunks = Chunks(temperature, self.chunk, self.fused, self.cap)
        if token_loss is None:
            return token_logprobs(hidden_RH, self.weight, target_R, chunks, with_entropy=with_entropy)
        return token_losses(hidden_RH, self.weight, target_R, chunks, token_loss)
