"""Check of the free GPU memory before an engine starts, with the processes that hold it."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass

from azr.errors import UserError

GIB = 2**30
CONTEXT_BYTES = GIB // 2
"""Memory of the engine's CUDA context, about, which vLLM allocates before it reads the free memory."""

PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    name: str
    """Name in CUDA_VISIBLE_DEVICES."""
    total: int
    """Bytes."""
    free: int
    """Bytes."""
    holders: dict[int, int | None]
    """Bytes by id of the visible processes; None if the driver does not report them."""


async def wait_until_free(share: float, gpus: int) -> None:
    """Wait until `share` of each of this process's first `gpus` GPUs is free.

    The memory of a dead engine is freed with a delay. Raises UserError if it is not free after `PATIENCE_S`; vLLM would
    end with a traceback in another process.
    """
    until = time.monotonic() + PATIENCE_S
    while complaints := [text for name in _names(gpus) if (text := shortage(_use(name), share)) is not None]:
        if time.monotonic() > until:
            raise UserError(complaints[0])
        await asyncio.sleep(1.0)


def _names(gpus: int) -> list[str]:
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (visible or [str(index) for index in range(gpus)])[:gpus]


def _use(name: str) -> GpuUse:
    """Read a GPU's memory from NVML: CUDA would create a context in this process."""
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    try:
        number = name.isdigit()
        device = pynvml.nvmlDeviceGetHandleByIndex(int(name)) if number else pynvml.nvmlDeviceGetHandleByUUID(name)
        memory = pynvml.nvmlDeviceGetMemoryInfo(device)
        holders = {each.pid: each.usedGpuMemory for each in pynvml.nvmlDeviceGetComputeRunningProcesses(device)}
        return GpuUse(name=name, total=int(memory.total), free=int(memory.free), holders=holders)
    finally:
        pynvml.nvmlShutdown()


def shortage(gpu: GpuUse, share: float) -> str | None:
    """Return a sentence on the wanted and free memory and its holders; None if enough is free."""
    wanted = share * gpu.total
    if gpu.free >= wanted + CONTEXT_BYTES:
        return None
    held = ", ".join(
        f"process {pid}" + (f" with {size / GIB:.1f} GiB" if size is not None else "")
        for pid, size in sorted(gpu.holders.items(), key=lambda item: -(item[1] or 0))
    )
    return (
        f"An engine wants {wanted / GIB:.1f} GiB of GPU {gpu.name} (rollout.gpu_memory_utilization={share:g} of "
        f"{gpu.total / GIB:.1f}) and {CONTEXT_BYTES / GIB:g} for its process to be free when it starts, but only "
        f"{gpu.free / GIB:.1f} are ({f'taken by {held}' if held else 'nvidia-smi says who has the rest'}): lower "
        "rollout.gpu_memory_utilization, or end what else runs on this GPU."
    )
