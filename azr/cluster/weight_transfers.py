"""The three transfers of a weight sync: CUDA IPC (`ipc`), NCCL (`nccl`) and host memory (`host`).

Each is an `Outbox` in the policy's ranks and an `Inbox` in the engines' workers, see `azr.cluster.weight_buckets`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import ray
import torch
import torch.distributed as dist
from ray import ObjectRef

from azr.cluster.weight_buckets import Block, Inbox, Outbox, Receiver, WeightBucket
from azr.cluster.weight_sync import raise_failures

POLL_S = 0.0002
"""Seconds between two checks of a broadcast."""


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
    """Sender through host memory: for CPUs, and for GPUs that can neither share memory nor use NCCL.

    The block is anonymous memory (memfd): engines of the same node map it, the kernel frees it when its writer closes
    it, exits or is killed, and a container's small /dev/shm does not bound it. To other nodes Ray's object store
    carries the bytes, once per node, where every engine puts them into such a block again for its workers.
    """

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


class _Handle(ctypes.Structure):
    """cudaIpcMemHandle_t of cuda's driver_types.h."""

    _fields_ = [("reserved", ctypes.c_char * 64)]


class CudaBlock(Block):
    """GPU memory that other processes can map, or another process's block on the same GPU.

    It is not from torch's allocator, which may use expandable segments, which cannot be exported, and which waits until
    every reader has released the memory, as a killed one never does.
    """

    def __init__(self, nbytes: int, device: torch.device, handle: str | None = None) -> None:
        """Allocate memory, or map the block of this handle."""
        self._device, self._pointer, self._owned = device, ctypes.c_void_p(), handle is None
        pointer = ctypes.byref(self._pointer)
        with torch.cuda.device(device):
            if handle is None:
                # What torch keeps for later is of no use to an allocation beside it.
                torch.cuda.empty_cache()
                exported = _Handle()
                _call("cudaMalloc", pointer, ctypes.c_size_t(nbytes))
                _call("cudaIpcGetMemHandle", ctypes.byref(exported), self._pointer)
                handle = bytes(exported).hex()
            else:
                known = _Handle.from_buffer_copy(bytes.fromhex(handle))
                # The flag is cudaIpcMemLazyEnablePeerAccess, the only one there is.
                _call("cudaIpcOpenMemHandle", pointer, known, ctypes.c_uint(1))
        self.handle, self.source = handle, {}
        # As (N) uint8, by numba's `__cuda_array_interface__`.
        array = {"shape": (nbytes,), "typestr": "|u1", "data": (self._pointer.value, False), "version": 2}
        self.bytes = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=array), device=device)

    @staticmethod
    def gpu(device: torch.device) -> str:
        """Return an identifier that is the same in every process that sees this GPU, whatever its index there."""
        return str(torch.cuda.get_device_properties(device).uuid)

    def close(self) -> None:
        """Free or unmap it. Every process that mapped it must have unmapped it before it is freed."""
        super().close()
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            _call("cudaFree" if self._owned else "cudaIpcCloseMemHandle", self._pointer)


@cache
def _runtime() -> Any:
    """Return the CUDA runtime that torch has loaded."""
    torch.cuda.init()
    name = f"libcudart.so.{str(torch.version.cuda).split('.')[0]}"
    maps = Path("/proc/self/maps").read_text().splitlines()
    loaded = [line.split()[-1] for line in maps if line.rsplit("/", 1)[-1].startswith(name)]
    runtime = ctypes.CDLL(loaded[0] if loaded else name)
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    runtime.cudaIpcOpenMemHandle.argtypes = [ctypes.POINTER(ctypes.c_void_p), _Handle, ctypes.c_uint]
    return runtime


def _call(function: str, *arguments: Any) -> None:
    runtime = _runtime()
    error = getattr(runtime, function)(*arguments)
    if error:
        runtime.cudaGetLastError()  # or torch would find it and blame a call of its own
        raise RuntimeError(f"{function}: {runtime.cudaGetErrorString(error).decode()}")


class IpcOutbox(Outbox):
    """Sender from GPU memory to the engine on the same GPU, by CUDA IPC handles.

    ZeRO-3 gathers every bucket on every rank's GPU anyway. During a push each rank has a block there, which the
    engine's worker on that GPU maps: weights cross no bus but the GPU's own memory, on one node as on many. The first
    bucket has the handles of all ranks.
    """

    transfer, every_rank, source_once, block_type = "ipc", True, True, CudaBlock

    def allocate(self, nbytes: int) -> CudaBlock:
        """Allocate a block and tell rank 0 every rank's handle. Collective."""
        block = self.block_type(nbytes, self.device)
        handles = [(block.gpu(self.device), block.handle)]
        if self.control is not None:
            handles *= self.control.size()
            dist.all_gather_object(handles, handles[0], group=self.control)
        block.source = dict(handles) | {"nbytes": str(nbytes)}
        return block

    def meet(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self.control is not None:
            dist.barrier(group=self.control)


class IpcInbox(Inbox):
    """Receiver: keeps the block of the rank on this GPU mapped during a push."""

    block_type = CudaBlock
    _mapped: CudaBlock | None = None

    def take(self, bucket: WeightBucket, *, keep: bool) -> torch.Tensor:
        if bucket.index == 0:
            self.close()
            here = self.block_type.gpu(self.device)
            if here not in bucket.source:
                raise ValueError(f"no rank of the policy is on this engine's GPU {here}: set cluster.push to auto")
            self._mapped = self.block_type(int(bucket.source["nbytes"]), self.device, bucket.source[here])
        assert self._mapped is not None, "buckets come in their order"
        region = bucket.region(self._mapped.bytes)
        return region.clone() if keep else region

    def close(self) -> None:
        if self._mapped is not None:
            self._mapped.close()
        self._mapped = None


class Group:
    """Member of the NCCL group of the policy's rank 0 and all workers of engines; tests on a CPU use gloo instead."""

    communicator: Any = None
    """vLLM's `PyNcclCommunicator` if there is a group."""

    @staticmethod
    def new_id() -> str:
        """Return the id of a new group, which NCCL makes in member 0 and listens behind; base64."""
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
        from vllm.utils.nccl import unpinned_nccl_env

        with unpinned_nccl_env():
            return b64encode(bytes(NCCLLibrary().ncclGetUniqueId().internal)).decode()

    @staticmethod
    def join(group_id: str, world_size: int, rank_offset: int = 0, parallel: Any = None) -> Any:
        """Return the communicator of member 0 or, with vLLM's ParallelConfig, of this worker, whose engine begins at
        `rank_offset`; returns once all members have joined."""
        from vllm.distributed.weight_transfer import nccl_common

        keys: dict[str, Any] = {"nccl_unique_id_b64": group_id, "world_size": world_size, "rank_offset": rank_offset}
        first = SimpleNamespace(data_parallel_index=0, world_size=1, rank=0)
        return nccl_common.worker_init_process_group(nccl_common.NCCLWeightTransferInitInfo(**keys), parallel or first)

    def start_broadcast(self, tensor: torch.Tensor) -> Callable[[], bool]:
        """Broadcast from member 0 into the others' tensor. Returns a function that says whether it is done here."""
        # PyNccl's default stream would not wait for the copy into the tensor, so pass the current stream.
        stream = torch.cuda.current_stream(tensor.device)
        self.communicator.broadcast(tensor, src=0, stream=stream)
        done = torch.cuda.Event()
        done.record(stream)
        return done.query

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
    """Sender from rank 0 to engines on other GPUs, by NCCL broadcast.

    Rank 0 and every engine's workers form a process group through vLLM. It is formed again after an engine was
    replaced, and abandoned if a broadcast does not end in time: NCCL itself would wait for a dead peer for ever.
    """

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
        group: dict[str, Any] = {"group_id": self.new_id(), "world_size": size, "timeout_s": self.timeout_s}
        joining = {
            receiver.actor.connect.remote(self.transfer, group | {"rank_offset": offset}): receiver.name
            for receiver, offset in zip(self.receivers, range(1, size, self.engine_gpus), strict=True)
        }
        joined: Future[Any] = Future()

        def join() -> None:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            try:
                joined.set_result(self.join(group["group_id"], size))
            except BaseException as error:
                joined.set_exception(error)

        # In a thread, because joining waits for ever for an engine that has died: the thread is then left behind.
        threading.Thread(target=join, daemon=True).start()
        wait_until(joined.done, self.timeout_s, "the engines to join the policy's NCCL group", joining)
        if error := joined.exception():
            raise RuntimeError(f"the policy could not form an NCCL group with the engines: {error}") from error
        self.communicator = joined.result()
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

    def connect(self, info: Mapping[str, Any], parallel: Any) -> None:
        self.leave()
        self._timeout_s = info["timeout_s"]
        self.communicator = self.join(info["group_id"], info["world_size"], info["rank_offset"], parallel)

    def take(self, bucket: WeightBucket, *, keep: bool) -> torch.Tensor:
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


OUTBOXES: dict[str, type[Outbox]] = {"ipc": IpcOutbox, "nccl": NcclOutbox, "host": HostOutbox}
INBOXES: dict[str, type[Inbox]] = {"ipc": IpcInbox, "nccl": NcclInbox, "host": HostInbox}
