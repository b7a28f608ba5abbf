"""One training step's completions, packed once for all models: what every rank computes on, and back in order.

Legend: R response tokens of all completions of a step, in their order; R_k those of rank k, in packed order.
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

PerToken = Mapping[str, Tensor]
"""Of every response token by name: numbers such as `advantages`, float32, and `is_trace`, bool; (R) on the driver and
(R_k) on a rank."""


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """What one rank does in one optimizer step."""

    micro_batches: tuple[PackedBatch, ...]
    """As many on every rank."""
    normalizer: float
    """Response tokens of the mini-batch on all ranks; divides the summed loss."""


RankBatch = tuple[MiniBatch, ...]
"""All that one rank computes on in a training step."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """A step's completions, packed for all ranks and put into Ray's object store, from where each model reads them."""

    rank_refs: tuple[ray.ObjectRef, ...]
    """Of one RankBatch per rank."""
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
        order: list[list[int]] = [[] for _ in range(ranks)]  # per rank the completions that it holds
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

    def for_ranks(self, per_token: PerToken) -> list[tuple[ray.ObjectRef, dict[str, Tensor]]]:
        """Arguments for each rank: its batch, and its part of the step's arrays (R)."""
        return [
            (ref, {name: values_R[index] for name, values_R in per_token.items()})
            for ref, index in zip(self.rank_refs, self.token_index, strict=True)
        ]

    def gather(self, outputs: Sequence[Tensor]) -> Tensor:
        """Arrays (R_k), one per rank, as one in the completions' order; without tokens that are not in the batch."""
        return torch.cat(list(outputs))[torch.cat(self.token_index).argsort()]

    def spread(self, values: Tensor, num_tokens: int) -> Tensor:
        """What `gather` gave, as one of the step's arrays: `num_tokens` long, with 0 for tokens not in this batch."""
        spread_R = values.new_zeros(num_tokens)
        spread_R[self.index_R] = values
        return spread_R

    def select(self, values_R: Tensor) -> Tensor:
        """Of one of the step's arrays the numbers of this batch's tokens, in the order of `gather`."""
        return values_R[self.index_R]

    @property
    def index_R(self) -> Tensor:
        """Which of the step's tokens are in this batch, in the order of `gather`: int64, at most (R)."""
        return torch.cat(self.token_index).sort().values
