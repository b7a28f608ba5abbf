"""Sums, means and deviations within labels, and sums within samples, of float64.

Legend: N samples, R response tokens of all of them, concatenated in order; G labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from azr.estimators.base import VARIANCE_FLOOR


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


def whiten(x_N: Tensor, label_N: Tensor, lengths_N: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over the tokens of each label (R), with the unbiased variance; a sample's x and
    label are those of each of its tokens.

    A label whose numbers are all equal becomes exactly 0.
    """
    x, label, lengths = (each_N[lengths_N > 0] for each_N in (x_N, label_N, lengths_N))
    label_R, count_G = label.repeat_interleave(lengths), segment_sum(label, lengths)
    # Only sums need every token; they are added one by one, as for numbers that differ within a sample.
    centred = x - (segment_sum(label_R, x.repeat_interleave(lengths)) / count_G)[label]
    squares_G = segment_sum(label_R, (centred**2).repeat_interleave(lengths))
    whitened = centred * (squares_G / (count_G - 1).clamp(min=1) + VARIANCE_FLOOR).rsqrt()[label]
    return torch.where(is_constant(x, label), 0.0, whitened).repeat_interleave(lengths)


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
