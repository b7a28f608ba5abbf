"""Interface of a weight transfer: an outbox in a policy rank, an inbox in an engine's worker.

`azr.cluster.weight_transfers` lists the transfers; no other module depends on one of them.
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
    """Engine that is ready for buckets."""

    name: str
    actor: ActorHandle
    node: str
    """Ray's id of its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Policy rank that takes part in pushes."""

    index: int
    size: int
    """Number of ranks."""
    device: torch.device
    control: dist.ProcessGroup | None
    """Process group of all ranks on the host; None for a single rank."""
    engine_gpus: int
    """Worker processes of each engine."""


class Outbox(ABC):
    """Sender in a rank. All ranks make one; those that send use it for every push."""

    every_rank = False
    """Whether every rank sends its own copy of the weights, or only rank 0. Only rank 0 calls engines."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    @abstractmethod
    def open(self, bucket_nbytes: int, receivers: Sequence[Receiver], timeout_s: float) -> BucketWriter:
        """Prepare a push to these engines; a collective if every rank sends."""

    def meet(self) -> None:
        """Wait until every sending rank is here and its writes have reached its block."""
        return None

    @abstractmethod
    def deliver(self, bucket: WeightBucket, receivers: Sequence[Receiver], timeout_s: float) -> list[ObjectRef]:
        """Rank 0: let every engine load the bucket; returns one answer per engine, in order."""

    def close(self) -> None:
        """End a push that every engine has loaded. After a failed push `open` is called instead."""
        return None


class Inbox(ABC):
    """Receiver in a worker process."""

    def __init__(self, device: torch.device) -> None:
        """`device`: the model's device."""
        self.device = device

    def connect(self, info: Mapping[str, Any], parallel: Any) -> None:
        """Meet the sender before the first bucket. `parallel`: vLLM's ParallelConfig."""
        raise NotImplementedError(f"{type(self).__name__} needs no connection")

    @abstractmethod
    def take(self, bucket: WeightBucket) -> torch.Tensor:
        """Return the bucket's bytes, (N) uint8, on the device, in memory that belongs to the caller.

        The device may still be copying: synchronise it before the bucket counts as loaded. Raises ValueError if the
        bucket cannot be reached from here.
        """

    def close(self) -> None:
        """Release the sender's memory: the update is over, or another one begins."""
        return None
