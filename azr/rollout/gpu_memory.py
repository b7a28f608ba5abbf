"""Whether a GPU has the memory free that an engine wants at its start, and who has it where it is not."""

from __future__ import annotations

import os
from dataclasses import dataclass

from azr.errors import UserError

GIB = 2**30
CONTEXT_BYTES = GIB // 2
"""About what the CUDA context of the engine's own process takes before vLLM looks at what is free."""


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


def check_free(share: float, gpus: int) -> None:
    """Raises UserError when `share` of one of this process's first `gpus` GPUs is not free.

    vLLM would end with a traceback in a process of its own. NVML is asked, because CUDA would make a context here.
    """
    from vllm.third_party import pynvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name for name in visible.split(",") if name] or [str(index) for index in range(gpus)]
    pynvml.nvmlInit()
    try:
        for name in names[:gpus]:
            find = pynvml.nvmlDeviceGetHandleByIndex if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
            device = find(int(name) if name.isdigit() else name)
            memory = pynvml.nvmlDeviceGetMemoryInfo(device)
            holders = {each.pid: each.usedGpuMemory for each in pynvml.nvmlDeviceGetComputeRunningProcesses(device)}
            use = GpuUse(name=name, total=int(memory.total), free=int(memory.free), holders=holders)
            if complaint := shortage(use, share):
                raise UserError(complaint)
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
