"""From completions to packed streams: which go into which micro-batch, and the tensors of one micro-batch.

Legend: T tokens of a packed stream, S samples in it, E tokens of these samples laid out one after the other, R response
tokens in it that a model wrote. E is larger than T where samples share a prompt, which is in the stream once.

Alignment: every per-token number belongs to a *response token* and lives in an array of length R, samples in
stream order, without padding. Response token r is ``target_R[r]``, and is predicted from stream position
``logit_pos_R[r]`` (the position just before it). A token of a prompt or of an observation has no number, so no loss
mask is needed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from azr.config import KEYS_PER_TOKEN
from azr.records import Completion, grouped

IntArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedBatch:
    """One micro-batch as a flat stream. Without samples it is a dummy batch: one token, R = 0, zero gradient."""

    token_ids_T: Tensor
    """int64; of each sample its prompt, unless an earlier one had the same, and its response, exactly as sampled."""
    position_ids_T: Tensor
    """int64; position in the sample, from 0."""
    unshared_index_E: Tensor
    """int64; stream position of every token of the samples laid out in full."""
    cu_seqlens: Tensor
    """int32, (S + 1): sample s is ``unshared_index_E[cu_seqlens[s] : cu_seqlens[s + 1]]``."""
    logit_pos_R: Tensor
    """int64; stream position whose hidden state predicts the response token."""
    target_R: Tensor
    """int64; the response token."""

    def __reduce__(self) -> tuple[Any, ...]:
        """As int32 arrays, which all numbers fit: Ray shares arrays between processes, and copies tensors thrice."""
        return _unpickle, tuple(getattr(self, f.name).numpy().astype(np.int32) for f in fields(self))


def _unpickle(*arrays: npt.NDArray[np.int32]) -> PackedBatch:
    named = {f.name: array for f, array in zip(fields(PackedBatch), arrays, strict=True)}
    dtypes = {"cu_seqlens": np.int32}
    return PackedBatch(**{n: torch.from_numpy(a.astype(dtypes.get(n, np.int64))) for n, a in named.items()})


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on ``device``. The CPU does not wait for a copy to a GPU: it is made from pinned memory, in order."""
    if torch.device(device).type != "cuda" or tensor.device.type != "cpu" or not tensor.numel():
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def pack(completions: Sequence[Completion]) -> PackedBatch:
    """Put completions into one stream, in their order and without padding; a prompt they share is in it once."""
    assert all(len(c.prompt_ids) for c in completions), (
        "a completion without a prompt has nothing to predict its first token"
    )
    pieces: list[IntArray] = []  # of the stream: a prompt where it is new, and each response
    first_positions: list[int] = []
    prompts: dict[int, int] = {}
    starts: list[tuple[int, int]] = []  # of each sample's prompt and response in the stream
    end = 0
    for c, prompt in zip(completions, number_prompts(completions), strict=True):
        length = len(c.prompt_ids)
        if prompt not in prompts:
            prompts[prompt] = end
            pieces.append(c.prompt_ids)
            first_positions.append(0)
            end += length
        starts.append((prompts[prompt], end))
        pieces.append(c.response_ids)
        first_positions.append(length)
        end += len(c.response_ids)
    start_S2 = np.array(starts, np.int64).reshape(-1, 2)
    length_S2 = np.array([(len(c.prompt_ids), len(c.response_ids)) for c in completions], np.int64).reshape(-1, 2)
    # A response's first token is predicted by the last of its prompt, the others by those of the response before them.
    logit_S2 = np.stack([start_S2[:, 0] + length_S2[:, 0] - 1, start_S2[:, 1]], axis=1)
    nonempty_S = length_S2[:, 1] > 0
    logit_length_S2 = np.stack([nonempty_S, length_S2[:, 1] - nonempty_S], axis=1)
    dummy = np.zeros(0 if completions else 1, np.int64)
    lengths_S = length_S2.sum(1) if completions else np.ones(1, np.int64)
    token_ids_T = _joined([*pieces, dummy])
    is_sampled = np.concatenate([np.zeros(0, bool), *(c.is_sampled for c in completions)])
    return PackedBatch(
        token_ids_T=torch.from_numpy(token_ids_T),
        position_ids_T=torch.from_numpy(_joined([ranges(first_positions, [len(each) for each in pieces]), dummy])),
        unshared_index_E=torch.from_numpy(_joined([ranges(start_S2, length_S2), dummy])),
        cu_seqlens=torch.from_numpy(np.concatenate([[0], lengths_S.cumsum()]).astype(np.int32)),
        logit_pos_R=torch.from_numpy(ranges(logit_S2, logit_length_S2)[is_sampled]),
        target_R=torch.from_numpy(_joined([c.response_ids for c in completions])[is_sampled]),
    )


def padded_to(batch: PackedBatch, multiple: int) -> PackedBatch:
    """Round the stream's length up by a sample of its own without a response: nothing sees it, nothing is learned.

    Kernels that are compiled for what divides their sizes meet one kind of size then.
    """
    tokens = len(batch.token_ids_T)
    at_P = torch.arange(-tokens % multiple)
    border = batch.cu_seqlens[-1:] + len(at_P)
    return replace(
        batch,
        token_ids_T=torch.cat([batch.token_ids_T, torch.zeros_like(at_P)]),
        position_ids_T=torch.cat([batch.position_ids_T, at_P]),
        unshared_index_E=torch.cat([batch.unshared_index_E, tokens + at_P]),
        cu_seqlens=torch.cat([batch.cu_seqlens, border]) if len(at_P) else batch.cu_seqlens,
    )


def ranges(starts: npt.ArrayLike, lengths: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """`range(start, start + length)` of each pair, one after the other."""
    first, count = np.ravel(starts).astype(np.int64), np.ravel(lengths).astype(np.int64)
    return np.arange(count.sum()) + np.repeat(first - (count.cumsum() - count), count)


def _joined(arrays: Sequence[IntArray]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *arrays]).astype(np.int64, copy=False)


def make_micro_batches(
    completions: Sequence[Completion], ranks: int, tokens_per_micro_batch: int
) -> list[list[list[int]]]:
    """Indices of completions as ``plan[rank][micro]``: each completion is in exactly one micro-batch.

    Completions of one prompt share a micro-batch, and that prompt's tokens, unless there are fewer prompts than ranks.
    """
    groups = group_by_prompt(completions, tokens_per_micro_batch)
    if len(groups) < ranks:
        groups = [[index] for index in range(len(completions))]
    members = [[completions[i] for i in group] for group in groups]
    lengths = [_load(packed_length(some), sum(c.num_tokens for c in some)) for some in members]
    plan = plan_micro_batches(lengths, ranks, tokens_per_micro_batch)
    return [[sorted(i for group in micro for i in groups[group]) for micro in micros] for micros in plan]


def group_by_prompt(completions: Sequence[Completion], tokens_per_micro_batch: int) -> list[list[int]]:
    """Indices of completions that should stay together: those of one prompt, as many as a micro-batch holds."""
    prompt_groups: list[list[int]] = []
    newest: dict[int, tuple[list[int], int, int]] = {}
    for index, (c, prompt) in enumerate(zip(completions, number_prompts(completions), strict=True)):
        group, tokens, keys = newest.get(prompt, ([], len(c.prompt_ids), 0))
        if group and _load(tokens + len(c.response_ids), keys + c.num_tokens) > tokens_per_micro_batch:
            group, tokens, keys = [], len(c.prompt_ids), 0
        if not group:
            prompt_groups.append(group)
        group.append(index)
        newest[prompt] = group, tokens + len(c.response_ids), keys + c.num_tokens
    return prompt_groups


def _load(tokens: int, keys: int) -> int:
    """Return the tokens that samples count as in a micro-batch: no fewer than hold the keys that attention gathers."""
    return max(tokens, -(-keys // KEYS_PER_TOKEN))


def packed_length(completions: Sequence[Completion]) -> int:
    """Tokens that these completions take in one stream."""
    prompts = dict(zip(number_prompts(completions), (len(c.prompt_ids) for c in completions), strict=True))
    return sum(prompts.values()) + sum(len(c.response_ids) for c in completions)


def number_prompts(completions: Sequence[Completion]) -> list[int]:
    """Prompt index of each completion; equal prompts share an index."""
    by_array: dict[int, int] = {}  # most completions of one prompt share its array, which is compared at once
    by_tokens: dict[bytes, int] = {}
    for c in completions:
        if id(c.prompt_ids) not in by_array:
            by_array[id(c.prompt_ids)] = by_tokens.setdefault(c.prompt_ids.tobytes(), len(by_tokens))
    return [by_array[id(c.prompt_ids)] for c in completions]


def plan_micro_batches(lengths: Sequence[int], ranks: int, tokens_per_micro_batch: int) -> list[list[list[int]]]:
    """Assign samples to micro-batches: ``plan[rank][micro]`` is a list of sample indices.

    Every sample appears exactly once; each micro-batch holds at most ``tokens_per_micro_batch`` tokens; all ranks
    have the same number of micro-batches, as few as the search finds; token counts are balanced (longest
    sample first into the emptiest bin) and bins that run at the same time on different ranks are alike.
    Deterministic. A micro-batch is empty only where arithmetic forces it (three samples that each fill the budget,
    on two ranks); ``pack`` makes a dummy batch of it, so that no sample is dropped or duplicated.

    There are at least as many samples as ranks, and none is longer than the budget.
    """
    assert len(lengths) >= ranks, f"{len(lengths)} samples cannot feed {ranks} ranks"
    assert max(lengths) <= tokens_per_micro_batch, f"a sample of {max(lengths)} tokens is longer than a micro-batch"
    # At most k samples of more than a (k + 1)th of the budget fit one micro-batch.
    large = [sum((k + 1) * length > tokens_per_micro_batch for length in lengths) / k for k in (1, 2, 3)]
    least = math.ceil(max(1, sum(lengths) / tokens_per_micro_batch, *large) / ranks)
    longest_first = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))

    def fill(micro_batches: int) -> list[list[int]] | None:
        return _fill_bins(longest_first, lengths, ranks * micro_batches, tokens_per_micro_batch)

    # Widening steps to a number that does, then halves of the last step: a try puts all samples into bins.
    most, more = least, 1 + least // 64
    while (bins := fill(most)) is None:
        least, most, more = most + 1, most + more, 2 * more
    while least < most:
        middle = (least + most) // 2
        if (found := fill(middle)) is None:
            least = middle + 1
        else:
            bins, most = found, middle
    # Dealt out, fullest first, in snake order over the ranks: alike in each round and in total.
    bins.sort(key=lambda samples: -sum(lengths[i] for i in samples))
    plan: list[list[list[int]]] = [[] for _ in range(ranks)]
    for start in range(0, len(bins), ranks):
        for rank, samples in enumerate(bins[start : start + ranks]):
            plan[rank if (start // ranks) % 2 == 0 else ranks - 1 - rank].append(sorted(samples))
    return plan


def _fill_bins(order: Sequence[int], lengths: Sequence[int], count: int, capacity: int) -> list[list[int]] | None:
    """Put each sample, longest first, into the emptiest bin. Returns None if one does not fit."""
    bins = [[sample] for sample in order[:count]] + [[] for _ in range(count - len(order))]
    heap = [(lengths[sample], b) for b, sample in enumerate(order[:count])]
    heapq.heapify(heap)
    for sample in order[count:]:
        load, emptiest = heap[0]
        if load + lengths[sample] > capacity:
            return None
        bins[emptiest].append(sample)
        heapq.heapreplace(heap, (load + lengths[sample], emptiest))
    return bins


def split_mini_batches(labels: Sequence[Hashable], count: int, seed: int) -> list[list[int]]:
    """Split sample indices into ``count`` lists, one per optimizer step, alike in composition.

    ``labels[i]`` is sample i's label, e.g. ``(kind, role)``. The samples of each label are shuffled by ``seed`` and
    dealt out in turn, so that a mini-batch's share of any label, and its size, differ by at most one sample from any
    other's. Nothing is dropped; one mini-batch is all samples in order. There are no more mini-batches than samples.
    """
    if count == 1:
        return [list(range(len(labels)))]
    rng = random.Random(seed)
    order: list[int] = []
    for samples in grouped((label, sample) for sample, label in enumerate(labels)).values():
        rng.shuffle(samples)
        order += samples
    return [sorted(order[start::count]) for start in range(count)]


def without_samples(mini_batches: Sequence[Sequence[int]], keeps: Sequence[bool], ranks: int) -> list[Sequence[int]]:
    """Drop samples from each mini-batch, unless fewer than `ranks` would be left; ``keeps[i]``: keep sample i."""
    kept = [[index for index in members if keeps[index]] for members in mini_batches]
    return [some if len(some) >= ranks else members for some, members in zip(kept, mini_batches, strict=True)]
