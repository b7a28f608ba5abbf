"""Exact causal attention inside each sample of a packed stream, as plug-ins of transformers' attention interface.

Isolation rests on explicit sample borders, never on a mask or on guessing from position ids: a model's forward is
given ``segments=Segments.of(cu_seqlens, unshared_index_E)`` and hands it down to every attention layer. Samples that
share a prompt share its stream tokens; attention alone gathers keys and values of every sample, all other layers see
each token once.

Legend: T stream tokens, S samples, E tokens of all samples laid out in full, B samples of a bucket, L their padded
length, H query heads, K key/value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from azr.algorithms.kernels import check_flash_attn
from azr.algorithms.packing import to_device
from azr.errors import UserError

VARLEN = "azr_varlen"
"""One flash-attention kernel over the flat stream: CUDA, 16-bit types."""
FLASH = "azr_flash_attn"
"""The same kernel from the package flash-attn, which may be newer than torch's."""
PADDED = "azr_padded"
"""Scaled dot-product attention over samples padded to like lengths: any device and type."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Samples of like length, as a padded rectangle of stream positions."""

    gather_BL: Tensor
    """Stream position of each cell; cells beyond a sample's end repeat its last token."""
    cells: Tensor
    """Flat indices of the cells that are real tokens."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Borders of the samples in a packed stream, prepared once per forward for all layers."""

    cu_queries: Tensor
    """int32, (S + 1): borders in the stream. A sample's queries are its tokens that no earlier sample has: the last
    ones of its keys."""
    cu_keys: Tensor
    """int32, (S + 1): borders in the full layout."""
    key_index_E: Tensor | None
    """Stream position of each token of the full layout; None where nothing is shared, so that both are the same."""
    max_queries: int
    max_keys: int
    """Tokens of the longest sample."""
    buckets: tuple[Bucket, ...]
    unpad_index_T: Tensor
    """First index of each stream token in the concatenated real cells of all buckets."""

    @classmethod
    def of(
        cls, cu_seqlens: Tensor, unshared_index_E: Tensor, device: torch.device | str = "cpu", *, padded: bool = True
    ) -> Segments:
        """On `device`, from the fields of that name of a ``PackedBatch``, whose place should be the CPU: reading them
        from a GPU makes the CPU wait for it. `padded`: with what ``PADDED`` needs, buckets and their order.
        """
        borders, unshared_index = cu_seqlens.tolist(), unshared_index_E.cpu()
        first_index_T = np.unique(unshared_index.numpy(), return_index=True)[1]
        keys_S, queries_S = np.diff(borders), np.diff(np.searchsorted(first_index_T, borders))
        # An empty response to a shared prompt asks nothing, and flash kernels give its keys no gradient, not even 0.
        asks_S = queries_S > 0
        key_index_E = unshared_index[torch.from_numpy(np.repeat(asks_S, keys_S))]
        samples = sorted(pairwise(borders), key=lambda s: s[0] - s[1])
        buckets = [_bucket(group) for group in _like_lengths(samples)] if padded else []
        order = torch.cat([unshared_index[:0], *(gather_BL.flatten()[cells] for gather_BL, cells in buckets)])
        return cls(
            to_device(_borders(queries_S[asks_S]), device),
            to_device(_borders(keys_S[asks_S]), device),
            to_device(key_index_E, device) if len(first_index_T) < len(unshared_index) else None,
            int(queries_S.max()),
            int(keys_S.max()),
            tuple(
                Bucket(to_device(unshared_index[gather_BL], device), to_device(cells, device))
                for gather_BL, cells in buckets
            ),
            to_device(torch.argsort(order)[torch.from_numpy(first_index_T)] if padded else order, device),
        )


def _borders(lengths_S: npt.NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], lengths_S.cumsum()]).astype(np.int32))


SHORT = 256
"""Longest sample, in tokens, whose score matrix is held whole on a CPU."""


def _like_lengths(samples: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Cut samples, longest first, into groups whose shortest is at least 4/5 as long as their longest.

    At most a fifth of the cells is padding, while the number of kernel calls grows only with the logarithm of the
    longest sample.
    """
    groups: list[list[tuple[int, int]]] = []
    for start, end in samples:
        if not groups or 5 * (end - start) < 4 * (groups[-1][0][1] - groups[-1][0][0]):
            groups.append([])
        groups[-1].append((start, end))
    return groups


def _bucket(samples: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """As the fields of a bucket, in the full layout."""
    borders = torch.tensor(samples)
    start_B, length_B = borders[:, 0], borders[:, 1] - borders[:, 0]
    offset_L = torch.arange(int(length_B[0]))
    gather_BL = start_B[:, None] + torch.minimum(offset_L, length_B[:, None] - 1)
    cells = (offset_L < length_B[:, None]).flatten().nonzero().squeeze(1)
    return gather_BL, cells


def choose_attention(
    device: torch.device | str, dtype: torch.dtype, wanted: Literal["auto", "flash_attn"] = "auto"
) -> str:
    """Name to give transformers as ``attn_implementation``. Raises UserError when what is wanted cannot be had."""
    flash_runs = torch.device(device).type == "cuda" and dtype in (torch.bfloat16, torch.float16)
    if wanted == "auto":
        return VARLEN if flash_runs else PADDED
    check_flash_attn("cuda" if flash_runs else "cpu")
    return FLASH


def _packed(heads: Tensor) -> Tensor:
    """(1, H, T, D), as the models hold it, to (T, H, D)."""
    assert heads.shape[0] == 1, "packed attention takes one flat stream"
    return heads.squeeze(0).transpose(0, 1)


_HARMLESS = frozenset({"position_ids", "use_cache"})
"""Arguments that models pass along and that attention need not read: queries and keys are already rotated to their
positions, and no cache is ever kept."""


def _refuse_unknown(module: nn.Module, arguments: dict[str, object]) -> None:
    """Raises UserError for an argument that has a value and is not known to leave the result as it is."""
    if not getattr(module, "is_causal", True):  # transformers' own functions read it the same way
        arguments = {"is_causal": False, **arguments}
    for name, value in arguments.items():
        if value is None or name in _HARMLESS or (name == "is_causal" and value is True):
            continue
        shown = f"{name}={value!r}" if isinstance(value, bool | int | float | str) else name
        raise UserError(
            f"{type(module).__name__} asks its attention for {shown}, which training does not compute: choose another "
            "model.path."
        )


Attend = Callable[[Tensor, Tensor, Tensor, Segments, tuple[int, int], float | None], Tensor]
"""From queries (T, H, D), keys and values (E, K, D), borders, how many tokens back and ahead each one sees (-1: all),
and the scale of the scores, to (T, H, D). The last query of a sample stands where its last key does."""


def _attend_torch(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, window: tuple[int, int], scale: float | None
) -> Tensor:
    borders = segments.cu_queries, segments.cu_keys, segments.max_queries, segments.max_keys
    out: Tensor = varlen_attn(  # type: ignore[assignment]  # a tuple only when auxiliary outputs are asked for
        q, k, v, *borders, scale=scale, enable_gqa=True, window_size=window
    )
    return out


def _attend_flash(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, window: tuple[int, int], scale: float | None
) -> Tensor:
    from flash_attn import flash_attn_varlen_func

    borders = segments.cu_queries, segments.cu_keys, segments.max_queries, segments.max_keys
    out: Tensor = flash_attn_varlen_func(q, k, v, *borders, softmax_scale=scale, causal=True, window_size=window)
    return out


def _flat_attention(attend: Attend) -> Callable[..., tuple[Tensor, None]]:
    """Return transformers' attention function that gathers each sample's keys and values and lets `attend` compute."""

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, *, segments: Segments,
        dropout: float = 0.0, scaling: float | None = None, sliding_window: int | None = None, **others: object,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """Query (1, H, T, D), key and value (1, K, T, D) to (1, T, H, D).

        Raises UserError for an argument that changes the result in a way that is not computed here.
        """
        _refuse_unknown(module, {"attention_mask": attention_mask, "dropout": dropout or None, **others})
        q, k, v = _packed(query), _packed(key), _packed(value)
        if segments.key_index_E is not None:
            k, v = (x.index_select(0, segments.key_index_E) for x in (k, v))
        out_THD = attend(q, k, v, segments, (-1 if sliding_window is None else sliding_window - 1, 0), scaling)
        return out_THD.unsqueeze(0), None

    return attention


def padded_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, *, segments: Segments,
    dropout: float = 0.0, scaling: float | None = None, sliding_window: int | None = None, **others: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' attention function, shapes and errors as in ``_flat_attention``.

    Padding stands to the right, so causality alone keeps real tokens from seeing it.
    """
    _refuse_unknown(module, {"attention_mask": attention_mask, "dropout": dropout or None, **others})
    query_THD, key_TKD, value_TKD = _packed(query), _packed(key), _packed(value)
    pieces = []
    for bucket in segments.buckets:
        batch, length = bucket.gather_BL.shape
        flat = bucket.gather_BL.flatten()
        q, k, v = (
            x.index_select(0, flat).unflatten(0, (batch, length)).transpose(1, 2)
            for x in (query_THD, key_TKD, value_TKD)
        )
        window = None if sliding_window is None or sliding_window >= length else sliding_window
        attend = attn_matmul if query.device.type == "cpu" and length <= SHORT else attn_sdpa
        out_BHLD = attend(q, k, v, window, scaling)
        pieces.append(out_BHLD.transpose(1, 2).flatten(0, 1).index_select(0, bucket.cells))
    return torch.cat(pieces).index_select(0, segments.unpad_index_T).unsqueeze(0), None


def attn_sdpa(q: Tensor, k: Tensor, v: Tensor, window: int | None, scale: float | None) -> Tensor:
    """torch's own kernels: never the whole (L, L) matrix in memory."""
    mask = None if window is None else causal_window(q.shape[2], window, q.device)
    gqa = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=gqa)


def attn_matmul(q: Tensor, k: Tensor, v: Tensor, window: int | None, scale: float | None) -> Tensor:
    """Plain matrix products: at these lengths a CPU takes 30 to 70% of the kernel's time (`benchmarks.attention`)."""
    batch, heads, length, width = q.shape
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1).flatten(0, 1) for x in (k, v))
    hidden_LL = torch.where(causal_window(length, window or length, q.device), 0.0, -torch.inf).to(q.dtype)
    scores = torch.baddbmm(hidden_LL[None], q.flatten(0, 1), k.mT, alpha=width**-0.5 if scale is None else scale)
    out: Tensor = (scores.softmax(-1) @ v).unflatten(0, (batch, heads))
    return out


def causal_window(length: int, window: int, device: torch.device) -> Tensor:
    """(L, L) boolean: a token sees itself and the ``window - 1`` tokens before it."""
    at = torch.arange(length, device=device)
    distance = at[:, None] - at[None, :]
    return (distance >= 0) & (distance < window)


# No mask function is registered on purpose: transformers then builds no mask at all for these names.
AttentionInterface.register(VARLEN, _flat_attention(_attend_torch))
AttentionInterface.register(FLASH, _flat_attention(_attend_flash))
AttentionInterface.register(PADDED, padded_attention)
