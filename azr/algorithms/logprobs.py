"""Log-probabilities and entropy in float32, without ever holding the logits of all tokens.

Legend: R tokens, C tokens of a chunk, H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def _scaled_logits(hidden_CH: Tensor, weight_VH: Tensor, temperature: float) -> Tensor:
    """(C, V) in float32 (float64 for float64 input): 16-bit products are accumulated and kept in float32."""
    acc_dtype = torch.promote_types(hidden_CH.dtype, torch.float32)
    if hidden_CH.is_cuda and hidden_CH.dtype != acc_dtype:
        return torch.mm(hidden_CH, weight_VH.t(), out_dtype=acc_dtype).div_(temperature)
    return (hidden_CH.to(acc_dtype) @ weight_VH.to(acc_dtype).t()).div_(temperature)


class _ChunkedLogprobs(torch.autograd.Function):
    """Forward and backward each compute the logits of one chunk at a time; only the log-normalisers are kept.

    With z = h·Wᵀ/τ, p = softmax(z), target y and entropy E = -Σ p log p:
    ∂log p_y/∂z = onehot(y) - p  and  ∂E/∂z = -p (log p + E).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_RH: Tensor,
        weight_VH: Tensor,
        target_R: Tensor,
        temperature: float,
        chunk: int,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        logprobs, entropies, normalisers = [], [], []
        for hidden_CH, target_C in zip(hidden_RH.split(chunk), target_R.split(chunk), strict=True):
            logits_CV = _scaled_logits(hidden_CH, weight_VH, temperature)
            normaliser_C = logits_CV.logsumexp(-1)
            logprobs.append(logits_CV.gather(-1, target_C[:, None]).squeeze(-1) - normaliser_C)
            normalisers.append(normaliser_C)
            if with_entropy:
                probs_CV = (logits_CV - normaliser_C[:, None]).exp_()
                entropies.append(normaliser_C - probs_CV.mul_(logits_CV).sum(-1))
        entropy_R = torch.cat(entropies) if with_entropy else None
        ctx.save_for_backward(hidden_RH, weight_VH, target_R, torch.cat(normalisers), entropy_R)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.set_materialize_grads(False)
        return torch.cat(logprobs), entropy_R

    @staticmethod
    def backward(ctx: Any, grad_logprobs_R: Tensor | None, grad_entropy_R: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_RH, weight_VH, target_R, normaliser_R, entropy_R = ctx.saved_tensors
        grad_hidden_RH = torch.empty_like(hidden_RH)
        # Summed over chunks in at least float32: adding many small 16-bit terms would lose them.
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=normaliser_R.dtype)
        for start in range(0, len(hidden_RH), ctx.chunk):
            at = slice(start, start + ctx.chunk)
            logp_CV = _scaled_logits(hidden_RH[at], weight_VH, ctx.temperature).sub_(normaliser_R[at, None])
            grad_CV = _grad_logits(
                logp_CV,
                target_R[at],
                None if grad_entropy_R is None else entropy_R[at],
                None if grad_logprobs_R is None else grad_logprobs_R[at],
                None if grad_entropy_R is None else grad_entropy_R[at],
            )
            grad_CV = grad_CV.div_(ctx.temperature).to(hidden_RH.dtype)
            grad_hidden_RH[at] = grad_CV @ weight_VH
            grad_weight_VH += grad_CV.t() @ hidden_RH[at]
        return grad_hidden_RH, grad_weight_VH.to(weight_VH.dtype), None, None, None, None


def _grad_logits(
    logp_CV: Tensor,
    target_C: Tensor,
    entropy_C: Tensor | None,
    grad_logprob_C: Tensor | None,
    grad_entropy_C: Tensor | None,
) -> Tensor:
    """Gradient of both outputs with respect to the scaled logits, (C, V)."""
    probs_CV = logp_CV.exp()
    grad_CV = torch.zeros_like(probs_CV)
    if grad_entropy_C is not None and entropy_C is not None:
        grad_CV.addcmul_(probs_CV, logp_CV.add_(entropy_C[:, None]).mul_(grad_entropy_C[:, None]), value=-1)
    if grad_logprob_C is not None:
        grad_CV.addcmul_(probs_CV, grad_logprob_C[:, None].expand_as(probs_CV), value=-1)
        grad_CV.scatter_add_(1, target_C[:, None], grad_logprob_C[:, None])
    return grad_CV


def token_logprobs(
    hidden_RH: Tensor,
    weight_VH: Tensor,
    target_R: Tensor,
    *,
    temperature: float,
    chunk: int,
    with_entropy: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target and entropy of its distribution softmax(h·Wᵀ / temperature), natural log.

    Returns two arrays (R,) in float32 (float64 for float64 input), both differentiable in ``hidden_RH`` and
    ``weight_VH``; None in place of the entropy where it is not wanted. At most ``chunk`` x V logits exist at a time,
    in the forward and in the backward. An entropy that is in no loss costs a pass over them in the forward only.
    """
    logprobs_R, entropy_R = _ChunkedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_RH, weight_VH, target_R, temperature, chunk, with_entropy
    )
    return logprobs_R, entropy_R


class LogprobHead(nn.Module):
    """A causal LM's output head that returns log-probabilities instead of logits.

    It holds the very Parameter of the head it replaces, and uses it only inside its own forward, so tied embeddings
    stay tied and a sharded optimizer's hooks gather it in time.
    """

    def __init__(self, weight_VH: nn.Parameter, chunk: int) -> None:
        super().__init__()
        self.weight = weight_VH
        self.chunk = chunk

    def forward(
        self, hidden_RH: Tensor, target_R: Tensor, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As ``token_logprobs``."""
        return token_logprobs(
            hidden_RH, self.weight, target_R, temperature=temperature, chunk=self.chunk, with_entropy=with_entropy
        )
