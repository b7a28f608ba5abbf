"""An actor that keeps what a policy sends it, in place of a vLLM engine; host memory for a GPU's, gloo for NCCL."""

import asyncio
import mmap
import os
import socket
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from ray.actor import ActorHandle
from torch import Tensor

from azr.cluster.supervisor import SupervisedActor
from azr.cluster.weight_buckets import Inbox, WeightBucket, WeightDigest
from azr.cluster.weight_transfers import (
    INBOXES,
    Group,
    HostBlock,
    IpcInbox,
    IpcOutbox,
    NcclInbox,
    NcclOutbox,
    on_this_node,
)


def on_gpu(name: str) -> type[HostBlock]:
    """In the place of `CudaBlock`, on a GPU of this name."""

    class SharedBlock(HostBlock):
        def __init__(self, nbytes: int, device: torch.device, handle: str | None = None) -> None:
            self._mapped = handle is not None
            if handle is None:
                super().__init__(nbytes)
                handle = self.source["path"]
            else:  # like a GPU's, the memory of another process changes under whoever has it mapped
                with open(handle, "r+b") as file:
                    self.bytes = torch.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=torch.uint8)
            self.handle = handle

        @staticmethod
        def gpu(device: torch.device) -> str:
            return name

        def close(self) -> None:
            if self._mapped:
                del self.bytes  # whoever still reads it has kept a view, and not a copy
            else:
                super().close()

    return SharedBlock


def ipc_outbox(gpu: str, *arguments: Any) -> IpcOutbox:
    outbox = IpcOutbox(*arguments)
    outbox.block_type = on_gpu(gpu)
    return outbox


class Gloo:
    """Joins the processes that a `PyNcclCommunicator` would."""

    def __init__(self, address: str, port: int, rank: int, world_size: int) -> None:
        limit = timedelta(seconds=30)
        self.store = dist.TCPStore(address, port, world_size, is_master=rank == 0, timeout=limit)
        self.group: Any = dist.ProcessGroupGloo(self.store, rank, world_size, limit)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = src
        self.work = self.group.broadcast([tensor], options)

    def destroy(self) -> None:
        self.group = self.store = None


class GlooGroup(Group):
    @staticmethod
    def new_id() -> str:
        with socket.create_server(("", 0)) as probe:
            return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

    @staticmethod
    def join(group_id: str, world_size: int, rank_offset: int = 0, parallel: Any = None) -> Gloo:
        address, port = group_id.rsplit(":", 1)
        return Gloo(address, int(port), rank_offset, world_size)

    def start_broadcast(self, tensor: torch.Tensor) -> Callable[[], bool]:
        self.communicator.broadcast(tensor, src=0)
        work = self.communicator.work
        return lambda: work.is_completed() and work.wait()


class GlooOutbox(GlooGroup, NcclOutbox):
    pass


class GlooInbox(GlooGroup, NcclInbox):
    pass


class ReceivingEngine:
    """Keeps clones of the weights, as an engine would load them."""

    def __init__(self, gpu: str) -> None:
        self.gpu = gpu
        self.mischief: str | None = None
        self.served = 0
        self.carried = 0
        """Buckets whose bytes came from another node."""
        self.joined = 0
        """Groups that it joined."""
        self.inboxes: dict[str, Inbox] = {}

    async def start(self) -> None:
        pass

    async def ping(self) -> int:
        return self.served

    def misbehave(self, mischief: str | None) -> None:
        """`far`: says it is on another node. `fail`, `die`, `hang` for a second: over a bucket. `lie`: at the end."""
        self.mischief = mischief

    def begin_update(self, version: int) -> str:
        self.version, self.weights = version, {}
        for inbox in self.inboxes.values():
            inbox.close()
        self.buckets: list[WeightBucket] = []
        return "elsewhere" if self.mischief == "far" else ray.get_runtime_context().get_node_id()

    def connect(self, transfer: str, info: dict[str, Any]) -> None:
        self.joined += 1
        self.inbox(transfer).connect(info, None)

    def inbox(self, transfer: str) -> Inbox:
        if transfer not in self.inboxes:
            self.inboxes[transfer] = self.make_inbox(transfer)
        return self.inboxes[transfer]

    def make_inbox(self, transfer: str) -> Inbox:
        cpu = torch.device("cpu")
        inbox = GlooInbox(cpu) if transfer == "nccl" else INBOXES[transfer](cpu)
        if isinstance(inbox, IpcInbox):
            inbox.block_type = on_gpu(self.gpu)
        return inbox

    async def load_bucket(self, bucket: WeightBucket, region: np.ndarray | None = None) -> None:
        while bucket.version == self.version and bucket.index > len(self.buckets):
            await asyncio.sleep(0.001)
        if bucket.version != self.version:
            raise ValueError("of a push that failed")
        if self.mischief == "fail":
            raise ValueError("no room")
        if self.mischief == "die":
            os._exit(1)
        if self.mischief == "hang":
            time.sleep(1.0)
        if not self.buckets:
            self.digest = WeightDigest(full=bucket.full_check)
        self.buckets.append(bucket)
        self.carried += region is not None
        inbox = self.inbox(bucket.transfer)
        with on_this_node(bucket, region) as near:
            taken = inbox.take(near, keep=True)
        self.digest.add(bucket.slots, taken)
        if self.digest.hexdigest() != bucket.digest:
            raise ValueError("damaged")
        self.weights |= dict(bucket.tensors(taken))
        if bucket.last:
            inbox.close()

    def finish_update(self, version: int, digest: str) -> int:
        assert self.buckets[-1].last and self.buckets[-1].version == version
        assert digest == self.digest.hexdigest()
        self.served = version
        return 0 if self.mischief == "lie" else version

    def updating(self) -> int:
        return self.version

    def received(self) -> dict[str, Tensor]:
        return self.weights

    def bucket_count(self) -> int:
        return len(self.buckets)

    def full_checks(self) -> int:
        """Buckets of the last update whose digest was one of all bytes."""
        return sum(bucket.full_check for bucket in self.buckets)

    def counted(self) -> tuple[int, int]:
        """Buckets carried to here, and groups joined."""
        return self.carried, self.joined


async def start_receiver(
    index: int = 0, resync: Callable[[SupervisedActor], Awaitable[None]] | None = None, gpu: str = "GPU-0"
) -> SupervisedActor:
    """`resync`: brings an engine that replaces this one up to date. `gpu`: where it is, see `on_gpu`."""

    async def create() -> ActorHandle:
        return ray.remote(ReceivingEngine).options(num_cpus=0.1).remote(gpu)

    visit = None if resync is None else lambda: resync(engine)
    limits = {"start_timeout_s": 60, "max_restarts": 2}
    engine = SupervisedActor(f"rollout engine {index}", create, **limits, bring_up_to_date=visit)
    await engine.start()
    return engine
