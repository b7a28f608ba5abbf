"""One training step's completions, packed once for all models and ranks; columns go to the ranks and come back.

Legend: R response tokens that models wrote, of all completions of a step, in their order; R_k those of rank k, in
packed order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import ray
import torch
from torch import Tensor

from azr.algorithms.packing import PackedBatch, make_micro_batches, pack, ranges
from azr.records import Completion

RankBatch = tuple[tuple[PackedBatch, ...], ...]
"""One rank's part of a training step: micro-batches by optimizer step, as many as on every other rank."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """A step's completions, packed for all ranks and put into Ray's object store, from where each model reads them."""

    rank_refs: tuple[ray.ObjectRef, ...]
    """One RankBatch per rank."""
    token_index: tuple[Tensor, ...]
    """Per rank int64 (R_k): index of each of its response tokens among the R of the step."""
    num_tokens: int
    """R, those of completions that were not packed included."""
    normalizers: tuple[float, ...]
    """Per mini-batch, response tokens on all ranks; divides the summed loss."""
    micro_batches: float
    """Per rank and mini-batch, on average."""
    computed: int
    """Tokens of all micro-batches on all ranks."""
    packing: float
    """Tokens of the packed completions per token computed: dummy batches lower it, shared prompts raise it above 1."""

    @classmethod
    def build(
        cls,
        completions: Sequence[Completion],
        mini_batches: Sequence[Sequence[int]],
        ranks: int,
        tokens_per_micro_batch: int,
    ) -> Self:
        """Pack the completions whose indices `mini_batches` hold, at least as many in each as there are `ranks`. Each
        is in one micro-batch of one rank, and no longer than that."""
        packed: list[list[tuple[PackedBatch, ...]]] = [[] for _ in range(ranks)]
        order: list[list[int]] = [[] for _ in range(ranks)]  # completions that each rank holds
        for members in mini_batches:
            chosen = [completions[i] for i in members]
            for rank, micros in enumerate(make_micro_batches(chosen, ranks, tokens_per_micro_batch)):
                packed[rank].append(tuple(pack([chosen[i] for i in micro]) for micro in micros))
                order[rank] += [members[i] for micro in micros for i in micro]
        lengths = np.array([c.num_sampled for c in completions])
        starts = lengths.cumsum() - lengths
        everything = [micro for rank in packed for micros in rank for micro in micros]
        computed = sum(len(micro.token_ids_T) for micro in everything)
        members = [i for rank in order for i in rank]
        return cls(
            rank_refs=tuple(ray.put(tuple(rank)) for rank in packed),
            token_index=tuple(torch.from_numpy(ranges(starts[rank], lengths[rank])) for rank in order),
            num_tokens=int(lengths.sum()),
            normalizers=tuple(float(lengths[list(members)].sum()) for members in mini_batches),
            micro_batches=len(everything) / (ranks * len(mini_batches)),
            computed=computed,
            packing=sum(completions[i].num_tokens for i in members) / computed,
        )

    def for_ranks(self, columns: Mapping[str, Tensor]) -> list[tuple[object, ...]]:
        """Return each rank's arguments of an update: its batch, the normalizers and its part of each column (R)."""
        return [
            (ref, self.normalizers, {name: column_R[index] for name, column_R in columns.items()})
            for ref, index in zip(self.rank_refs, self.token_index, strict=True)
        ]

    def column(self, outputs: Sequence[Tensor]) -> Tensor:
        """Join the ranks' outputs (R_k) into a column (R), with NaN for tokens that were not packed."""
        column_R = outputs[0].new_full((self.num_tokens,), torch.nan)
        for index, output in zip(self.token_index, outputs, strict=True):
            column_R[index] = output
        return column_R
