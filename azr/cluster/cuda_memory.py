"""GPU memory that another process on the same GPU can map, by the CUDA runtime.

torch's allocator does not serve here. It may allocate from expandable segments, which cannot be exported. It also waits
until every reader has released the memory, which a killed reader never does.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

_HANDLE_BYTES = 64
"""CUDA_IPC_HANDLE_SIZE of cuda's driver_types.h."""
_LAZY_PEER_ACCESS = 1
"""cudaIpcMemLazyEnablePeerAccess, the only flag there is."""


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * _HANDLE_BYTES)]


def gpu_id(device: torch.device) -> str:
    """Return an identifier that is the same in every process that sees this GPU, whatever its index there."""
    return str(torch.cuda.get_device_properties(device).uuid)


class CudaBlock:
    """GPU memory that this process owns and can export."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        # What torch keeps for later is of no use to an allocation beside it.
        torch.cuda.empty_cache()
        self._device, self._pointer = device, ctypes.c_void_p()
        handle = _Handle()
        with torch.cuda.device(device):
            _call("cudaMalloc", ctypes.byref(self._pointer), ctypes.c_size_t(nbytes))
            _call("cudaIpcGetMemHandle", ctypes.byref(handle), self._pointer)
        self.handle = bytes(handle).hex()
        """`CudaMapping` opens the block in another process with it."""
        self.bytes = _as_tensor(self._pointer, nbytes, device)

    def close(self) -> None:
        """Free the block. Every process that mapped it must have unmapped it."""
        self.bytes = self.bytes.new_empty(0)
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            _call("cudaFree", self._pointer)


class CudaMapping:
    """Another process's `CudaBlock`, on the same GPU."""

    def __init__(self, handle: str, nbytes: int, device: torch.device) -> None:
        self._device, self._pointer = device, ctypes.c_void_p()
        with torch.cuda.device(device):
            _call(
                "cudaIpcOpenMemHandle",
                ctypes.byref(self._pointer),
                _Handle.from_buffer_copy(bytes.fromhex(handle)),
                ctypes.c_uint(_LAZY_PEER_ACCESS),
            )
        self.bytes = _as_tensor(self._pointer, nbytes, device)

    def close(self) -> None:
        self.bytes = self.bytes.new_empty(0)
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            _call("cudaIpcCloseMemHandle", self._pointer)


class _CudaArray:
    """CUDA array of bytes for torch, by numba's `__cuda_array_interface__`."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 2}


def _as_tensor(pointer: ctypes.c_void_p, nbytes: int, device: torch.device) -> torch.Tensor:
    assert pointer.value is not None
    return torch.as_tensor(_CudaArray(pointer.value, nbytes), device=device)


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
