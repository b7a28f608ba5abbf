"""Advantage estimators, registered by name: rewards per trajectory in, one number per response token out.

Everything is float64 inside, so that sums over a large batch do not depend on its order in float32.

Legend: N trajectories, R response tokens of all of them, concatenated in order; G labels (groups or strata).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from azr.config import GAE, GRPO, RLOO, TRRPP, AlgorithmConfig, DrGRPO, ReinforcePP

VARIANCE_FLOOR = 1e-8
"""Added to the variance before its root is taken, as in verl's masked whitening."""
DEVIATION_FLOOR = 1e-6
"""Added to GRPO's standard deviation."""


@dataclass(frozen=True, kw_only=True)
class Graded:
    """What an estimator may look at."""

    rewards: Sequence[float]
    """(N)"""
    response_lengths: Sequence[int]
    """(N), tokens; a length of 0 is allowed and yields no number."""
    strata: Sequence[Hashable]
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
    def owner_R(self) -> Tensor:
        """Trajectory number of each token."""
        return torch.arange(len(self.lengths_N)).repeat_interleave(self.lengths_N)

    @cached_property
    def stratum_N(self) -> Tensor:
        return _numbered(self.strata)

    @cached_property
    def group_N(self) -> Tensor:
        """Group numbers. A group of one has no peers, so all such trajectories of a stratum form one group."""
        sizes = Counter(self.groups)
        labels = zip(self.groups, self.strata, strict=True)
        return _numbered([("lone", stratum) if sizes[group] == 1 else ("group", group) for group, stratum in labels])


@dataclass(frozen=True, kw_only=True)
class Advantages:
    advantages_R: Tensor
    """float32"""
    returns_R: Tensor
    """float32; what a critic is fitted to."""


Estimator = Callable[[Graded, AlgorithmConfig], tuple[Tensor, Tensor]]
"""Advantages and returns per token, both float64 (R)."""

ESTIMATORS: dict[type, Estimator] = {}


def register(name: type) -> Callable[[Estimator], Estimator]:
    """Decorator that makes an estimator selectable as ``algorithm.estimator``."""

    def add(estimator: Estimator) -> Estimator:
        assert name not in ESTIMATORS
        ESTIMATORS[name] = estimator
        return estimator

    return add


def estimate_advantages(graded: Graded, config: AlgorithmConfig) -> Advantages:
    """Run the configured estimator. Raises ValueError for a name that is not registered."""
    advantages_R, returns_R = ESTIMATORS[type(config.estimator)](graded, config)
    if config.loss_weighting != "token":
        together_N = graded.stratum_N if config.loss_weighting == "kind_role" else torch.zeros_like(graded.stratum_N)
        advantages_R = advantages_R * _equal_shares(graded.lengths_N, together_N)[graded.owner_R]
    return Advantages(advantages_R=advantages_R.float(), returns_R=returns_R.float())


def _equal_shares(lengths_N: Tensor, label_N: Tensor) -> Tensor:
    """What a token weighs (N) when labels weigh the same, and so do the trajectories of a label; 1 on average."""
    spoken_N = (lengths_N > 0).double()
    share_N = spoken_N / _sums(label_N, spoken_N)[label_N].clamp(min=1)
    return share_N / share_N.sum().clamp(min=1) * lengths_N.sum() / lengths_N.clamp(min=1)


def discounted_sum(x_R: Tensor, owner_R: Tensor, decay: float) -> Tensor:
    """y_t = Σ_{j≥0} decay^j x_{t+j}, within the tokens of one trajectory (R).

    Doubling scan: each pass doubles the reach of every sum, so 8192-token responses take 13 vector passes.
    """
    y_R = x_R.clone()
    reach, longest = 1, int(torch.bincount(owner_R).max()) if len(owner_R) else 0
    while reach < longest:
        same = owner_R[reach:] == owner_R[:-reach]
        y_R[:-reach] += decay**reach * torch.where(same, y_R[reach:], 0.0)
        reach *= 2
    return y_R


def token_rewards(graded: Graded, scores_N: Tensor) -> Tensor:
    """The score on each response's last token, 0 on the others (R)."""
    rewards_R = torch.zeros(len(graded.owner_R), dtype=torch.float64)
    spoken = graded.lengths_N > 0
    rewards_R[graded.lengths_N.cumsum(0)[spoken] - 1] = scores_N[spoken]
    return rewards_R


def whiten(x_R: Tensor, label_R: Tensor, weight_R: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) within each label, under weights that sum to the label's number of units.

    The variance is the unbiased one for that many independent units. A label whose numbers are all equal becomes
    exactly 0.
    """
    units_G = _sums(label_R, weight_R)
    centred_R = x_R - (_sums(label_R, weight_R * x_R) / units_G)[label_R]
    variance_G = _sums(label_R, weight_R * centred_R**2) / (units_G - 1).clamp(min=1)
    return _zero_where_constant(centred_R * (variance_G + VARIANCE_FLOOR).rsqrt()[label_R], x_R, label_R)


def _whiten_tokens(x_R: Tensor, graded: Graded, label_N: Tensor) -> Tensor:
    """Whitening in which each token counts as one unit."""
    return whiten(x_R, label_N[graded.owner_R], torch.ones_like(x_R))


def _sums(label: Tensor, x: Tensor) -> Tensor:
    return torch.bincount(label, weights=x)


def _zero_where_constant(out: Tensor, x: Tensor, label: Tensor) -> Tensor:
    """Rounding of a mean must not turn a batch of equal rewards into a direction."""
    shape = (int(label.max()) + 1 if len(label) else 0,)
    low_G = x.new_zeros(shape).scatter_reduce(0, label, x, "amin", include_self=False)
    high_G = x.new_zeros(shape).scatter_reduce(0, label, x, "amax", include_self=False)
    return torch.where((low_G == high_G)[label], 0.0, out)


def _numbered(labels: Sequence[Hashable]) -> Tensor:
    """Labels as numbers 0, 1, … in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(label, len(numbers)) for label in labels], dtype=torch.int64)


@register(TRRPP)
def trrpp(graded: Graded, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Task-Relative REINFORCE++: returns whitened per (kind, role) (arXiv 2505.03335, eq. 8)."""
    returns_R = discounted_sum(token_rewards(graded, graded.rewards_N), graded.owner_R, 1.0)
    return _whiten_tokens(returns_R, graded, graded.stratum_N), returns_R


@register(ReinforcePP)
def reinforce_plus_plus(graded: Graded, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """REINFORCE++: returns whitened over the whole batch (arXiv 2501.03262)."""
    returns_R = discounted_sum(token_rewards(graded, graded.rewards_N), graded.owner_R, 1.0)
    return _whiten_tokens(returns_R, graded, torch.zeros_like(graded.stratum_N)), returns_R


@register(GAE)
def gae(graded: Graded, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Generalised advantages (arXiv 1506.02438, eq. 16), then whitened per (kind, role); returns before whitening.

    With V = 0 after the last token: delta_t = r_t + gamma V_{t+1} - V_t, A_t = Σ_j (gamma lambda)^j delta_{t+j} and
    return_t = A_t + V_t.
    """
    assert isinstance(config.estimator, GAE)
    assert graded.values_R is not None, "gae needs the critic's values"
    values_R, owner_R = graded.values_R.double(), graded.owner_R
    next_R = torch.zeros_like(values_R)
    next_R[:-1] = torch.where(owner_R[1:] == owner_R[:-1], values_R[1:], 0.0)
    deltas_R = token_rewards(graded, graded.rewards_N) + next_R - values_R
    raw_R = discounted_sum(deltas_R, owner_R, config.estimator.lambda_)
    return _whiten_tokens(raw_R, graded, graded.stratum_N), raw_R + values_R


def _group_relative(
    graded: Graded, config: AlgorithmConfig, scale: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Rewards centred in their group and scaled by ``scale(variance_G, size_G)``; KL joins after the scaling."""
    group_N, rewards_N = graded.group_N, graded.rewards_N
    size_G = torch.bincount(group_N)
    centred_N = rewards_N - (_sums(group_N, rewards_N) / size_G)[group_N]
    variance_G = _sums(group_N, centred_N**2) / (size_G - 1).clamp(min=1)
    scores_N = _zero_where_constant(centred_N * scale(variance_G, size_G)[group_N], rewards_N, group_N)
    advantages_R = discounted_sum(token_rewards(graded, scores_N), graded.owner_R, 1.0)
    return advantages_R, discounted_sum(token_rewards(graded, rewards_N), graded.owner_R, 1.0)


@register(RLOO)
def rloo(graded: Graded, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Reward minus the mean of the *other* members of its group (arXiv 2402.14740): n / (n - 1) times centred."""
    return _group_relative(graded, config, lambda _, size_G: size_G / (size_G - 1).clamp(min=1))


@register(GRPO)
def grpo(graded: Graded, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """(reward - mean) / (unbiased deviation + 1e-6) in its group (arXiv 2402.03300)."""
    return _group_relative(graded, config, lambda variance_G, _: 1 / (variance_G.sqrt() + DEVIATION_FLOOR))


@register(DrGRPO)
def dr_grpo(graded: Graded, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """Reward minus its group's mean (arXiv 2503.20783)."""
    return _group_relative(graded, config, lambda variance_G, _: torch.ones_like(variance_G))
