"""Who has the GPUs: trainers while they learn, engines while they play, and what is handed over in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from azr.cluster.weight_sync import PushReport, WeightSync
from azr.concurrency import Phase


class Engines(Protocol):
    """All engines of a run, see `azr.rollout.engine_group`."""

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTurns:
    """Takes and gives the GPUs, one turn after the other; the run begins with the engines'."""

    engines: Engines
    weights: WeightSync

    async def trainers_turn(self, phase: Phase) -> None:
        """Engines finish what they are at and leave the GPUs to the trainers, who may change the policy from now on."""
        with phase("sleep"):
            await self.engines.sleep()

    async def engines_turn(self, version: int, phase: Phase) -> PushReport:
        """Trainers leave the GPUs to the engines, which sample with the policy as it is now."""
        with phase("wake"):
            await self.engines.wake()
        with phase("push"):
            return await self.weights.push(version)
