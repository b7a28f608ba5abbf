"""Trajectories and statistics made by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from azr.records import Completion, FinishReason, Role, Sample
from azr.selfplay.play import ProposalStats
from azr.tasks.base import RejectReason


def stats(
    proposed: int = 0, rejected: Counter[RejectReason] | None = None, solve_rates: Sequence[float] = ()
) -> ProposalStats:
    """Of the proposals of one kind."""
    return ProposalStats(proposed=proposed, rejected=rejected or Counter(), solve_rates=list(solve_rates))


def trajectory(role: Role, kind: str = "deduction", *, reward: float = 1.0, **change: object) -> Sample:
    """A two-token trajectory; ``length``, ``finish`` and ``accuracy`` change it."""
    length = int(str(change.get("length", 2)))
    completion = Completion(
        prompt_ids=(1, 2, 3),
        response_ids=tuple(range(length)),
        logprobs=(-0.5,) * length,
        finish_reason=FinishReason(str(change.get("finish", "stop"))),
        weight_versions=int(str(change.get("version", 4))),
    )
    accuracy = change.get("accuracy")
    return Sample(
        completion=completion,
        role=role,
        kind=kind,
        problem_id="000001-deduction-0001",
        group="solve:1:000001-deduction-0001",
        reward=reward,
        reward_parts={"right": reward},
        accuracy=None if accuracy is None else float(str(accuracy)),
    )
