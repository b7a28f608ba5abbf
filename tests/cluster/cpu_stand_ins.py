"""In place of what a CPU has not: shared memory for a GPU's, and gloo for NCCL."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from azr.cluster.push_host import HostBlock
from azr.cluster.push_ipc import GpuMemory
from azr.cluster.push_nccl import Network


class ExportedBlock(HostBlock):
    """Memory that other processes map by a handle."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        super().__init__(nbytes)
        self.handle = self.source["path"]


class MappedBlock:
    """Memory of another process: like a GPU's, it changes under whoever has it mapped."""

    def __init__(self, handle: str, nbytes: int, device: torch.device) -> None:
        with open(handle, "r+b") as file:
            self.bytes = torch.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=torch.uint8)

    def close(self) -> None:
        # Whoever still reads it has kept a view, and not a copy.
        del self.bytes


def on_gpu(name: str) -> GpuMemory:
    return GpuMemory(gpu_id=lambda device: name, allocate=ExportedBlock, map=MappedBlock)


class GlooGroup:
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


class GlooNetwork(Network):
    @staticmethod
    def join_as_sender(address: str, port: int, world_size: int) -> GlooGroup:
        return GlooGroup(address, port, 0, world_size)

    @staticmethod
    def join_as_worker(address: str, port: int, world_size: int, rank_offset: int, parallel: Any) -> GlooGroup:
        return GlooGroup(address, port, rank_offset, world_size)

    @staticmethod
    def start_broadcast(group: GlooGroup, tensor: torch.Tensor) -> Callable[[], bool]:
        group.broadcast(tensor, src=0)
        work = group.work
        return lambda: work.is_completed() and work.wait()


GLOO = GlooNetwork()
