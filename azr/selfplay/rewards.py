"""Rewards of proposer and solver (arXiv 2505.03335, equations 4 to 6)."""

from __future__ import annotations

from azr.config import RewardConfig
from azr.tasks.base import RejectReason, Verdict


def learnability(solve_rate: float, unlearnable: float) -> float:
    """What a valid proposal earns: 1 - s when the task is sometimes solved, ``unlearnable`` at s = 0 and s = 1."""
    return 1.0 - solve_rate if 0.0 < solve_rate < 1.0 else unlearnable


def combine(base: float, bonuses: list[float], how: str) -> float:
    """Joins learnability a with intrinsic bonuses c: a+Σc, a·Πc, a+Πc or a·Σc; without bonuses, a."""
    if not bonuses:
        return base
    total = sum(bonuses)
    product = 1.0
    for bonus in bonuses:
        product *= bonus
    return {
        "sum": base + total,
        "multiply": base * product,
        "sum_multiply": base + product,
        "multiply_sum": base * total,
    }[how]


def proposer_reward(
    solve_rate: float, bonuses: dict[str, float], config: RewardConfig
) -> tuple[float, dict[str, float]]:
    """Reward of a valid, new proposal and its named parts; bonuses come capped from ``intrinsic``."""
    base = learnability(solve_rate, config.unlearnable)
    reward = combine(base, list(bonuses.values()), config.intrinsic.combine) if base > 0 else base
    return reward, {"learnability": base, **bonuses}


def refused_reward(refusal: RejectReason, config: RewardConfig) -> float:
    """Reward of a proposal that did not become a task; a mere repetition is wrong, anything else malformed."""
    return config.wrong if refusal is RejectReason.DUPLICATE else config.malformed


def solver_reward(verdict: Verdict, config: RewardConfig) -> float:
    """1 right, ``wrong`` when well-formed, ``malformed`` otherwise. An ungraded solution has no reward."""
    assert verdict is not Verdict.UNGRADED
    return {Verdict.RIGHT: 1.0, Verdict.WRONG: config.wrong, Verdict.MALFORMED: config.malformed}[verdict]
