"""What a plan takes as given: the machine, and every rate and allowance that is not counted from the config."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GIB = 2**30


def _given(default: float, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The nodes of a run; all are alike."""

    gpus: int
    """GPUs per node."""
    gpu_memory_gib: float
    nodes: int = 1
    host_memory_gib: float | None = None
    """Per node; not compared with what the run needs when not given."""

    @classmethod
    def with_gpus(cls, number: int) -> Machine:
        """As many 80 GB GPUs, eight to a node at most."""
        gpus = min(8, number)
        return cls(gpus=gpus, gpu_memory_gib=80, nodes=-(-number // gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Rates as of one H100 SXM and its node; allowances as an order of magnitude, to be measured on yours."""

    peak_tflops: float = _given(989, "Dense bf16 TFLOP/s of one GPU")
    train_mfu: float = _given(
        0.35, "Share of the peak that an optimizer step reaches; work that checkpointing repeats counts as work"
    )
    score_mfu: float = _given(0.45, "Share of the peak in passes without gradients")
    memory_gb_s: float = _given(3350, "GB/s of one GPU's memory, which bounds decoding")
    decode_efficiency: float = _given(0.6, "Share of the memory's speed that decoding reaches")
    decode_overhead_ms: float = _given(3, "Fixed milliseconds per decoded token: scheduling, sampling, kernel starts")
    link_gb_s: float = _given(200, "GB/s of collectives between the GPUs of a node, per GPU")
    network_gb_s: float = _given(25, "GB/s of collectives between nodes, per GPU")
    pcie_gb_s: float = _given(25, "GB/s between a GPU and its host")
    host_gb_s: float = _given(100, "GB/s of a node's memory, which bounds an offloaded optimizer")
    digest_gb_s: float = _given(4, "GB/s of the weights' digest on one core")
    prompt_fill: float = _given(
        0.25,
        "Mean prompt, as a share of rollout.max_prompt_tokens. Only seconds depend on it; bytes are for full length",
    )
    response_fill: float = _given(
        0.1, "Mean response, as a share of rollout.max_response_tokens. Only seconds depend on it"
    )
    context_gib: float = _given(0.6, "GiB of a trainer process's CUDA context, libraries included")
    nccl_gib: float = _given(0.6, "GiB of NCCL buffers of one process that talks to others")
    engine_work_gib: float = _given(
        4, "GiB of an engine's budget that are neither weights nor KV cache: context, largest batch, CUDA graphs"
    )
    engine_asleep_gib: float = _given(2, "GiB that a sleeping engine keeps: context, graphs, workspaces")
    reserved_gib: float = _given(1.5, "GiB per GPU left free: the driver's own share, fragmentation")
