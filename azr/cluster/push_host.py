"""Weight sync through host memory: for CPUs, and for GPUs that can neither share memory nor use NCCL.

The block is anonymous memory (memfd): engines of the same node map it, the kernel frees it when its writer closes it,
exits or is killed, and a container's small /dev/shm does not bound it. To other nodes Ray's object store carries the
bytes, once per node, where every engine puts them into such a block again for its workers.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import ray
import torch
from ray import ObjectRef

from azr.cluster.weight_buckets import Block, Inbox, Outbox, WeightBucket


class HostBlock(Block):
    """Anonymous shared memory that other processes of this node open through this process's descriptor table."""

    def __init__(self, nbytes: int) -> None:
        # A file object, not a bare descriptor: dropping the last reference closes it.
        self._file = open(os.memfd_create("azr-weights"), "r+b", buffering=0)  # noqa: SIM115
        self._file.truncate(nbytes)
        self.bytes = torch.frombuffer(mmap.mmap(self._file.fileno(), nbytes), dtype=torch.uint8)
        self.source = {"path": f"/proc/{os.getpid()}/fd/{self._file.fileno()}"}

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def on_this_node(bucket: WeightBucket, region: np.ndarray | None) -> Iterator[WeightBucket]:
    """Yield the bucket as this node's processes can read it. `region` (N) uint8: its bytes, from another node."""
    if region is None:
        yield bucket
        return
    with closing(HostBlock(max(1, len(region)))) as block:
        block.bytes[: len(region)].numpy()[:] = region
        yield replace(bucket, source=block.source, start=0)


class HostOutbox(Outbox):
    """Sender: rank 0 owns the block."""

    transfer, keeps_block = "host", True

    def allocate(self, nbytes: int) -> HostBlock:
        return HostBlock(nbytes)

    def deliver(self, bucket: WeightBucket) -> dict[ObjectRef, str]:
        assert self.block is not None
        here = ray.get_runtime_context().get_node_id()
        far = any(receiver.node != here for receiver in self.receivers)
        region = ray.put(bucket.region(self.block.bytes).numpy()) if far else None
        return {
            receiver.actor.load_bucket.remote(bucket, None if receiver.node == here else region): receiver.name
            for receiver in self.receivers
        }


class HostInbox(Inbox):
    """Receiver: maps the block of each bucket; writing to what it maps does not reach the block."""

    def take(self, bucket: WeightBucket, *, keep: bool) -> torch.Tensor:
        path = bucket.source["path"]
        try:
            with open(path, "rb") as file:
                block = torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
        except OSError as error:
            raise ValueError(
                f"cannot open the weight block {path} ({error.strerror}): "
                "its writer must be alive, on the same node and owned by the same user"
            ) from error
        return bucket.region(block).to(self.device, copy=keep)


OUTBOX, INBOX = HostOutbox, HostInbox
