"""Rates that are aimed at, where others were measured: no GPU has shown them yet."""

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
TURNS_S = 1.1
"""With 1.7 s of copying states and 0.2 s of pushing, a tenth of the step of 30.3 s in which 6.6 s were in no phase."""
DRIVER_MS = 0.4


def update_share(shape: ModelShape) -> float:
    """Of the peak, between and beyond the two sizes that have a goal: on a line over the logarithm of the size."""
    (small, low), (large, high) = _SMALL, _LARGE
    place = math.log(shape.parameters / small) / math.log(large / small)
    return low + (high - low) * min(1.0, max(0.0, place))


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
