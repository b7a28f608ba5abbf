"""As the paper's, but a task that is never solved pays most instead of nothing."""

from __future__ import annotations

from azr.config import RewardConfig


def inverse(solve_rate: float, config: RewardConfig) -> float:
    """1 - s for s < 1, ``unlearnable`` at s = 1. Also pays for tasks that cannot be solved at all."""
    return 1.0 - solve_rate if solve_rate < 1.0 else config.unlearnable
