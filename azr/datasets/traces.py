"""Turn another model's traces into completions: whole, or a prefix that the policy continues."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from azr.concurrency import stable_seed
from azr.config import DataConfig
from azr.records import Completion, FinishReason

PREFIX_START = 0.8
"""First share of a linear schedule, as in LUFFY."""


def prefix_share(data: DataConfig, step: int, *names: object) -> float:
    """Return the share of a trace that is given in this step; 1 for all of it. ``names`` identify the trace."""
    match data.prefix:
        case "random":
            return random.Random(stable_seed("prefix", *names)).random()
        case "linear":
            return PREFIX_START * max(0.0, 1.0 - (step - 1) / data.prefix_steps)
    return 1.0


def whole_trace(prompt_ids: np.ndarray, trace_ids: list[int], longest: int) -> Completion:
    """Return a trace as a completion, cut off after ``longest`` tokens."""
    reason = FinishReason.STOP if len(trace_ids) <= longest else FinishReason.LENGTH
    return Completion(
        prompt_ids=prompt_ids,
        response_ids=np.array(trace_ids[:longest], np.int32),
        logprobs=0.0,  # type: ignore[arg-type]
        finish_reason=reason,
        weight_versions=0,  # type: ignore[arg-type]
    )


def after_prefix(prompt_ids: np.ndarray, prefix_ids: list[int], continued: Completion) -> Completion:
    """Return the response made of a prefix and its sampled continuation."""
    given = np.array(prefix_ids, np.int32)
    zeros = np.zeros(len(given), np.float32)
    version = continued.weight_versions[:1] if len(continued.weight_versions) else np.zeros(1, np.int32)
    return replace(
        continued,
        prompt_ids=prompt_ids,
        response_ids=np.concatenate([given, continued.response_ids]),
        logprobs=np.concatenate([zeros, continued.logprobs]),
        weight_versions=np.concatenate([np.repeat(version, len(given)), continued.weight_versions]),
    )
