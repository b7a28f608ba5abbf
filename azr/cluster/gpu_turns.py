"""Sharing of GPUs by trainers and engines: engines sleep while trainers learn, and trainers offload during rollouts.

The handover is strictly sequential: vLLM fails if memory that its sleep frees is taken at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from azr.cluster.weight_sync import PushReport, Role, WeightSync
from azr.concurrency import Phase
from azr.config import Config
from azr.hardware import Device


def shares_gpus(config: Config, device: Device) -> bool:
    """Whether engines and trainers share GPUs, so that only one of them at a time may hold their memory."""
    return device == "cuda" and config.cluster.colocate


async def return_to_gpu(role: Role, phase: Phase, timeout_s: float, *, training: bool = True) -> None:
    """Onload the model's training state, or only its weights, unless it is on the GPU."""
    with phase("reload"):
        await role.call("reload", training, timeout_s=timeout_s, to="return to the GPU")


async def leave_gpu(role: Role, timeout_s: float) -> list[Any]:
    """Offload the whole model to the host. Returns each rank's `GpuMemory`."""
    return await role.call("offload", True, timeout_s=timeout_s, to="leave the GPU")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTurns:
    """Hands the GPUs to trainers and engines in turns. A run begins with the engines' turn.

    If engines have GPUs of their own, or run on a CPU, nothing is offloaded, and engines sample until weights are
    pushed.
    """

    engines: Any
    """All engines of a run: an `azr.rollout.engine_group.EngineGroup`."""
    weights: WeightSync
    policy: Role
    others: Sequence[Role]
    """Critic and reference model, if the run has them."""
    shares_gpus: bool
    """See the function of this name."""
    timeout_s: float
    memory: dict[str, float] = field(default_factory=dict)
    """GB on the fullest GPU at the last turns: in use between two turns, and kept by offloaded trainers."""

    async def offload_engines_onload_trainers(self, phase: Phase) -> None:
        """Put the engines to sleep, after running requests, so that trainers may use the GPUs and change the policy.

        Trained models take turns as well: the learner onloads each for its work. A policy without critic and reference
        model is onloaded here.
        """
        self.weights.policy_moves()
        if not self.shares_gpus:
            return
        with phase("sleep"):
            await self.engines.sleep()
        held = await self.policy.call("gpu_memory", timeout_s=self.timeout_s, to="look at its GPU")
        self.memory["all_asleep_gb"] = max(report.used for report in held) / 1e9
        if not self.others:
            await return_to_gpu(self.policy, phase, self.timeout_s)

    async def sync_and_onload_engines(self, version: int, phase: Phase) -> PushReport:
        """Offload the trainers, sync the weights and wake the engines.

        The policy's weights are offloaded after the sync, and the KV cache is allocated last. During the sync a GPU
        therefore has room for both copies of the weights.
        """
        if not self.shares_gpus:
            with phase("push"):
                return await self.weights.push(version)
        with phase("offload"):
            left = [await leave_gpu(role, self.timeout_s) for role in self.others]
            await self.policy.call("offload", False, timeout_s=self.timeout_s, to="leave the GPU but for its weights")
        with phase("wake"):
            await self.engines.wake("weights")
        with phase("push"):
            report = await self.weights.push(version)
        with phase("offload"):
            left.append(await leave_gpu(self.policy, self.timeout_s))
        with phase("wake"):
            await self.engines.wake("kv_cache")
        ranks = list(zip(*left, strict=True))
        self.memory["trainers_allocated_gb"] = max(sum(each.allocated for each in roles) for roles in ranks) / 1e9
        self.memory["trainers_reserved_gb"] = max(sum(each.reserved for each in roles) for roles in ranks) / 1e9
        return report
