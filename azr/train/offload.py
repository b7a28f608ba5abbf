"""Offload tensors to host memory and back while another process uses the GPU.

Tensors and all views of them stay the objects they were, as in PyTorch's FSDP, so nothing that refers to them needs to
know. DeepSpeed's `offload_states` is not used: it accepts its own Adam only, refuses a model without an optimizer, and
moves gradients, which are not needed any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, UntypedStorage


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes on a rank's GPU."""

    allocated: int
    """Bytes of this process's tensors."""
    reserved: int
    """The same, with the cache of torch's allocator."""
    used: int
    """Bytes of all processes."""


class OffloadedTensors:
    """The tensors of one model that are on the host at the moment. The copies' memory is kept for the next time."""

    def __init__(self, device: torch.device) -> None:
        """`device`: where the tensors live; those that live elsewhere are left alone."""
        self._device = device
        self._away: dict[UntypedStorage, tuple[int, Tensor | None]] = {}
        """Bytes that belong there, and their copy; no copy of what comes back as zeros."""
        self._spare: defaultdict[int, list[Tensor]] = defaultdict(list)
        """Host memory by its size. Page-locking takes long, so it is done once."""

    def offload(self, keep: Iterable[Tensor], drop: Iterable[Tensor] = ()) -> None:
        """Free the device memory under the tensors, and with them under all that share it.

        `drop`: comes back as zeros and costs no copy. What is away already stays as it is.
        """
        _finish(self._device)
        kept, dropped = self._present(keep), self._present(drop)
        copies: dict[UntypedStorage, tuple[int, Tensor | None]] = {}
        for storage in kept:
            spare = self._spare[storage.nbytes()]
            is_pinned = self._device.type == "cuda"
            copy = spare.pop() if spare else torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=is_pinned)
            copy.copy_(_bytes_of(storage), non_blocking=True)
            copies[storage] = (storage.nbytes(), copy)
        copies |= {storage: (storage.nbytes(), None) for storage in dropped - kept}
        _finish(self._device)
        for storage in copies:
            storage.resize_(0)
        self._away |= copies

    def reload(self, only: Iterable[Tensor] | None = None) -> None:
        """Bring back what is away, or of that only what lies under the given tensors, bit for bit."""
        away = set(self._away)
        for storage in away if only is None else away.intersection(tensor.untyped_storage() for tensor in only):
            nbytes, copy = self._away.pop(storage)
            storage.resize_(nbytes)
            if copy is None:
                _bytes_of(storage).zero_()
            else:
                _bytes_of(storage).copy_(copy, non_blocking=True)
                self._spare[nbytes].append(copy)
        _finish(self._device)

    def is_away(self, tensor: Tensor) -> bool:
        """Whether the tensor's memory is on the host."""
        return tensor.untyped_storage() in self._away

    def on_host(self, tensor: Tensor) -> Tensor:
        """The tensor's copy while it is away, else the tensor. Not for what was dropped."""
        if not self.is_away(tensor):
            return tensor
        _, copy = self._away[tensor.untyped_storage()]
        assert copy is not None, "this tensor was dropped"
        return copy.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _present(self, tensors: Iterable[Tensor]) -> set[UntypedStorage]:
        storages = {tensor.untyped_storage() for tensor in tensors if tensor.device == self._device}
        return {storage for storage in storages if storage.nbytes()} - self._away.keys()


def trim(device: torch.device) -> GpuMemory | None:
    """Makes torch's allocator give back what it does not use, and says what the GPU holds then; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return GpuMemory(torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device), total - free)


def _bytes_of(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _finish(device: torch.device) -> None:
    """Copies, and whatever other streams still do with the tensors, are done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
