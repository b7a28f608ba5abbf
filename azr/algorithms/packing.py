"""From trajectories to packed streams: what goes into which micro-batch, and the tensors of one of them.

Legend: T tokens of a stream, S samples in it, E tokens of these samples laid out one after the other, R response
tokens in it, N trajectories of a batch. E is larger than T where samples share a prompt, which is in the stream once.

Alignment: every per-token number belongs to a *response token* and lives in an array of length R, samples in
stream order, without padding. Response token r is ``target_R[r]``, and is predicted from stream position
``predict_R[r]`` (the position just before it). A prompt token has no number, so no loss mask is needed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from azr.records import Completion

COLUMNS = ("old_logprobs", "reference_logprobs", "values", "advantages", "returns")
"""Per-response-token numbers that are computed after sampling and join a batch by name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedBatch:
    """One micro-batch as a flat stream. A batch of no samples is a filler: one token, R = 0, zero gradient."""

    indices: tuple[int, ...]
    """Numbers of the packed trajectories in the batch they came from."""
    token_ids_T: Tensor
    """int64; of each sample its prompt, unless an earlier one had the same, and its response, exactly as sampled."""
    position_ids_T: Tensor
    """int64; place in the sample, from 0."""
    layout_E: Tensor
    """int64; stream position of every token of the samples laid out in full."""
    cu_seqlens: Tensor
    """int32, (S + 1): sample s is ``layout_E[cu_seqlens[s] : cu_seqlens[s + 1]]``."""
    predict_R: Tensor
    """int64; stream position whose hidden state predicts the response token."""
    target_R: Tensor
    """int64; the response token."""
    behaviour_logprobs_R: Tensor
    """float32; what the engine reported while sampling."""
    old_logprobs_R: Tensor | None = None
    """float32; the trainer's logprobs before the first update; None when the policy takes only one update."""
    reference_logprobs_R: Tensor | None = None
    values_R: Tensor | None = None
    """float32; the critic's values before its first update."""
    advantages_R: Tensor | None = None
    returns_R: Tensor | None = None

    @property
    def stream(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What a network needs to go over the stream, in the order of its arguments."""
        return self.token_ids_T, self.position_ids_T, self.cu_seqlens, self.layout_E, self.predict_R

    def to(self, device: torch.device | str) -> PackedBatch:
        """The same batch with all tensors on ``device``."""
        moved: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        moved.update((name, value.to(device)) for name, value in moved.items() if isinstance(value, Tensor))
        return PackedBatch(**moved)


def pack(
    completions: Sequence[Completion], indices: Sequence[int], columns: Mapping[str, Tensor] | None = None
) -> PackedBatch:
    """Put the completions named by ``indices`` into one stream, without padding.

    ``columns`` maps names of ``COLUMNS`` to flat arrays over the response tokens of *all* completions, in order;
    the slices of the packed ones are taken. Raises ValueError for an unknown column or one of another length.
    """
    chosen = [completions[i] for i in indices]
    assert all(c.prompt_ids for c in chosen), "a completion without a prompt has nothing to predict its first token"
    tokens: list[int] = []
    places: list[int] = []
    prompts: dict[tuple[int, ...], range] = {}
    layout: list[int] = []
    predict: list[int] = []
    for c in chosen:
        if c.prompt_ids not in prompts:
            prompts[c.prompt_ids] = range(len(tokens), len(tokens) + len(c.prompt_ids))
            tokens += c.prompt_ids
            places += range(len(c.prompt_ids))
        prompt, response = prompts[c.prompt_ids], range(len(tokens), len(tokens) + len(c.response_ids))
        tokens += c.response_ids
        places += range(len(c.prompt_ids), len(c.prompt_ids) + len(c.response_ids))
        layout += [*prompt, *response]
        predict += [prompt[-1], *response][: len(response)]
    lengths = [len(c.prompt_ids) + len(c.response_ids) for c in chosen]
    return PackedBatch(
        indices=tuple(indices),
        token_ids_T=_flat(tokens or [0], torch.int64),
        position_ids_T=_flat(places or [0], torch.int64),
        layout_E=_flat(layout or [0], torch.int64),
        cu_seqlens=_flat(list(accumulate(lengths or [1], initial=0)), torch.int32),
        predict_R=_flat(predict, torch.int64),
        target_R=_flat([t for c in chosen for t in c.response_ids], torch.int64),
        behaviour_logprobs_R=_flat([x for c in chosen for x in c.logprobs], torch.float32),
        **_slices([len(c.response_ids) for c in completions], indices, columns or {}),
    )


def _flat(values: Sequence[float], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def _slices(lengths: Sequence[int], indices: Sequence[int], columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    unknown = sorted(set(columns) - set(COLUMNS))
    if unknown:
        raise ValueError(f"Unknown column {unknown[0]!r}; a packed batch can hold {', '.join(COLUMNS)}.")
    slices = {}
    for name, flat in columns.items():
        if flat.shape != (sum(lengths),):
            raise ValueError(f"Column {name!r} has shape {tuple(flat.shape)}; it must be ({sum(lengths)},).")
        pieces = flat.split(list(lengths))
        slices[f"{name}_R"] = torch.cat([flat[:0], *(pieces[i] for i in indices)])
    return slices


def unpack(indices: Sequence[Sequence[int]], outputs: Sequence[Tensor], response_lengths: Sequence[int]) -> Tensor:
    """Undo packing: per-micro-batch arrays (R,) back into one flat array over all N responses, in order.

    ``indices[m]`` are the trajectories of ``outputs[m]``; together they must hold every trajectory exactly once.
    """
    assert sorted(i for part in indices for i in part) == list(range(len(response_lengths)))
    pieces: dict[int, Tensor] = {}
    for part, output in zip(indices, outputs, strict=True):
        pieces.update(zip(part, output.split([response_lengths[i] for i in part]), strict=True) if part else {})
    return torch.cat([pieces[i] for i in range(len(response_lengths))])


def share_prompts(completions: Sequence[Completion], tokens_per_micro_batch: int) -> list[list[int]]:
    """Numbers of completions that had best travel together: those of one prompt, as many as a micro-batch holds."""
    bundles: list[list[int]] = []
    open_bundles: dict[tuple[int, ...], tuple[list[int], int]] = {}
    for number, c in enumerate(completions):
        bundle, tokens = open_bundles.get(c.prompt_ids, ([], len(c.prompt_ids)))
        if bundle and tokens + len(c.response_ids) > tokens_per_micro_batch:
            bundle, tokens = [], len(c.prompt_ids)
        if not bundle:
            bundles.append(bundle)
        bundle.append(number)
        open_bundles[c.prompt_ids] = bundle, tokens + len(c.response_ids)
    return bundles


def stream_length(completions: Sequence[Completion]) -> int:
    """Tokens that these completions take in one stream."""
    return sum(len(prompt) for prompt in {c.prompt_ids for c in completions}) + sum(
        len(c.response_ids) for c in completions
    )


def plan_micro_batches(lengths: Sequence[int], ranks: int, tokens_per_micro_batch: int) -> list[list[list[int]]]:
    """Assign samples to micro-batches: ``plan[rank][micro]`` is a list of sample numbers.

    Every sample appears exactly once; each micro-batch holds at most ``tokens_per_micro_batch`` tokens; all ranks
    have the same number of micro-batches, as few as the greedy search finds; token counts are balanced (longest
    sample first into the emptiest bin) and bins that run at the same time on different ranks are alike.
    Deterministic. A micro-batch is empty only where arithmetic forces it (three samples that each fill the budget,
    on two ranks); ``pack`` makes a filler of it, so that no sample is dropped or duplicated.

    Raises ValueError for fewer samples than ranks or a sample longer than the budget.
    """
    if len(lengths) < ranks:
        raise ValueError(
            f"{len(lengths)} samples cannot feed {ranks} ranks; sample more, split into fewer updates or lower "
            "train.data_parallel."
        )
    if max(lengths) > tokens_per_micro_batch:
        raise ValueError(
            f"A sample of {max(lengths)} tokens exceeds train.tokens_per_micro_batch={tokens_per_micro_batch}; "
            f"raise it to at least {max(lengths)} or shorten prompts and responses."
        )
    micro_batches = max(1, -(-sum(lengths) // (ranks * tokens_per_micro_batch)))
    while (bins := _fill_bins(lengths, ranks * micro_batches, tokens_per_micro_batch)) is None:
        micro_batches += 1
    return _deal(bins, lengths, ranks)


def _fill_bins(lengths: Sequence[int], count: int, capacity: int) -> list[list[int]] | None:
    """Longest-processing-time bins; None when the greedy order does not fit ``count`` bins."""
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, b) for b in range(count)]
    for sample in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, emptiest = heap[0]
        if load + lengths[sample] > capacity:
            return None
        bins[emptiest].append(sample)
        heapq.heapreplace(heap, (load + lengths[sample], emptiest))
    return bins


def _deal(bins: list[list[int]], lengths: Sequence[int], ranks: int) -> list[list[list[int]]]:
    """Fullest bins first, in snake order over the ranks: alike in each round and in total."""
    bins = sorted(bins, key=lambda samples: -sum(lengths[i] for i in samples))
    plan: list[list[list[int]]] = [[] for _ in range(ranks)]
    for at in range(0, len(bins), ranks):
        for rank, samples in enumerate(bins[at : at + ranks]):
            plan[rank if (at // ranks) % 2 == 0 else ranks - 1 - rank].append(sorted(samples))
    return plan


def split_updates(strata: Sequence[Hashable], parts: int, seed: int) -> list[list[int]]:
    """Split sample numbers into ``parts`` lists, one per optimizer step, alike in composition.

    ``strata[i]`` names what sample i is, e.g. ``(kind, role)``. Each stratum is shuffled by ``seed`` and dealt out
    in turn, so that a part's share of any stratum, and its size, differ by at most one sample from any other part's.
    Nothing is dropped. Raises ValueError when there are more parts than samples.
    """
    if parts > len(strata):
        raise ValueError(f"{len(strata)} samples cannot be split into {parts} updates; ask for fewer updates.")
    by_stratum: dict[Hashable, list[int]] = {}
    for sample, stratum in enumerate(strata):
        by_stratum.setdefault(stratum, []).append(sample)
    dealer = random.Random(seed)
    order: list[int] = []
    for samples in by_stratum.values():
        dealer.shuffle(samples)
        order += samples
    return [sorted(order[part::parts]) for part in range(parts)]
