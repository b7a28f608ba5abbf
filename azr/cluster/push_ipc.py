"""Weight sync from GPU memory to the engine on the same GPU, by CUDA IPC handles.

ZeRO-3 gathers every bucket on every rank's GPU anyway. Each rank copies it into a block there, and the engine's worker
on that GPU maps the block: weights cross no bus but the GPU's own memory, on one node as on many.

Blocks come from the CUDA runtime, for torch's allocator does not serve here. It may allocate from expandable segments,
which cannot be exported. It also waits until every reader has released the memory, which a killed reader never does.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from azr.cluster.weight_buckets import Block, Inbox, Outbox, WeightBucket

_NBYTES = "nbytes"
_HANDLE_BYTES = 64
"""CUDA_IPC_HANDLE_SIZE of cuda's driver_types.h."""
_LAZY_PEER_ACCESS = 1
"""cudaIpcMemLazyEnablePeerAccess, the only flag there is."""


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * _HANDLE_BYTES)]


class CudaBlock(Block):
    """GPU memory that other processes can map, or another process's block on the same GPU."""

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
                _call("cudaIpcOpenMemHandle", pointer, known, ctypes.c_uint(_LAZY_PEER_ACCESS))
        self.handle, self.source = handle, {}
        self.bytes = _as_tensor(self._pointer, nbytes, device)

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


def _as_tensor(pointer: ctypes.c_void_p, nbytes: int, device: torch.device) -> torch.Tensor:
    """Return the memory as (N) uint8, by numba's `__cuda_array_interface__`."""
    assert pointer.value is not None
    array = {"shape": (nbytes,), "typestr": "|u1", "data": (pointer.value, False), "version": 2}
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=array), device=device)


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
    """Sender: every rank has a block on its GPU during a push."""

    transfer, every_rank, block_type = "ipc", True, CudaBlock

    def allocate(self, nbytes: int) -> CudaBlock:
        """Allocate a block and tell rank 0 every rank's handle. Collective."""
        block = self.block_type(nbytes, self.device)
        handles = [(block.gpu(self.device), block.handle)]
        if self.control is not None:
            handles *= self.control.size()
            dist.all_gather_object(handles, handles[0], group=self.control)
        block.source = dict(handles) | {_NBYTES: str(nbytes)}
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
        here = self.block_type.gpu(self.device)
        handle = bucket.source.get(here)
        if handle is None:
            raise ValueError(f"no rank of the policy is on this engine's GPU {here}: set cluster.push to auto")
        if self._mapped is None or handle != self._mapped.handle:
            self.close()
            self._mapped = self.block_type(int(bucket.source[_NBYTES]), self.device, handle)
        region = bucket.region(self._mapped.bytes)
        return region.clone() if keep else region

    def close(self) -> None:
        if self._mapped is not None:
            self._mapped.close()
        self._mapped = None


OUTBOX, INBOX = IpcOutbox, IpcInbox
