"""From what the players did to trajectories with rewards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from azr.config import RewardConfig
from azr.records import Role, Trajectory
from azr.selfplay import rewards
from azr.selfplay.players import Proposed, Solved
from azr.tasks.base import RejectReason, Verdict


@dataclass(slots=True)
class ProposalStats:
    """How far the proposals of one kind got in one step."""

    proposed: int = 0
    rejected: Counter[RejectReason] = field(default_factory=Counter)
    solve_rates: list[float] = field(default_factory=list)
    """One per proposal that became a task, in no order."""


def proposer_trajectory(
    kind: str, id: str, proposed: Proposed, solve_rate: float | None, bonuses: dict[str, float], config: RewardConfig
) -> Trajectory:
    """A rejected proposal is paid by its refusal, an accepted one by its solve rate."""
    if isinstance(proposed.outcome, RejectReason):
        reward = rewards.refused_reward(proposed.outcome, config)
        parts = {str(proposed.outcome): reward}
    else:
        assert solve_rate is not None
        reward, parts = rewards.proposer_reward(solve_rate, bonuses, config)
    return Trajectory(
        completion=proposed.completion,
        role=Role.PROPOSER,
        kind=kind,
        task_id=id,
        group=f"propose:{id}",
        reward=reward,
        reward_parts=parts,
    )


def solver_trajectory(attempt: Solved, group: str, config: RewardConfig) -> Trajectory:
    """A graded attempt; attempts at one task from one request share a group."""
    reward = rewards.solver_reward(attempt.verdict, config)
    return Trajectory(
        completion=attempt.completion,
        role=Role.SOLVER,
        kind=attempt.task.kind,
        task_id=attempt.task.id,
        group=group,
        reward=reward,
        reward_parts={str(attempt.verdict): reward},
        accuracy=float(attempt.verdict is Verdict.RIGHT),
    )


def graded(attempts: list[Solved]) -> list[Solved]:
    """Attempts that the executor could judge; the others teach nothing."""
    return [attempt for attempt in attempts if attempt.verdict is not Verdict.UNGRADED]
