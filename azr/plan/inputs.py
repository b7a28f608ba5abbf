"""What a plan starts from: the nodes, the rates and allowances that are assumed, and the size of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from azr.config import Config

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The nodes of a run, all alike."""

    gpus: int
    """Per node."""
    gpu_memory_gib: float
    nodes: int = 1
    host_memory_gib: float | None = None
    """Per node; None leaves it unchecked."""

    @classmethod
    def with_gpus(cls, count: int) -> ClusterSpec:
        """As many 80 GB GPUs, eight to a node at most."""
        gpus = min(8, count)
        return cls(gpus=gpus, gpu_memory_gib=80, nodes=-(-count // gpus))

    @property
    def total_gpus(self) -> int:
        return self.gpus * self.nodes


def _assume(default: float, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Rates as of one H100 SXM and its node; allowances as an order of magnitude, to be measured on yours."""

    peak_tflops: float = _assume(989, "Dense bf16 TFLOP/s of one GPU")
    train_mfu: float = _assume(
        0.35, "Share of the peak that an optimizer step reaches; work that checkpointing repeats counts as work"
    )
    score_mfu: float = _assume(0.45, "Share of the peak in passes without gradients")
    memory_gb_s: float = _assume(3350, "GB/s of one GPU's memory, which bounds decoding")
    decode_efficiency: float = _assume(0.6, "Share of the memory's speed that decoding reaches")
    decode_overhead_ms: float = _assume(3, "Fixed milliseconds per decoded token: scheduling, sampling, kernel starts")
    link_gb_s: float = _assume(200, "GB/s of collectives between the GPUs of a node, per GPU")
    network_gb_s: float = _assume(25, "GB/s of collectives between nodes, per GPU")
    pcie_gb_s: float = _assume(25, "GB/s between a GPU and its host")
    host_gb_s: float = _assume(100, "GB/s of a node's memory, which bounds an offloaded optimizer")
    digest_gb_s: float = _assume(4, "GB/s of the weights' digest on one core")
    prompt_fill: float = _assume(
        0.25,
        "Mean prompt, as a share of rollout.max_prompt_tokens. Only seconds depend on it; bytes are for full length",
    )
    response_fill: float = _assume(
        0.1, "Mean response, as a share of rollout.max_response_tokens. Only seconds depend on it"
    )
    context_gib: float = _assume(0.6, "GiB of a trainer process's CUDA context, libraries included")
    nccl_gib: float = _assume(0.6, "GiB of NCCL buffers of one process that talks to others")
    engine_work_gib: float = _assume(
        4, "GiB of an engine's budget that are neither weights nor KV cache: context, largest batch, CUDA graphs"
    )
    engine_asleep_gib: float = _assume(2, "GiB that a sleeping engine keeps: context, graphs, workspaces")
    reserved_gib: float = _assume(1.5, "GiB per GPU left free: the driver's own share, fragmentation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training step in prompts, trajectories and tokens; the most there can be where it depends on proposals."""

    proposals: int
    estimate_prompts: int
    estimates: int
    """Solver samples for solve rates and derived tasks: `selfplay.group_size` for each of `estimate_prompts`."""
    solves: int
    trained: int
    """Trajectories that the optimizers see."""
    max_tokens: int
    """Tokens that the optimizers see if every trajectory is of full length."""
    mean_prompt: float
    mean_response: float
    """Expected tokens."""

    @property
    def prompts(self) -> int:
        """Distinct prompts that the engines read."""
        return self.proposals + self.estimate_prompts + self.solves

    @property
    def trajectories(self) -> int:
        """Responses that the engines write."""
        return self.proposals + self.estimates + self.solves

    @property
    def mean_length(self) -> float:
        return self.mean_prompt + self.mean_response

    @property
    def trained_tokens(self) -> float:
        """Expected prompt and response tokens that the optimizers see."""
        return self.trained * self.mean_length

    @classmethod
    def of(cls, config: Config, assumed: Assumptions) -> Workload:
        play = config.selfplay
        tasks = len(play.kinds) * play.proposer_prompts
        groups = tasks * (1 + play.derived_tasks * len(play.kinds))
        trained = config.min_trajectories + groups * play.group_size * play.train_on_estimates
        return cls(
            proposals=tasks * config.ablation.new_tasks,
            estimate_prompts=groups,
            estimates=groups * play.group_size,
            solves=len(play.kinds) * play.solver_prompts,
            trained=trained,
            max_tokens=trained * config.max_trajectory_tokens,
            mean_prompt=assumed.prompt_fill * config.rollout.max_prompt_tokens,
            mean_response=assumed.response_fill * config.rollout.max_response_tokens,
        )
