"""Who has the GPUs: trainers while they learn, engines while they play, and what is handed over in between.

All of it is strictly one after the other: vLLM fails when the memory that its sleep has freed is taken at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from azr.cluster.weight_sync import PushReport, WeightSync
from azr.concurrency import Phase
from azr.config import Config
from azr.hardware import Device


class Engines(Protocol):
    """All engines of a run, see `azr.rollout.engine_group`."""

    async def sleep(self) -> None: ...

    async def wake(self, part: Literal["weights", "kv_cache"]) -> None: ...


class Role(Protocol):
    """All ranks of a model, see `azr.train.worker_group` and, for what they are called, `azr.train.model_worker`."""

    def call(self, method: str, *args: object, timeout_s: float, to: str) -> Awaitable[list[Any]]: ...


def take_turns(config: Config, device: Device) -> bool:
    """Whether engines and trainers have the same GPUs, and so only one of them at a time has their memory."""
    return device == "cuda" and config.cluster.colocate


async def return_to_gpu(role: Role, phase: Phase, timeout_s: float, *, training: bool = True) -> None:
    """What the model needs to train, or only its weights, comes back from the host unless it is there."""
    with phase("reload"):
        await role.call("reload", training, timeout_s=timeout_s, to="return to the GPU")


async def leave_gpu(role: Role, timeout_s: float) -> list[Any]:
    """The model goes to the host, all of it, until its next work. Returns each rank's `GpuMemory`."""
    return await role.call("offload", True, timeout_s=timeout_s, to="leave the GPU")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTurns:
    """Takes and gives the GPUs, one turn after the other. A run begins with the engines' turn.

    Where engines have GPUs of their own, or run on a CPU, memory stays where it is, and engines play on until weights
    are pushed.
    """

    engines: Engines
    weights: WeightSync
    policy: Role
    others: Sequence[Role]
    """Critic and reference, where there are any."""
    take_turns: bool
    """See the function of this name."""
    timeout_s: float
    memory: dict[str, float] = field(default_factory=dict)
    """Of the fullest GPU at the last turns, in GB: what is in use when nobody has its turn, and what trainers keep."""

    async def trainers_turn(self, phase: Phase) -> None:
        """Engines finish what they are at and leave the GPUs to the trainers, who may change the policy from now on.

        The models of trainers take turns as well: the learner brings each back for its work. A policy that has no
        others beside it returns at once.
        """
        self.weights.policy_moves()
        if not self.take_turns:
            return
        with phase("sleep"):
            await self.engines.sleep()
        held = await self.policy.call("gpu_memory", timeout_s=self.timeout_s, to="look at its GPU")
        self.memory["all_asleep_gb"] = max(report.used for report in held) / 1e9
        if not self.others:
            await return_to_gpu(self.policy, phase, self.timeout_s)

    async def engines_turn(self, version: int, phase: Phase) -> PushReport:
        """Trainers leave the GPUs to the engines, which sample with the policy as it is now.

        The policy's weights go last and the engines' KV cache comes last, so that during the push a GPU has room for
        both copies of the weights.
        """
        if not self.take_turns:
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
