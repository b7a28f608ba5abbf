"""Trajectories that another model wrote, in whole or up to a point, among those that a step learns from.

Legend: R response tokens of all trajectories of a step, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from azr.config import AlgorithmConfig
from azr.records import Sample


def trace_mask(trajectories: Sequence[Sample]) -> Tensor | None:
    """Which response tokens a trace gave: bool (R); None where all were sampled, so that nothing is spent on it."""
    if not any(t.trace_tokens for t in trajectories):
        return None
    counts = np.array([(t.trace_tokens, sampled_tokens(t)) for t in trajectories])
    assert counts.min() >= 0, "more tokens of a trace than the response has"
    return torch.from_numpy(np.repeat(np.tile([True, False], len(trajectories)), counts.ravel()))


def sampled_tokens(trajectory: Sample) -> int:
    """Response tokens that the policy sampled."""
    return len(trajectory.completion.response_ids) - trajectory.trace_tokens


def gradient_factor(advantages_R: Tensor, is_trace_R: Tensor | None, config: AlgorithmConfig) -> Tensor:
    """What decides whether a token's objective has a gradient: its advantage, or the weight of an imitated one."""
    if is_trace_R is None or config.off_policy.loss != "sft":
        return advantages_R
    return advantages_R.masked_fill(is_trace_R, config.off_policy.sft_coef)
