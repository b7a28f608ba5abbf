"""The two ends of a weight transfer, which every transfer implements: one in a policy rank, one in an engine's worker.

`azr.cluster.weight_transfers` lists the transfers; nothing else knows one from another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from ray import ObjectRef
from ray.actor import ActorHandle

from azr.cluster.weight_buckets import BucketWriter, WeightBucket


@dataclass(frozen=True, slots=True)
class Receiver:
    """An engine that is ready for buckets."""

    name: str
    actor: ActorHandle
    node: str
    """Ray's id of its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A policy rank that takes part in pushes."""

    index: int
    size: int
    """Ranks in all."""
    device: torch.device
    control: dist.ProcessGroup | None
    """All ranks, on the host; None when there is one only."""
    engine_gpus: int
    """Worker processes of each engine."""


class Outbox(ABC):
    """A rank's end. All ranks make one, and those that send use it for push after push."""

    every_rank = False
    """Whether every rank sends, from its own copy of the weights, or only rank 0. Rank 0 alone talks to engines."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    @abstractmethod
    def open(self, bucket_nbytes: int, receivers: Sequence[Receiver], timeout_s: float) -> BucketWriter:
        """Get ready for a push to these engines. Where every rank sends, a collective."""

    def meet(self) -> None:
        """Every rank that sends has come this far, and what it wrote is in its block."""
        return None

    @abstractmethod
    def deliver(self, bucket: WeightBucket, receivers: Sequence[Receiver], timeout_s: float) -> list[ObjectRef]:
        """On rank 0: have every engine load the bucket; one answer of each, in their order."""

    def close(self) -> None:
        """The push is over, and every engine has loaded all of it. After a failure the next `open` comes instead."""
        return None


class Inbox(ABC):
    """A worker process's end."""

    def __init__(self, device: torch.device) -> None:
        """`device`: of the model."""
        self.device = device

    def connect(self, info: Mapping[str, Any], parallel: Any) -> None:
        """Meet the sender before the first bucket. `parallel`: vLLM's ParallelConfig."""
        raise NotImplementedError(f"{type(self).__name__} needs no connection")

    @abstractmethod
    def take(self, bucket: WeightBucket) -> torch.Tensor:
        """The bucket's bytes, (N) uint8, on the device, in memory that stays the caller's own.

        The device may still be busy with them; it must be synchronised before the bucket counts as loaded. Raises
        ValueError when the bucket cannot be reached from here.
        """

    def close(self) -> None:
        """Let go of the sender's memory: the update is over, or another one begins."""
        return None
