"""Weight sync from GPU memory to the engine on the same GPU, by CUDA IPC handles.

ZeRO-3 gathers every bucket on every rank's GPU anyway. Each rank copies it into a block there, and the engine's worker
on that GPU maps the block: weights cross no bus but the GPU's own memory, on one node as on many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from ray import ObjectRef

from azr.cluster.cuda_memory import CudaBlock, CudaMapping, gpu_id
from azr.cluster.weight_buckets import Block, BucketWriter, WeightBucket
from azr.cluster.weight_endpoints import Inbox, Outbox, Rank, Receiver

IPC = "ipc"
_NBYTES = "nbytes"


class Mapping(Protocol):
    """Block of another process, mapped here."""

    @property
    def bytes(self) -> torch.Tensor: ...

    def close(self) -> None: ...


class Exported(Protocol):
    """Block that other processes can map."""

    @property
    def bytes(self) -> torch.Tensor: ...

    @property
    def handle(self) -> str: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Operations on shared GPU memory; tests on a CPU replace them by host memory."""

    gpu_id: Callable[[torch.device], str] = gpu_id
    allocate: Callable[[int, torch.device], Exported] = CudaBlock
    map: Callable[[str, int, torch.device], Mapping] = CudaMapping


class IpcOutbox(Outbox):
    """Sender: every rank has a block on its GPU during a push."""

    every_rank = True

    def __init__(self, rank: Rank, memory: GpuMemory | None = None) -> None:
        super().__init__(rank)
        self._memory = memory or GpuMemory()
        self._writer: BucketWriter | None = None

    def open(self, bucket_nbytes: int, receivers: Sequence[Receiver], timeout_s: float) -> BucketWriter:
        # What a push that failed has left, for its engines might still have been reading; those here now are not.
        self.close()
        self._writer = BucketWriter(IPC, self._allocate, bucket_nbytes)
        return self._writer

    def _allocate(self, nbytes: int) -> Block:
        """Allocate a block and tell rank 0 every rank's handle. Collective."""
        rank, exported = self.rank, self._memory.allocate(nbytes, self.rank.device)
        handles = [(self._memory.gpu_id(rank.device), exported.handle)]
        if rank.control is not None:
            gathered: list[tuple[str, str]] = [("", "")] * rank.size
            dist.all_gather_object(gathered, handles[0], group=rank.control)
            handles = gathered
        return _IpcBlock(exported, dict(handles) | {_NBYTES: str(nbytes)})

    def meet(self) -> None:
        if self.rank.device.type == "cuda":
            torch.cuda.synchronize(self.rank.device)
        if self.rank.control is not None:
            dist.barrier(group=self.rank.control)

    def deliver(self, bucket: WeightBucket, receivers: Sequence[Receiver], timeout_s: float) -> list[ObjectRef]:
        return [receiver.actor.load_bucket.remote(bucket) for receiver in receivers]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@dataclass(frozen=True, slots=True)
class _IpcBlock:
    exported: Exported
    source: dict[str, str]

    @property
    def bytes(self) -> torch.Tensor:
        return self.exported.bytes

    def close(self) -> None:
        self.exported.close()


class IpcInbox(Inbox):
    """Receiver: keeps the block of the rank on this GPU mapped during a push."""

    def __init__(self, device: torch.device, memory: GpuMemory | None = None) -> None:
        super().__init__(device)
        self._memory = memory or GpuMemory()
        self._handle: str | None = None
        self._mapping: Mapping | None = None

    def take(self, bucket: WeightBucket) -> torch.Tensor:
        here = self._memory.gpu_id(self.device)
        handle = bucket.source.get(here)
        if handle is None:
            raise ValueError(f"no rank of the policy is on this engine's GPU {here}: set cluster.push to auto")
        if self._mapping is None or handle != self._handle:
            self.close()
            self._mapping = self._memory.map(handle, int(bucket.source[_NBYTES]), self.device)
            self._handle = handle
        # A copy, for a layer whose parts come in two buckets keeps the first part until the second is there.
        region = bucket.region(self._mapping.bytes).clone()
        if bucket.last:
            self.close()
        return region

    def close(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
        self._mapping, self._handle = None, None


OUTBOX, INBOX = IpcOutbox, IpcInbox
