"""The paper's: the harder the better, as long as the task is sometimes solved."""

from __future__ import annotations

from azr.config import RewardConfig


def learnability(solve_rate: float, config: RewardConfig) -> float:
    """1 - s for 0 < s < 1, ``unlearnable`` at both ends (arXiv 2505.03335, equation 4)."""
    return 1.0 - solve_rate if 0.0 < solve_rate < 1.0 else config.unlearnable
