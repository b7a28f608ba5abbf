"""What a run computes on, in which type, and in which environment its processes are born."""

from __future__ import annotations

from typing import Literal

Device = Literal["cpu", "cuda"]
ComputeType = Literal["bfloat16", "float32"]


KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""On a CPU, oneDNN and torch's layer above it keep a compiled kernel for each shape they have met, 1,024 by default. No
two batches have the same shapes here, so a process of the 14M model would grow by more than half a gigabyte."""


def compute_type(wanted: Literal["auto", "bfloat16", "float32"], device: Device) -> ComputeType:
    """`auto` is bfloat16 wherever the hardware multiplies it: on GPUs, and on CPUs that have instructions for it.

    Where it must be emulated, as on most laptops, a product takes thirty times as long as in float32; see docs/log.md.
    """
    if wanted != "auto":
        return wanted
    return "bfloat16" if device == "cuda" or _cpu_multiplies_bfloat16() else "float32"


def _cpu_multiplies_bfloat16() -> bool:
    import torch  # only now: it takes seconds to load, and light commands come here

    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
