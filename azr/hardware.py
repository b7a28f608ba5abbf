"""What a run computes on, in which type, and in which environment its processes are born."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

Device = Literal["cpu", "cuda"]
ComputeType = Literal["bfloat16", "float32"]


KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""On a CPU, oneDNN and torch's layer above it keep a compiled kernel for each shape they have met, 1,024 by default. No
two batches have the same shapes here, so a process of the 14M model would grow by more than half a gigabyte."""


TRAINER_MEMORY = {"PYTORCH_ALLOC_CONF": "expandable_segments:True,pinned_max_round_threshold_mb:64"}
"""On a GPU: micro-batches of many shapes leave no holes behind, and page-locked memory for a trainer's state is not
rounded up to a power of two. Memory that another process is to map must not come from torch's allocator then."""


def hpz_partition_size(nodes: Sequence[object]) -> int:
    """Over how many ranks a node partitions a copy of the weights that it keeps while it computes (ZeRO++'s hpZ).

    Gathering for the backward pass then stays on the node. `nodes`: that of each rank, by rank. 1, and so no copy, on a
    single node, where nodes have one rank each, and where they have not equally many side by side. Else every rank
    holds its share of the copy during an update, in the compute type: parameters divided by this number.
    """
    runs = [len(list(ranks)) for _, ranks in groupby(nodes)]
    is_even = len(runs) == len(set(nodes)) and len(set(runs)) == 1
    return runs[0] if is_even and len(runs) > 1 else 1


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
