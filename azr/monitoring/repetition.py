"""How much of a response says again what it has said."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GRAM = 8
"""Tokens of a sequence that is looked for again."""
REPETITIVE = 0.5
"""Above this share of repeated sequences a response counts as repetitive."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def repeated_share(token_ids: npt.NDArray[np.int32]) -> float:
    """Share of the sequences of `GRAM` tokens in ``token_ids`` (R) that occurred before in it; 0 for a short one.

    This is rep-n of Welleck et al. (arXiv 1908.04319, section 6.1) for n = 8. Sequences are compared by a 64-bit hash.
    """
    count = len(token_ids) - GRAM + 1
    if count < 2:
        return 0.0
    ids = token_ids.astype(np.uint64) + np.uint64(1)
    hashes = np.zeros(count, np.uint64)
    for i in range(GRAM):
        hashes = (hashes ^ (hashes >> np.uint64(29))) * _FACTOR + ids[i : i + count]
    return 1.0 - len(np.unique(hashes)) / count
