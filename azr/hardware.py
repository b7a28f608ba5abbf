"""Devices and number types of a run, and the environment of its processes."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import tempfile
from collections.abc import MutableMapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Literal

Device = Literal["cpu", "cuda"]
ComputeType = Literal["bfloat16", "float32"]


KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""On a CPU, oneDNN and torch's layer above it keep a compiled kernel for each shape they have met, 1,024 by default. No
two batches have the same shapes here, so a process of the 14M model would grow by more than half a gigabyte."""

CPU_KV_CACHE_BYTES = 1 << 30
"""KV cache of an engine on a CPU."""
CPU_ENGINE_LIBRARY = "libnuma.so.1"
"""Library of vLLM's CPU build that no Python package brings; without it vLLM only misses an operator."""


def cpu_engine_problem(library: str = CPU_ENGINE_LIBRARY) -> str | None:
    """Return why vLLM's CPU build cannot compute on this machine, and what to do; None if it can."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return f"vLLM on a CPU needs {library}: install it (on Debian and Ubuntu: apt-get install libnuma1)"
    return None


CACHE_FOLDER = "AZR_CACHE"
"""Environment variable that names the folder of compiled kernels; without it that is ``azr`` in the user's cache."""
_KERNEL_FOLDERS = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "CUDA_CACHE_PATH": "cuda",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash_attention",
}
"""Folders for compiled code of vLLM, torch.compile, Triton, C++ extensions, the driver, FlashInfer and FlashAttention,
by variable. By default some of it goes to /tmp, and Triton's to another folder if vLLM finds the model compiled: the
second start would compile kernels anew."""


def cache_folder() -> Path:
    """Return the folder of compiled kernels on this machine, in which a second start finds them."""
    if named := os.environ.get(CACHE_FOLDER):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "azr"


def keep_kernels(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process and its children keep compiled code below `cache_folder`, unless the user has set otherwise.

    To be called before CUDA is initialised.
    """
    for variable, folder in _KERNEL_FOLDERS.items():
        environment.setdefault(variable, str(cache_folder() / folder))
    environment.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")  # else every process compiles for itself


TRAINER_MEMORY = {"PYTORCH_ALLOC_CONF": "expandable_segments:True,pinned_max_round_threshold_mb:64"}
"""On a GPU: micro-batches of many shapes leave no holes behind, and page-locked memory for a trainer's state is not
rounded up to a power of two. Memory that another process is to map must not come from torch's allocator then."""


def flight_recorder(model_role: str) -> dict[str, str]:
    """Return the variables that let PyTorch note the last collectives of a rank on a GPU, and write them to a file,
    named by model and rank, in the folder of temporary files when one times out."""
    file = Path(tempfile.gettempdir(), f"azr_nccl_{os.getuid()}_{model_role}_")
    return {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_DUMP_TEMP_FILE": str(file)}


def network_environment(address: str) -> dict[str, str]:
    """Return the variables that bind gloo and NCCL to the network interface that has this node's address.

    Without them gloo announces the address of the host's name, 127.0.1.1 on Debian and Ubuntu, where no other node
    reaches it. Empty if no interface has the address.
    """
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if address in {each.address for each in addresses}:
            return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    return {}


def hpz_partition_size(nodes: Sequence[object]) -> int:
    """Return the number of ranks over which a node partitions its own copy of the weights (ZeRO++'s hpZ).

    Gathering for the backward pass then stays on the node. `nodes`: that of each rank, by rank. 1, and so no copy, on a
    single node, where nodes have one rank each, and where they have not equally many side by side. Else every rank
    holds its share of the copy during an update, in the compute type: parameters divided by this number.
    """
    runs = [len(list(ranks)) for _, ranks in groupby(nodes)]
    is_even = len(runs) == len(set(nodes)) and len(set(runs)) == 1
    return runs[0] if is_even and len(runs) > 1 else 1


BFLOAT16_SINCE = 8.0
"""Compute capability (Ampere) from which on GPUs multiply bfloat16: not T4 (7.5)."""


@cache
def gpu_capabilities() -> tuple[float, ...]:
    """Return the compute capability of each GPU of this machine, as nvidia-smi says it; none where it says nothing."""
    command = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(float(word) for word in re.findall(r"^\d+\.\d+$", run.stdout, re.MULTILINE))


def compute_type(wanted: Literal["auto", "bfloat16", "float32"], device: Device | None = None) -> ComputeType:
    """`auto` is bfloat16 wherever the hardware multiplies it: on GPUs since Ampere, and on CPUs that have instructions
    for it. Else it is float32: float16 would need its losses scaled, which nothing here does.

    Where it must be emulated, as on most laptops, a product takes thirty times as long as in float32; see notes/log.md.
    `device`: by default this machine's GPU if it has one.
    """
    if wanted != "auto":
        return wanted
    if device == "cuda":
        return "float32" if min(gpu_capabilities(), default=BFLOAT16_SINCE) < BFLOAT16_SINCE else "bfloat16"
    import torch  # only now: it takes seconds to load, and light commands come here

    if device is None and torch.cuda.is_available():
        return compute_type(wanted, "cuda")
    has = torch.cpu.get_capabilities()
    multiplies = any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return "bfloat16" if multiplies else "float32"
