"""Weight sync from the policy's first rank to engines on other GPUs, by NCCL broadcast.

Rank 0 and every engine's workers form a process group through vLLM. It is formed again after an engine was replaced,
and abandoned if a broadcast does not end in time: NCCL itself would wait for a dead peer for ever. vLLM's own trainer
side (`NCCLTrainerWeightTransferEngine`) does so too, so that only its group is used.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import ray
import torch
from ray import ObjectRef

from azr.cluster.weight_buckets import Block, Inbox, Outbox, Receiver, WeightBucket
from azr.cluster.weight_sync import raise_failures

POLL_S = 0.0002
"""Seconds between two checks of a broadcast."""


class Group:
    """Member of the NCCL group of the policy's rank 0 and all workers of engines; tests on a CPU use gloo instead."""

    communicator: Any = None
    """vLLM's `PyNcclCommunicator` if there is a group."""

    @staticmethod
    def join(address: str, port: int, world_size: int, rank_offset: int = 0, parallel: Any = None) -> Any:
        """Return the communicator of member 0 or, with vLLM's ParallelConfig, of this worker, whose engine begins at
        `rank_offset`; returns once all members have joined."""
        from vllm.distributed.weight_transfer import nccl_common

        group: dict[str, Any] = {"master_address": address, "master_port": port, "world_size": world_size}
        if parallel is None:
            return nccl_common.trainer_init(group, rank=0)
        info = nccl_common.NCCLWeightTransferInitInfo(**group, rank_offset=rank_offset)
        return nccl_common.worker_init_process_group(info, parallel)

    def start_broadcast(self, tensor: torch.Tensor) -> Callable[[], bool]:
        """Broadcast from member 0 into the others' tensor. Returns a function that says whether it is done here."""
        # PyNccl's default stream would not wait for the copy into the tensor, so pass the current stream.
        stream = torch.cuda.current_stream(tensor.device)
        self.communicator.broadcast(tensor, src=0, stream=stream)
        done = torch.cuda.Event()
        done.record(stream)
        query: Callable[[], bool] = done.query
        return query

    def broadcast(self, tensor: torch.Tensor, timeout_s: float, what: str, answers: Mapping[ObjectRef, str]) -> None:
        """Broadcast from member 0 into the others' tensor. Leaves the group if that fails, see `wait_until`."""
        try:
            wait_until(self.start_broadcast(tensor), timeout_s, what, answers)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        if self.communicator is not None:
            self.communicator.destroy()
        self.communicator = None


class NcclOutbox(Group, Outbox):
    """Sender: rank 0 broadcasts to all workers."""

    transfer = "nccl"
    _members: Sequence[str] = ()

    def open(self, bucket_nbytes: int, receivers: Sequence[Receiver] = (), timeout_s: float = 0.0) -> Self:
        members = [receiver.actor._actor_id.hex() for receiver in receivers]
        # After a push that failed, members may be at different broadcasts.
        failed = self.block is not None
        self.close()
        if failed or members != self._members:
            self.leave()
        self._members = members
        return super().open(bucket_nbytes, receivers, timeout_s)

    def allocate(self, nbytes: int) -> Block:
        if self.communicator is None:
            self._connect()
        return Block(nbytes, self.device)

    def _connect(self) -> None:
        size = 1 + len(self.receivers) * self.engine_gpus
        address = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])  # free now; vLLM opens it at once
        group = {"address": address, "port": port, "world_size": size, "timeout_s": self.timeout_s}
        joining = {
            receiver.actor.connect.remote(self.transfer, group | {"rank_offset": offset}): receiver.name
            for receiver, offset in zip(self.receivers, range(1, size, self.engine_gpus), strict=True)
        }
        result: list[Any] = []

        def join() -> None:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            try:
                result.append(self.join(address, port, size))
            except BaseException as error:
                result.append(error)

        # In a thread, because joining waits for ever for an engine that has died: the thread is then left behind.
        threading.Thread(target=join, daemon=True).start()
        wait_until(lambda: bool(result), self.timeout_s, "the engines to join the policy's NCCL group", joining)
        if isinstance(result[0], BaseException):
            raise RuntimeError(f"the policy could not form an NCCL group with the engines: {result[0]}") from result[0]
        self.communicator = result[0]
        try:
            raise_failures(joining)
        except BaseException:
            self.leave()
            raise

    def deliver(self, bucket: WeightBucket) -> dict[ObjectRef, str]:
        assert self.block is not None
        loading = super().deliver(bucket)
        region = bucket.region(self.block.bytes)
        self.broadcast(region, self.timeout_s, "a broadcast of weights to the engines", loading)
        return loading


class NcclInbox(Group, Inbox):
    """Receiver: takes each bucket into its own memory."""

    _timeout_s = 0.0

    def connect(self, info: Mapping[str, Any], parallel: Any) -> None:
        self.leave()
        self._timeout_s = info["timeout_s"]
        self.communicator = self.join(info["address"], info["port"], info["world_size"], info["rank_offset"], parallel)

    def take(self, bucket: WeightBucket, *, keep: bool) -> torch.Tensor:
        if self.communicator is None:
            raise ValueError("this engine is in no NCCL group with the policy: the sender has to connect first")
        region = torch.empty(bucket.padded_nbytes, dtype=torch.uint8, device=self.device)
        self.broadcast(region, self._timeout_s, "a broadcast of weights from the policy", {})
        return region


def wait_until(done: Callable[[], bool], timeout_s: float, what: str, answers: Mapping[ObjectRef, str]) -> None:
    """Return when `done` does. Raises TimeoutError after `timeout_s`, and what one of the engines' `answers` raises
    meanwhile, because then `done` would never be true."""
    looked, unanswered = time.monotonic(), list(answers)
    deadline = looked + timeout_s
    while not done():
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        if unanswered and now - looked > 0.1:
            looked = now
            answered, unanswered = ray.wait(unanswered, num_returns=len(unanswered), timeout=0)
            raise_failures({answer: answers[answer] for answer in answered})
        time.sleep(POLL_S)


OUTBOX, INBOX = NcclOutbox, NcclInbox
