"""Rates that depend on knobs: what slower choices were measured at, and what is aimed at and no GPU has shown yet."""

from __future__ import annotations

import math
from dataclasses import replace

from azr.config import Config
from azr.plan.inputs import Assumptions
from azr.plan.shapes import ModelShape

_SMALL, _LARGE = (1.54e9, 0.35), (7.6e9, 0.45)
"""Parameters, and the share of the peak (6 per parameter and token) aimed at with fused kernels."""
PUSH_GB_S = 20.0
"""Inside a node."""
TURNS_S = 0.9
"""No less than was measured: with the copies of states and the push it is a fourteenth of that step."""
DRIVER_MS = 0.4
PLAIN_MFU = 0.154
"""Measured at 1.5B with `train.kernels` plain and full gradient checkpointing."""
HOST_PUSH_GB_S = 0.75
"""Measured at 1.5B with `cluster.push` host."""


def update_share(shape: ModelShape) -> float:
    """Of the peak, between and beyond the two sizes that have a goal: on a line over the logarithm of the size."""
    (small, low), (large, high) = _SMALL, _LARGE
    place = math.log(shape.parameters / small) / math.log(large / small)
    return low + (high - low) * min(1.0, max(0.0, place))


def as_configured(assumed: Assumptions, config: Config) -> Assumptions:
    """Rates at most as fast as the config's choice of kernels and push was measured to be."""
    return replace(
        assumed,
        train_mfu=assumed.train_mfu if fast_kernels(config) else min(assumed.train_mfu, PLAIN_MFU),
        push_gb_s=assumed.push_gb_s if pushes_directly(config) else min(assumed.push_gb_s, HOST_PUSH_GB_S),
    )


def with_goals(assumed: Assumptions, config: Config, shape: ModelShape) -> Assumptions:
    """The goals instead of what was measured, for what the config's knobs leave open; never slower than `assumed`."""
    kernels, direct = fast_kernels(config), pushes_directly(config)
    return replace(
        assumed,
        train_mfu=max(assumed.train_mfu, update_share(shape) if kernels else 0.0),
        push_gb_s=max(assumed.push_gb_s, PUSH_GB_S if direct else 0.0),
        turns_s=min(assumed.turns_s, TURNS_S),
        driver_ms=min(assumed.driver_ms, DRIVER_MS),
    )


def fast_kernels(config: Config) -> bool:
    """Whether `train.kernels` allows fused ones."""
    return config.train.kernels != "plain"


def pushes_directly(config: Config) -> bool:
    """Whether `cluster.push` allows a way between GPUs."""
    return config.cluster.push != "host"
