"""One training step's completions, packed once for all models and ranks; columns go to the ranks and come back.

Legend: R response tokens of all completions of a step, in their order; R_k those of rank k, in packed order; B tokens
of the completions that were packed, in the order of R.
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


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """One rank's part of an optimizer step."""

    micro_batches: tuple[PackedBatch, ...]
    """Their number is the same on every rank."""
    normalizer: float
    """Response tokens of the mini-batch on all ranks; divides the summed loss."""


RankBatch = tuple[MiniBatch, ...]
"""One rank's part of a training step."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """A step's completions, packed for all ranks and put into Ray's object store, from where each model reads them."""

    rank_refs: tuple[ray.ObjectRef, ...]
    """One RankBatch per rank."""
    token_index: tuple[Tensor, ...]
    """Per rank int64 (R_k): index of each of its response tokens among the R of the step."""
    micro_batches: float
    """Per rank and mini-batch, on average."""
    packing: float
    """Tokens of all completions per token computed: dummy batches lower it, shared prompts raise it above 1."""

    @classmethod
    def build(
        cls,
        completions: Sequence[Completion],
        mini_batches: Sequence[Sequence[int]],
        ranks: int,
        tokens_per_micro_batch: int,
    ) -> Self:
        """Pack the completions whose indices `mini_batches` hold, each in one micro-batch of one rank.

        Raises UserError for a mini-batch of fewer completions than ranks or a completion longer than a micro-batch.
        """
        packed: list[list[MiniBatch]] = [[] for _ in range(ranks)]
        order: list[list[int]] = [[] for _ in range(ranks)]  # completions that each rank holds
        for members in mini_batches:
            chosen = [completions[i] for i in members]
            normalizer = float(sum(len(c.response_ids) for c in chosen))
            for rank, micros in enumerate(make_micro_batches(chosen, ranks, tokens_per_micro_batch)):
                packed[rank].append(MiniBatch(tuple(pack([chosen[i] for i in micro]) for micro in micros), normalizer))
                order[rank] += [members[i] for micro in micros for i in micro]
        lengths = np.array([len(c.response_ids) for c in completions])
        starts = lengths.cumsum() - lengths
        everything = [micro for rank in packed for mini in rank for micro in mini.micro_batches]
        computed = sum(len(micro.token_ids_T) for micro in everything)
        members = [i for rank in order for i in rank]
        return cls(
            rank_refs=tuple(ray.put(tuple(rank)) for rank in packed),
            token_index=tuple(torch.from_numpy(ranges(starts[rank], lengths[rank])) for rank in order),
            micro_batches=len(everything) / (ranks * len(mini_batches)),
            packing=sum(completions[i].num_tokens for i in members) / computed,
        )

    def for_ranks(self, columns: Mapping[str, Tensor]) -> list[tuple[ray.ObjectRef, dict[str, Tensor]]]:
        """Arguments for each rank: its batch, and its part of each column (R)."""
        return [
            (ref, {name: column_R[index] for name, column_R in columns.items()})
            for ref, index in zip(self.rank_refs, self.token_index, strict=True)
        ]

    def gather(self, outputs: Sequence[Tensor]) -> Tensor:
        """Join the ranks' outputs (R_k) into one array (B)."""
        return torch.cat(list(outputs))[torch.cat(self.token_index).argsort()]

    def scatter(self, values_B: Tensor, num_tokens: int) -> Tensor:
        """Put the result of `gather` into a column (R) of `num_tokens`, with NaN for tokens not in this batch."""
        column_R = values_B.new_full((num_tokens,), torch.nan)
        column_R[torch.cat(self.token_index).sort().values] = values_B
        return column_R
