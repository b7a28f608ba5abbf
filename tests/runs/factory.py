"""Records to track, made by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from azr.records import Completion, FinishReason, Role, Trajectory
from azr.tasks.base import RejectReason


@dataclass
class Counts:
    """How far the proposals of one kind got."""

    proposed: int = 0
    rejected: Counter[RejectReason] = field(default_factory=Counter)
    solve_rates: list[float] = field(default_factory=list)


def trajectory(role: Role, kind: str = "deduction", *, reward: float = 1.0, **change: object) -> Trajectory:
    """A two-token trajectory; ``length``, ``finish`` and ``accuracy`` change it."""
    length = int(str(change.get("length", 2)))
    completion = Completion(
        prompt_ids=(1, 2, 3),
        response_ids=tuple(range(length)),
        logprobs=(-0.5,) * length,
        finish_reason=FinishReason(str(change.get("finish", "stop"))),
        weight_version=int(str(change.get("version", 4))),
    )
    accuracy = change.get("accuracy")
    return Trajectory(
        completion=completion,
        role=role,
        kind=kind,
        task_id="000001-deduction-0001",
        group="solve:1:000001-deduction-0001",
        reward=reward,
        reward_parts={"right": reward},
        accuracy=None if accuracy is None else float(str(accuracy)),
    )
