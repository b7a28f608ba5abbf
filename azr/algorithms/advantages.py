"""Advantage estimators: rewards per trajectory in, one number per response token out.

Everything is float64 inside, so that sums over a large batch do not depend on its order in float32.

Legend: N trajectories, R response tokens of all of them, concatenated in order; G labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from azr.config import GAE, GRPO, RLOO, TRRPP, AlgorithmConfig, DrGRPO, Estimator, ReinforcePP

VARIANCE_FLOOR = 1e-8
"""Added to the variance before its root is taken, as in verl's masked whitening."""
DEVIATION_FLOOR = 1e-6
"""Added to GRPO's standard deviation."""


@dataclass(frozen=True, kw_only=True)
class AdvantageInputs:
    """What an estimator may look at."""

    rewards: Sequence[float]
    """(N)"""
    response_lengths: Sequence[int]
    """(N), tokens; a length of 0 is allowed and yields no number."""
    kind_roles: Sequence[Hashable]
    """(N), ``(kind, role)`` of each trajectory."""
    groups: Sequence[str]
    """(N); trajectories with the same group answered the same prompt."""
    values_R: Tensor | None = None
    """The critic's value before each token; only for estimators with a critic."""

    @cached_property
    def rewards_N(self) -> Tensor:
        return torch.tensor(self.rewards, dtype=torch.float64)

    @cached_property
    def lengths_N(self) -> Tensor:
        return torch.tensor(self.response_lengths, dtype=torch.int64)

    @cached_property
    def seq_index_R(self) -> Tensor:
        """Index of each token's trajectory."""
        return torch.arange(len(self.lengths_N)).repeat_interleave(self.lengths_N)

    @cached_property
    def kind_role_N(self) -> Tensor:
        """Index of each trajectory's (kind, role)."""
        return _factorize(self.kind_roles)

    @cached_property
    def group_N(self) -> Tensor:
        """Index of each trajectory's group. All groups of one trajectory of a (kind, role) form one group together."""
        sizes = Counter(self.groups)
        labels = zip(self.groups, self.kind_roles, strict=True)
        return _factorize(
            [("singleton", kind_role) if sizes[group] == 1 else ("group", group) for group, kind_role in labels]
        )


@dataclass(frozen=True, kw_only=True)
class Advantages:
    advantages_R: Tensor
    """float32"""
    returns_R: Tensor
    """float32; what a critic is fitted to."""

    def spread(self, among_R: Tensor) -> Advantages:
        """Of more tokens, those of ``among_R``, bool, having these numbers in this order and the others 0."""
        zeros_R = torch.zeros(len(among_R))
        return Advantages(
            advantages_R=zeros_R.masked_scatter(among_R, self.advantages_R),
            returns_R=zeros_R.masked_scatter(among_R, self.returns_R),
        )


Estimate = Callable[[AdvantageInputs, Any], tuple[Tensor, Tensor]]
"""From inputs and the estimator's own knobs to advantages and returns per token, both float64 (R)."""

ESTIMATORS: dict[type[Estimator], Estimate] = {}
"""By the struct that holds the estimator's knobs in `azr.config`."""
OWN_ESTIMATORS: dict[str, Callable[[AdvantageInputs], Awaitable[Advantages | None]]] = {}
"""Those of plug-ins, by name; None where one has no answer."""


def register(knobs: type[Estimator]) -> Callable[[Estimate], Estimate]:
    """Decorator: the function is what runs where `algorithm.estimator` is of this type."""

    def add(estimate: Estimate) -> Estimate:
        assert knobs not in ESTIMATORS
        ESTIMATORS[knobs] = estimate
        return estimate

    return add


def estimate_advantages(inputs: AdvantageInputs, estimator: Estimator) -> Advantages:
    """Run the configured estimator."""
    advantages_R, returns_R = ESTIMATORS[type(estimator)](inputs, estimator)
    return Advantages(advantages_R=advantages_R.float(), returns_R=returns_R.float())


def weighting_of(algorithm: AlgorithmConfig) -> str:
    """``algorithm.loss_weighting``, decided."""
    if algorithm.loss_weighting != "auto":
        return algorithm.loss_weighting
    return "constant" if isinstance(algorithm.estimator, DrGRPO) else "token"


def loss_weights(inputs: AdvantageInputs, weighting: str) -> Tensor | None:
    """What each token's loss is multiplied by: float32 (R), 1 on average; None for 1 throughout.

    ``weighting`` is as `weighting_of` gives it, other than "constant", for which there are `constant_weights`. By
    "trajectory" all trajectories weigh the same; by "kind_role" all (kind, role) do, and the trajectories in each.
    """
    if weighting == "token":
        return None
    label_N = inputs.kind_role_N if weighting == "kind_role" else torch.zeros_like(inputs.kind_role_N)
    return _sequence_loss_weights(inputs.lengths_N, label_N)[inputs.seq_index_R].float()


def constant_weights(
    lengths: Sequence[int], mini_batches: Sequence[Sequence[int]], kept: Sequence[Sequence[int]], max_tokens: int
) -> Tensor:
    """Weights (R), float32, that turn a sum over a mini-batch's tokens divided by their number into one divided by
    ``max_tokens`` times its trajectories, so that a token counts the same in short and long responses of any batch
    (arXiv 2503.20783, section 3.2).

    ``kept`` are the trajectories of each mini-batch that its loss is computed on; those left out have no gradient, and
    count as trajectories all the same.
    """
    weight_N = torch.zeros(len(lengths), dtype=torch.float64)
    for members, remaining in zip(mini_batches, kept, strict=True):
        weight_N[list(remaining)] = sum(lengths[i] for i in remaining) / (max_tokens * len(members))
    return weight_N.repeat_interleave(torch.tensor(lengths)).float()


def _sequence_loss_weights(lengths_N: Tensor, label_N: Tensor) -> Tensor:
    """Weight of a token (N) when labels weigh the same, and so do the trajectories of a label; 1 on average."""
    nonempty_N = (lengths_N > 0).double()
    share_N = nonempty_N / _segment_sum(label_N, nonempty_N)[label_N].clamp(min=1)
    return share_N / share_N.sum().clamp(min=1) * lengths_N.sum() / lengths_N.clamp(min=1)


def discounted_sum(x_R: Tensor, seq_index_R: Tensor, decay: float) -> Tensor:
    """y_t = Σ_{j≥0} decay^j x_{t+j}, within the tokens of one trajectory (R).

    Doubling scan: each pass doubles the reach of every sum, so 8192-token responses take 13 vector passes.
    """
    y_R = x_R.clone()
    reach, longest = 1, int(torch.bincount(seq_index_R).max()) if len(seq_index_R) else 0
    while reach < longest:
        same = seq_index_R[reach:] == seq_index_R[:-reach]
        y_R[:-reach] += decay**reach * torch.where(same, y_R[reach:], 0.0)
        reach *= 2
    return y_R


def whiten(x_R: Tensor, label_R: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over the tokens of each label, with the unbiased variance.

    A label whose numbers are all equal becomes exactly 0.
    """
    counts_G = torch.bincount(label_R)
    centred_R = x_R - (_segment_sum(label_R, x_R) / counts_G)[label_R]
    variance_G = _segment_sum(label_R, centred_R**2) / (counts_G - 1).clamp(min=1)
    return _zero_where_constant(centred_R * (variance_G + VARIANCE_FLOOR).rsqrt()[label_R], x_R, label_R)


def _segment_sum(label: Tensor, x: Tensor) -> Tensor:
    """Sum of x over the elements of each label (G)."""
    return torch.bincount(label, weights=x)


def _zero_where_constant(out: Tensor, x: Tensor, label: Tensor) -> Tensor:
    """Rounding of a mean must not turn a batch of equal rewards into a direction."""
    shape = (int(label.max()) + 1 if len(label) else 0,)
    low_G = x.new_zeros(shape).scatter_reduce(0, label, x, "amin", include_self=False)
    high_G = x.new_zeros(shape).scatter_reduce(0, label, x, "amax", include_self=False)
    return torch.where((low_G == high_G)[label], 0.0, out)


def _factorize(labels: Sequence[Hashable]) -> Tensor:
    """Labels as indices 0, 1, … in order of appearance."""
    indices: dict[Hashable, int] = {}
    return torch.tensor([indices.setdefault(label, len(indices)) for label in labels], dtype=torch.int64)


@register(TRRPP)
def trrpp(inputs: AdvantageInputs, knobs: TRRPP) -> tuple[Tensor, Tensor]:
    """Task-Relative REINFORCE++: returns whitened per (kind, role) (arXiv 2505.03335, eq. 8)."""
    returns_R = inputs.rewards_N[inputs.seq_index_R]
    return whiten(returns_R, inputs.kind_role_N[inputs.seq_index_R]), returns_R


@register(ReinforcePP)
def reinforce_plus_plus(inputs: AdvantageInputs, knobs: ReinforcePP) -> tuple[Tensor, Tensor]:
    """REINFORCE++: returns whitened over the whole batch (arXiv 2501.03262)."""
    returns_R = inputs.rewards_N[inputs.seq_index_R]
    return whiten(returns_R, torch.zeros_like(inputs.seq_index_R)), returns_R


@register(GAE)
def gae(inputs: AdvantageInputs, knobs: GAE) -> tuple[Tensor, Tensor]:
    """Generalised advantages (arXiv 1506.02438, eq. 16), then whitened per (kind, role); returns before whitening.

    The reward is on the last token, and V = 0 after it. Undiscounted: delta_t = r_t + V_{t+1} - V_t,
    A_t = Σ_j lambda^j delta_{t+j} and return_t = A_t + V_t.
    """
    assert inputs.values_R is not None, "gae needs the critic's values"
    values_R, seq_index_R = inputs.values_R.double(), inputs.seq_index_R
    next_R = torch.zeros_like(values_R)
    next_R[:-1] = torch.where(seq_index_R[1:] == seq_index_R[:-1], values_R[1:], 0.0)
    raw_R = discounted_sum(_token_rewards(inputs) + next_R - values_R, seq_index_R, knobs.lambda_)
    return whiten(raw_R, inputs.kind_role_N[seq_index_R]), raw_R + values_R


def _token_rewards(inputs: AdvantageInputs) -> Tensor:
    """The reward on each response's last token, 0 on the others (R)."""
    rewards_R = torch.zeros(len(inputs.seq_index_R), dtype=torch.float64)
    nonempty_N = inputs.lengths_N > 0
    rewards_R[inputs.lengths_N.cumsum(0)[nonempty_N] - 1] = inputs.rewards_N[nonempty_N]
    return rewards_R


def _group_relative(inputs: AdvantageInputs, scale: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Rewards centred in their group and scaled by ``scale(variance_G, size_G)``."""
    group_N, rewards_N = inputs.group_N, inputs.rewards_N
    size_G = torch.bincount(group_N)
    centred_N = rewards_N - (_segment_sum(group_N, rewards_N) / size_G)[group_N]
    variance_G = _segment_sum(group_N, centred_N**2) / (size_G - 1).clamp(min=1)
    scores_N = _zero_where_constant(centred_N * scale(variance_G, size_G)[group_N], rewards_N, group_N)
    return scores_N[inputs.seq_index_R], rewards_N[inputs.seq_index_R]


@register(RLOO)
def rloo(inputs: AdvantageInputs, knobs: RLOO) -> tuple[Tensor, Tensor]:
    """Reward minus the mean of the *other* members of its group (arXiv 2402.14740): n / (n - 1) times centred."""
    return _group_relative(inputs, lambda _, size_G: size_G / (size_G - 1).clamp(min=1))


@register(GRPO)
def grpo(inputs: AdvantageInputs, knobs: GRPO) -> tuple[Tensor, Tensor]:
    """(reward - mean) / (unbiased deviation + 1e-6) in its group (arXiv 2402.03300)."""
    return _group_relative(inputs, lambda variance_G, _: 1 / (variance_G.sqrt() + DEVIATION_FLOOR))


@register(DrGRPO)
def dr_grpo(inputs: AdvantageInputs, knobs: DrGRPO) -> tuple[Tensor, Tensor]:
    """Reward minus its group's mean (arXiv 2503.20783)."""
    return _group_relative(inputs, lambda variance_G, _: torch.ones_like(variance_G))
