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
from operator import itemgetter
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from azr.algorithms.kernels import check_flash_attn, flash_attn_problem
from azr.algorithms.packing import to_device
from azr.errors import UserError

VARLEN = "azr_varlen"
"""One flash-attention kernel over the flat stream: CUDA, 16-bit types."""
FLASH = "azr_flash_attn"
"""FlashAttention 4 over the same stream, from the package flash-attn-4: Hopper and Blackwell GPUs."""
FLASH_GPUS = (9, 10)
"""Major compute capabilities of the GPUs that FlashAttention 4 is made for."""
FLASH_HEAD = 256
"""Largest head of flash kernels."""
PADDED = "azr_padded"
"""Scaled dot-product attention over samples padded to like lengths: any device and type."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Samples of like lengths, as padded rectangles of stream positions: what asks, and what is seen.

    Cells beyond a sample's end repeat its last token.
    """

    query_BQ: Tensor
    key_BL: Tensor
    shared_B: Tensor | None
    """Tokens before the first query of each sample, which it shares with an earlier one; None where none does."""
    cells: Tensor
    """Flat indices of the queries that are real tokens."""

    def to(self, device: torch.device | str) -> Bucket:
        """Return the bucket with all tensors on ``device``."""
        shared_B = None if self.shared_B is None else to_device(self.shared_B, device)
        query_BQ, key_BL, cells = (to_device(x, device) for x in (self.query_BQ, self.key_BL, self.cells))
        return Bucket(query_BQ, key_BL, shared_B, cells)

    def asking_cells(self) -> Tensor:
        """Return the flat indices of the same queries among the keys, ``key_BL``."""
        length, num_queries = self.key_BL.shape[1], self.query_BQ.shape[1]
        row = self.cells // num_queries
        before = 0 if self.shared_B is None else self.shared_B[row]
        return row * length + before + self.cells % num_queries

    def mask(self, window: int | None) -> Tensor | None:
        """Return which keys each query sees, (B or 1, 1, Q, L); None where that is all up to its own place.

        ``window``: number of tokens that each sees, itself included; None for all.
        """
        num_queries, length = self.query_BQ.shape[1], self.key_BL.shape[1]
        if self.shared_B is None and (window is None or window >= length):
            return None
        before = torch.zeros_like(self.cells[:1]) if self.shared_B is None else self.shared_B
        at = torch.arange(length, device=before.device)
        distance = (before[:, None] + at[:num_queries])[:, None, :, None] - at
        return (distance >= 0) & (distance < (window or length))


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
    """Index of each stream token in the concatenated real cells of all buckets."""

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
        lengths = [each for each in zip(queries_S.tolist(), keys_S.tolist(), borders[1:], strict=True) if each[0]]
        buckets = [_bucket(group, unshared_index) for group in _like_lengths(lengths)] if padded else []
        order = [bucket.query_BQ.flatten()[bucket.cells] for bucket in buckets]
        return cls(
            to_device(_borders(queries_S[asks_S]), device),
            to_device(_borders(keys_S[asks_S]), device),
            to_device(key_index_E, device) if len(first_index_T) < len(unshared_index) else None,
            int(queries_S.max()),
            int(keys_S.max()),
            tuple(bucket.to(device) for bucket in buckets),
            to_device(torch.cat([unshared_index[:0], *order]).argsort(), device),
        )


def _borders(lengths_S: npt.NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], lengths_S.cumsum()]).astype(np.int32))


SHORT = 256
"""Largest score matrix of a sample that is held whole on a CPU: so many tokens squared."""
Lengths = tuple[int, int, int]
"""Of a sample: its queries, its keys, and its end in the full layout."""


def _like_lengths(samples: list[Lengths]) -> list[list[Lengths]]:
    """Cut samples into groups whose shortest has at least 4/5 of the keys of their longest.

    At most a fifth of the keys is padding, while the number of kernel calls grows only with the logarithm of the
    longest sample. Samples whose prompt an earlier one has ask for their response alone: the shortest response of a
    group is more than half as long as the longest.
    """
    groups: dict[tuple[bool, int], list[list[Lengths]]] = {}
    for each in sorted(samples, key=itemgetter(1), reverse=True):
        num_queries, num_keys, _ = each
        alike = groups.setdefault((num_queries < num_keys, num_queries < num_keys and num_queries.bit_length()), [])
        if not alike or 5 * num_keys < 4 * alike[-1][0][1]:
            alike.append([])
        alike[-1].append(each)
    return [group for alike in groups.values() for group in alike]


def _bucket(samples: list[Lengths], unshared_index_E: Tensor) -> Bucket:
    queries_B, keys_B, end_B = torch.tensor(samples).unbind(1)

    def rectangle(length_B: Tensor) -> tuple[Tensor, Tensor]:
        offset_L = torch.arange(int(length_B.max()))
        at_BL = (end_B - length_B)[:, None] + torch.minimum(offset_L, length_B[:, None] - 1)
        return unshared_index_E[at_BL], (offset_L < length_B[:, None]).flatten().nonzero().squeeze(1)

    query_BQ, cells = rectangle(queries_B)
    shared_B = keys_B - queries_B
    return Bucket(query_BQ, rectangle(keys_B)[0], shared_B if shared_B.any() else None, cells)


def choose_attention(
    device: torch.device | str, dtype: torch.dtype, wanted: Literal["auto", "flash_attn", "torch"] = "auto"
) -> tuple[str, str]:
    """Return the name to give transformers as ``attn_implementation``, and why that.

    Raises UserError when what is wanted cannot be had.
    """
    flash_runs = torch.device(device).type == "cuda" and dtype in (torch.bfloat16, torch.float16)
    if wanted == "flash_attn":
        check_flash_attn("cuda" if flash_runs else "cpu")
        return FLASH, "as train.attention says"
    if not flash_runs:
        return PADDED, "flash kernels need a GPU and 16 bits"
    if wanted == "torch":
        return VARLEN, "as train.attention says"
    if torch.cuda.get_device_capability(device)[0] not in FLASH_GPUS:
        return VARLEN, "FlashAttention 4 is made for Hopper and Blackwell GPUs"
    if problem := flash_attn_problem():
        return VARLEN, f"FlashAttention 4 cannot be imported: {problem}"
    return FLASH, "a GPU that FlashAttention 4 is made for"


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
    # Not by torch's own dispatch to FlashAttention 4, which expects two results of a function that has five by now.
    from flash_attn.cute import flash_attn_varlen_func

    out: Tensor = flash_attn_varlen_func(
        q, k, v,
        cu_seqlens_q=segments.cu_queries, cu_seqlens_k=segments.cu_keys,
        max_seqlen_q=segments.max_queries, max_seqlen_k=segments.max_keys,
        softmax_scale=scale, causal=True, window_size=(None if window[0] < 0 else window[0], window[1]),
    )[0]  # fmt: skip
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
        if query.shape[-1] > FLASH_HEAD:
            others |= {"segments": segments, "dropout": dropout, "scaling": scaling, "sliding_window": sliding_window}
            return padded_attention(module, query, key, value, attention_mask, **others)  # type: ignore[arg-type]
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
        q, k, v = (
            x.index_select(0, index.flatten()).unflatten(0, index.shape).transpose(1, 2)
            for x, index in (
                (query_THD, bucket.query_BQ), (key_TKD, bucket.key_BL), (value_TKD, bucket.key_BL)
            )
        )  # fmt: skip
        held = query.device.type == "cpu" and q.shape[2] * k.shape[2] <= SHORT**2
        out_BHQD = (attn_matmul if held else attn_sdpa)(q, k, v, bucket.mask(sliding_window), scaling)
        pieces.append(out_BHQD.transpose(1, 2).flatten(0, 1).index_select(0, bucket.cells))
    return torch.cat(pieces).index_select(0, segments.unpad_index_T).unsqueeze(0), None


def attn_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """torch's own kernels: never the whole (Q, L) matrix in memory. ``mask``: see `Bucket.mask`."""
    gqa = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=gqa)


def attn_matmul(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Plain matrix products, of all heads that share keys at once: faster on a CPU where the scores are few
    (`benchmarks.attention`)."""
    (batch, heads, num_queries, width), (length, kv_heads) = q.shape, (k.shape[2], k.shape[1])
    if mask is None:
        mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    grouped = (q * (width**-0.5 if scale is None else scale)).reshape(batch, kv_heads, -1, width)
    scores = (grouped @ k.mT).view(batch, heads, num_queries, length).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1).view(batch, kv_heads, -1, length) @ v).view(q.shape)


def run_by_sample(mixing: nn.Module) -> None:
    """Bind a part of a layer in which tokens meet by a convolution or a recurrent state, so that it runs over each
    sample by itself, padded to like lengths; over a prompt again for each of its responses.

    Padding stands to the right, and the part computes from left to right.
    """
    of_stream = mixing.forward

    def forward(hidden_states: Tensor, segments: Segments, **others: object) -> Tensor:
        _refuse_unknown(mixing, others)
        pieces = []
        for bucket in segments.buckets:
            rows = hidden_states[0].index_select(0, bucket.key_BL.flatten()).unflatten(0, bucket.key_BL.shape)
            pieces.append(of_stream(rows).flatten(0, 1).index_select(0, bucket.asking_cells()))
        return torch.cat(pieces).index_select(0, segments.unpad_index_T).unsqueeze(0)

    mixing.forward = forward


# No mask function is registered on purpose: transformers then builds no mask at all for these names.
AttentionInterface.register(VARLEN, _flat_attention(_attend_torch))
AttentionInterface.register(FLASH, _flat_attention(_attend_flash))
AttentionInterface.register(PADDED, padded_attention)
