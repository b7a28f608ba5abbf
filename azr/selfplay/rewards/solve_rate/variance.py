"""Most for the task that is solved half of the time: how much a group of answers can teach."""

from __future__ import annotations

from azr.config import RewardConfig


def variance(solve_rate: float, config: RewardConfig) -> float:
    """4 s (1 - s), the variance of one right or wrong answer scaled to at most 1; ``unlearnable`` at both ends."""
    return 4.0 * solve_rate * (1.0 - solve_rate) if 0.0 < solve_rate < 1.0 else config.unlearnable
