"""Weight transfers: the interface of their two ends, all of them by name, and the choice of one for a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

from azr.config import Config
from azr.errors import UserError

if TYPE_CHECKING:
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
        self._writer: BucketWriter | None = None

    @abstractmethod
    def open(self, bucket_nbytes: int, receivers: Sequence[Receiver], timeout_s: float) -> BucketWriter:
        """Prepare a push to these engines; a collective if every rank sends."""

    def meet(self) -> None:
        """Wait until every sending rank is here and its writes have reached its block."""
        return None

    def deliver(self, bucket: WeightBucket, receivers: Sequence[Receiver], timeout_s: float) -> list[ObjectRef]:
        """Rank 0: let every engine load the bucket; returns one answer per engine, in order."""
        return [receiver.actor.load_bucket.remote(bucket) for receiver in receivers]

    def close(self) -> None:
        """End a push that every engine has loaded. After a failed push `open` is called instead."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Inbox(ABC):
    """Receiver in a worker process."""

    def __init__(self, device: torch.device) -> None:
        """`device`: the model's device."""
        self.device = device

    def connect(self, info: Mapping[str, Any], parallel: Any) -> None:
        """Meet the sender before the first bucket. `parallel`: vLLM's ParallelConfig."""
        raise NotImplementedError(f"{type(self).__name__} needs no connection")

    @abstractmethod
    def take(self, bucket: WeightBucket, *, keep: bool) -> torch.Tensor:
        """Return the bucket's bytes, (N) uint8, on the device; to `keep`, or else valid as long as the bucket is.

        The device may still be copying: synchronise it before the bucket counts as loaded. Raises ValueError if the
        bucket cannot be reached from here.
        """

    def close(self) -> None:
        """Release the sender's memory: the last bucket is loaded, or another update begins."""
        return None


Site = Literal["auto", "cuda", "cpu"]
"""Device of policy and engines; `auto` before Ray has started."""


def _ipc_refusal(config: Config, device: Site) -> str | None:
    if device == "cpu":
        return "is for memory of GPUs, and this run is on CPUs: leave it at auto, or take host"
    if not config.cluster.colocate:
        return "is for engines on the trainers' GPUs: leave it at auto, or switch cluster.colocate on"
    if alone := config.num_gpus - config.train.data_parallel:
        return f"needs the policy on {alone} more of the engines' GPUs: leave it at auto, or raise train.data_parallel"
    return None


def _nccl_refusal(config: Config, device: Site) -> str | None:
    if device == "cpu":
        return "is for GPUs, and this run is on CPUs: leave it at auto, or take host"
    if config.cluster.colocate:
        return "takes no two processes on one GPU: leave it at auto, or switch cluster.colocate off"
    return None


TRANSFERS: dict[str, Callable[[Config, Site], str | None]] = {
    "ipc": _ipc_refusal,
    "nccl": _nccl_refusal,
    "host": lambda config, device: None,
}
"""By name: returns why the transfer is impossible, as the end of a sentence on `cluster.push`, or None. `auto` takes
the first possible one. Module `azr.cluster.push_NAME` has its two ends, `OUTBOX` and `INBOX`, and is imported late:
commands without torch and Ray ask which transfers are possible."""


def make_outbox(transfer: str, rank: Rank) -> Outbox:
    return cast(Outbox, import_module(f"azr.cluster.push_{transfer}").OUTBOX(rank))


def make_inbox(transfer: str, device: torch.device) -> Inbox:
    return cast(Inbox, import_module(f"azr.cluster.push_{transfer}").INBOX(device))


def decide_push(config: Config, device: Site) -> Config:
    """Return the config with the transfer for `cluster.push`. Raises UserError if the named one is impossible."""
    push: Any = config.cluster.push
    if push == "auto":
        push = next(name for name, refusal in TRANSFERS.items() if refusal(config, device) is None)
    if reason := TRANSFERS[push](config, device):
        raise UserError(f"cluster.push={push} {reason}.")
    return replace(config, cluster=replace(config.cluster, push=push))
