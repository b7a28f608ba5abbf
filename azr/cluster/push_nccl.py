"""Weight sync from the policy's first rank to engines on other GPUs, by NCCL broadcast.

Rank 0 and every engine's workers form a process group through vLLM. It is formed again after an engine was replaced,
and abandoned if a broadcast does not end in time: NCCL itself would wait for a dead peer for ever.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import ray
import torch
from ray import ObjectRef
from ray.exceptions import RayActorError

from azr.cluster.weight_buckets import BucketWriter, WeightBucket
from azr.cluster.weight_transfers import Inbox, Outbox, Rank, Receiver

NCCL = "nccl"
POLL_S = 0.0002
"""Seconds between two checks of a broadcast."""


class Communicator(Protocol):
    """The part of vLLM's `PyNcclCommunicator` that is used here."""

    def broadcast(self, tensor: torch.Tensor, src: int, stream: torch.cuda.Stream) -> None: ...

    def destroy(self) -> None: ...


class Network:
    """Forms a group and broadcasts in it; tests on a CPU use gloo instead."""

    @staticmethod
    def join_as_sender(address: str, port: int, world_size: int) -> Communicator:
        """Join the group as member 0; returns once all members have joined."""
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        return trainer_init({"master_address": address, "master_port": port, "world_size": world_size}, rank=0)

    @staticmethod
    def join_as_worker(address: str, port: int, world_size: int, rank_offset: int, parallel: Any) -> Communicator:
        """Join the group as this worker's member; those of its engine begin at `rank_offset`."""
        from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_process_group

        info = NCCLWeightTransferInitInfo(
            master_address=address, master_port=port, rank_offset=rank_offset, world_size=world_size
        )
        return worker_init_process_group(info, parallel)

    @staticmethod
    def start_broadcast(communicator: Communicator, tensor: torch.Tensor) -> Callable[[], bool]:
        """Broadcast from member 0 into the others' tensor. Returns a function that says whether it is done here."""
        # PyNccl's default stream would not wait for the copy into the tensor, so pass the current stream.
        stream = torch.cuda.current_stream(tensor.device)
        communicator.broadcast(tensor, src=0, stream=stream)
        done = torch.cuda.Event()
        done.record(stream)
        query: Callable[[], bool] = done.query
        return query


class NcclOutbox(Outbox):
    """Sender: rank 0 broadcasts to all workers."""

    def __init__(self, rank: Rank, network: Network | None = None) -> None:
        super().__init__(rank)
        self._network = network or Network()
        self._members: list[str] = []
        self._communicator: Communicator | None = None
        self._writer: BucketWriter | None = None

    def open(self, bucket_nbytes: int, receivers: Sequence[Receiver], timeout_s: float) -> BucketWriter:
        members = [receiver.actor._actor_id.hex() for receiver in receivers]
        # After a push that failed, members may be at different broadcasts.
        failed = self._writer is not None
        self.close()
        if self._communicator is None or members != self._members or failed:
            self._disconnect()
            self._connect(receivers, timeout_s)
            self._members = members
        self._writer = BucketWriter(NCCL, lambda nbytes: DeviceBlock(nbytes, self.rank.device), bucket_nbytes)
        return self._writer

    def _connect(self, receivers: Sequence[Receiver], timeout_s: float) -> None:
        size = 1 + len(receivers) * self.rank.engine_gpus
        address, port = ray.util.get_node_ip_address(), _free_port()
        group = {"address": address, "port": port, "world_size": size}
        joining = [
            receiver.actor.connect.remote(
                NCCL, group | {"rank_offset": 1 + index * self.rank.engine_gpus, "timeout_s": timeout_s}
            )
            for index, receiver in enumerate(receivers)
        ]
        result: list[Communicator | BaseException] = []

        def join() -> None:
            if self.rank.device.type == "cuda":
                torch.cuda.set_device(self.rank.device)
            try:
                result.append(self._network.join_as_sender(address, port, size))
            except BaseException as error:
                result.append(error)

        # In a thread, because joining waits for ever for an engine that has died: the thread is then left behind.
        threading.Thread(target=join, daemon=True).start()
        wait_until(lambda: bool(result), timeout_s, "the engines to join the policy's NCCL group", joining)
        if isinstance(result[0], BaseException):
            raise RuntimeError(f"the policy could not form an NCCL group with the engines: {result[0]}") from result[0]
        self._communicator = result[0]
        _answers(joining)

    def deliver(self, bucket: WeightBucket, receivers: Sequence[Receiver], timeout_s: float) -> list[ObjectRef]:
        assert self._writer is not None and self._communicator is not None
        loading = [receiver.actor.load_bucket.remote(bucket) for receiver in receivers]
        try:
            sent = self._network.start_broadcast(self._communicator, bucket.region(self._writer.block.bytes))
            wait_until(sent, timeout_s, "a broadcast of weights to the engines", loading)
        except BaseException:
            self._disconnect()
            raise
        return loading

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _disconnect(self) -> None:
        if self._communicator is not None:
            self._communicator.destroy()
        self._communicator, self._members = None, []


class DeviceBlock:
    """Device memory of this process, whose bytes are broadcast."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.bytes = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.source: dict[str, str] = {}

    def close(self) -> None:
        self.bytes = self.bytes.new_empty(0)


class NcclInbox(Inbox):
    """Receiver: takes each bucket into its own memory."""

    def __init__(self, device: torch.device, network: Network | None = None) -> None:
        super().__init__(device)
        self._network = network or Network()
        self._communicator: Communicator | None = None
        self._timeout_s = 0.0

    def connect(self, info: Mapping[str, Any], parallel: Any) -> None:
        self._disconnect()
        self._timeout_s = info["timeout_s"]
        self._communicator = self._network.join_as_worker(
            info["address"], info["port"], info["world_size"], info["rank_offset"], parallel
        )

    def take(self, bucket: WeightBucket) -> torch.Tensor:
        if self._communicator is None:
            raise ValueError("this engine is in no NCCL group with the policy: the sender has to connect first")
        region = torch.empty(bucket.padded_nbytes, dtype=torch.uint8, device=self.device)
        try:
            received = self._network.start_broadcast(self._communicator, region)
            wait_until(received, self._timeout_s, "a broadcast of weights from the policy")
        except BaseException:
            self._disconnect()
            raise
        return region

    def _disconnect(self) -> None:
        if self._communicator is not None:
            self._communicator.destroy()
        self._communicator = None


def wait_until(done: Callable[[], bool], timeout_s: float, what: str, answers: Sequence[ObjectRef] = ()) -> None:
    """Return when `done` does. Raises TimeoutError after `timeout_s`, and what one of the `answers` raises meanwhile,
    because then `done` would never be true."""
    deadline, unanswered = time.monotonic() + timeout_s, list(answers)
    looked = time.monotonic()
    while not done():
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        if unanswered and now - looked > 0.1:
            looked = now
            answered, unanswered = ray.wait(unanswered, num_returns=len(unanswered), timeout=0)
            _answers(answered)
        time.sleep(POLL_S)


def _answers(refs: Sequence[ObjectRef]) -> None:
    try:
        ray.get(list(refs))
    except RayActorError as error:
        # Not as itself: to the driver it would look like the death of this rank.
        raise RuntimeError("an engine died while the policy was about to send it weights") from error


def _free_port() -> int:
    """Return a port that is free now; vLLM opens it at once."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


OUTBOX, INBOX = NcclOutbox, NcclInbox
