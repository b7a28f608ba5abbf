"""Shares with 95% intervals: bootstrap means over questions, and pass@k without bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
LEVEL = 0.95
# Shapes: R = resamples, T = questions of one group.


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95% interval."""

    value: float
    low: float
    high: float


def pass_at(k: int, right: int, graded: int) -> float:
    """Return the unbiased chance that one of k samples is right, given ``right`` of ``graded`` >= k samples.

    1 - C(n - c, k) / C(n, k), as in Chen et al. (arXiv 2107.03374), section 2.1.
    """
    assert graded >= k
    return 1 - math.comb(graded - right, k) / math.comb(graded, k)


def estimate(groups: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """Return the mean of the groups' means, with a percentile bootstrap interval over the questions of each group.

    ``groups`` holds one value per question; no group is empty. The same values give the same interval every time.
    """
    rng = np.random.default_rng(seed)
    values = [np.asarray(group, dtype=np.float64) for group in groups]
    means_R = np.mean([_resample_means(rng, values_T) for values_T in values], axis=0)
    low, high = np.quantile(means_R, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(np.mean([values_T.mean() for values_T in values])), float(low), float(high))


def _resample_means(rng: np.random.Generator, values_T: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the means of R samples of T values, drawn with replacement."""
    index_RT = rng.integers(len(values_T), size=(RESAMPLES, len(values_T)))
    return values_T[index_RT].mean(axis=1)
