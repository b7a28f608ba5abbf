"""Whether a GPU has the memory free that an engine wants at its start, and who has it where it is not."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass

from azr.errors import UserError

GIB = 2**30
CONTEXT_BYTES = GIB // 2
"""About what the CUDA context of the engine's own process takes before vLLM looks at what is free."""

PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    name: str
    """As CUDA_VISIBLE_DEVICES names it."""
    total: int
    """Bytes."""
    free: int
    """Bytes."""
    holders: dict[int, int | None]
    """Bytes by process id, of those that can be seen from here; None where the driver does not say."""


async def wait_until_free(share: float, gpus: int) -> None:
    """Returns once `share` of each of this process's first `gpus` GPUs is free.

    What an engine that died held comes back a little later. Raises UserError when it is not free after `PATIENCE_S`;
    vLLM would end with a traceback in a process of its own.
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
    """As NVML tells it, for CUDA would make a context in this process to answer."""
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
    """What is wanted, what is free and who has the rest, in a sentence; None when there is enough."""
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
