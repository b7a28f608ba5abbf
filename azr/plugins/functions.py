"""Rewards, bonuses and estimators of the user's own as the run holds them: they are computed in another process."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from azr.config import RewardConfig
from azr.own_functions import OwnFunctions, Trouble
from azr.selfplay.rewards import BonusInputs

if TYPE_CHECKING:
    from torch import Tensor

    from azr.algorithms.batch import Batch

ESTIMATE_LIMIT_S = 60.0
"""For the advantages of a whole batch."""


@dataclass(frozen=True, slots=True)
class _Own:
    functions: OwnFunctions
    plugin: str
    name: str


class OwnReward(_Own):
    async def __call__(self, solve_rate: float, knobs: RewardConfig) -> float | None:
        """None where it has no answer."""
        message = {"do": "reward", "name": self.name, "solve_rate": solve_rate, "knobs": msgspec.to_builtins(knobs)}
        what, costs = f"{self.plugin}: reward {self.name}", "such a proposal is not trained on"
        try:
            return float(await self.functions.call(what, message, costs=costs))
        except Trouble:
            return None


class OwnBonus(_Own):
    async def __call__(self, inputs: BonusInputs) -> float | None:
        """None where it has no answer."""

        async def reply(_: Any) -> Any:
            return msgspec.to_builtins(list(inputs.known()))

        task, references = msgspec.to_builtins(inputs.task), msgspec.to_builtins(list(inputs.references))
        message = {"do": "bonus", "name": self.name, "task": task, "references": references}
        what, costs = f"{self.plugin}: bonus {self.name}", "such a proposal is not trained on"
        try:
            return float(await self.functions.call(what, message, costs=costs, reply=reply))
        except Trouble:
            return None


class OwnEstimator(_Own):
    async def __call__(self, batch: Batch) -> Tensor | None:
        """Advantages, float32 (R); None if it fails."""
        import torch

        inputs = {
            "rewards": list(batch.rewards),
            "response_lengths": list(batch.response_lengths),
            "kind_roles": msgspec.to_builtins(list(batch.kind_roles)),
            "groups": list(batch.groups),
        }
        tokens = len(batch.seq_index_R)
        message = {"do": "estimate", "name": self.name, "inputs": inputs, "max_answer_bytes": 1024 + 8 * tokens}
        what, costs = f"{self.plugin}: estimator {self.name}", "nothing is learned in such a step"
        try:
            said = await self.functions.call(what, message, costs=costs, limit_s=ESTIMATE_LIMIT_S)
        except Trouble:
            return None
        return torch.from_numpy(np.frombuffer(base64.b64decode(said), np.float32).copy())
