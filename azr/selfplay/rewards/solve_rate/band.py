"""All or nothing: tasks neither too hard nor too easy pay alike."""

from __future__ import annotations

from azr.config import RewardConfig

LOW, HIGH = 0.25, 0.75
"""Solve rates that pay, both included."""


def band(solve_rate: float, config: RewardConfig) -> float:
    """1 for ``LOW`` ≤ s ≤ ``HIGH``, 0 beside it, ``unlearnable`` at s = 0 and s = 1."""
    if solve_rate in (0.0, 1.0):
        return config.unlearnable
    return float(LOW <= solve_rate <= HIGH)
