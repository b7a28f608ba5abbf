"""Sums and means within labels, and sums within samples, of float64.

Legend: N samples, R response tokens of all of them, concatenated in order; G labels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def discounted_sum(x_R: Tensor, seq_index_R: Tensor, decay: float) -> Tensor:
    """y_t = Σ_{j≥0} decay^j x_{t+j}, within the tokens of one sample (R).

    Doubling scan: each pass doubles the reach of every sum, so 8192-token responses take 13 vector passes.
    """
    y_R = x_R.clone()
    reach, longest = 1, int(torch.bincount(seq_index_R).max()) if len(seq_index_R) else 0
    while reach < longest:
        same = seq_index_R[reach:] == seq_index_R[:-reach]
        y_R[:-reach] += decay**reach * torch.where(same, y_R[reach:], 0.0)
        reach *= 2
    return y_R


def segment_sum(label: Tensor, x: Tensor) -> Tensor:
    """Sum of x over the elements of each label (G)."""
    return torch.bincount(label, weights=x)


def centre(x: Tensor, label: Tensor) -> Tensor:
    """Subtract each label's mean."""
    return x - (segment_sum(label, x) / torch.bincount(label))[label]


def is_constant(x: Tensor, label: Tensor) -> Tensor:
    """Whether all elements of the element's label are equal, bool: rounding of their mean must teach nothing."""
    shape = (int(label.max()) + 1 if len(label) else 0,)
    low_G = x.new_zeros(shape).scatter_reduce(0, label, x, "amin", include_self=False)
    high_G = x.new_zeros(shape).scatter_reduce(0, label, x, "amax", include_self=False)
    return (low_G == high_G)[label]
