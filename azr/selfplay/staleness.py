"""How old sampled tokens are when they are trained on, and which are too old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from azr.records import Sample


@dataclass(frozen=True, slots=True)
class FreshBatch:
    """What a step trains on."""

    trajectories: list[Sample]
    metrics: dict[str, float]
    """``mean`` and ``max``: updates between the policy that sampled a token and the one that is trained, over the
    sampled tokens trained on. ``mixed``: share of trajectories that several policies sampled. ``dropped``: trajectories
    that were too old. Empty where nothing may be old."""
    stale: Sequence[Sample] = ()
    """Those that were dropped."""


def select_fresh(trajectories: Sequence[Sample], version: int, staleness: int) -> FreshBatch:
    """Trajectories of which no sampled token is older than `staleness` updates of the policy that is at `version`."""
    if not staleness:
        return FreshBatch(list(trajectories), {})
    fresh, stale = list[Sample](), list[Sample]()
    for t in trajectories:
        is_fresh = not len(t.sampled_versions) or version - int(t.sampled_versions[0]) <= staleness
        (fresh if is_fresh else stale).append(t)
    metrics = {"dropped": float(len(stale))}
    if versions := [t.sampled_versions for t in fresh if len(t.sampled_versions)]:
        age = version - np.concatenate(versions)
        mixed = [bool(of_one[0] != of_one[-1]) for of_one in versions]
        metrics |= {"mean": float(age.mean()), "max": float(age.max()), "mixed": float(np.mean(mixed))}
    return FreshBatch(fresh, metrics, stale)
