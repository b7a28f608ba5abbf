"""The table that a training step works on: columns over its samples, and over their response tokens.

Legend: N samples, R response tokens of all of them that a model wrote, concatenated in the samples' order; G labels.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from azr.algorithms.objectives import kl_estimate
from azr.config import AlgorithmConfig, KLConfig
from azr.estimators.base import VARIANCE_FLOOR
from azr.records import Sample, grouped

POLICY_COLUMNS = (
    "rollout_logprobs", "is_trace", "advantages", "loss_weights", "reference_logprobs", "old_logprobs", "seq_index",
)  # fmt: skip
"""Columns over tokens that the policy's loss takes, without their suffix; see `azr.algorithms.losses.policy_loss`."""


@dataclass(kw_only=True, eq=False)
class Batch:
    """Columns of a training step; later stages fill in theirs, float32 (R), by name.

    Example: ``Batch(rewards=[1.0, 0.0], response_lengths=[3, 2], kind_roles=[("deduction", "solver")] * 2,
    groups=["a", "a"])`` is all that an estimator without a critic needs.
    """

    rewards: Sequence[float]
    """(N)"""
    response_lengths: Sequence[int]
    """(N), tokens; 0 is allowed."""
    kind_roles: Sequence[tuple[str, str]]
    """(N), ``(kind, role)`` of each sample."""
    groups: Sequence[str]
    """(N); samples with the same group answered the same prompt."""
    is_trace: Sequence[bool] = ()
    """(N), whether another model wrote the response; empty if the policy wrote all."""
    capped: Sequence[bool] = ()
    """(N), whether a sample may have no positive advantage; empty where all may."""
    rollout_logprobs_R: Tensor | None = None
    """Log-probabilities in the engine that sampled; 0 for tokens of traces."""
    penalties_R: Tensor | None = None
    """KL of each token times its coefficient, float64, with ``kl.where`` reward."""
    values_R: Tensor | None = None
    """The critic's value before each token; None without a critic."""
    advantages_R: Tensor | None = None
    returns_R: Tensor | None = None
    """Targets of the critic."""
    loss_weights_R: Tensor | None = None
    """Factors of the policy's loss; None for 1 throughout."""
    reference_logprobs_R: Tensor | None = None
    old_logprobs_R: Tensor | None = None
    """Log-probabilities in the policy before its first of several optimizer steps."""

    @classmethod
    def from_samples(cls, samples: Sequence[Sample], capped: Sequence[bool] = ()) -> Self:
        """Table of samples that all have a reward."""
        rewards = [sample.reward for sample in samples if sample.reward is not None]
        assert len(rewards) == len(samples), "a sample without a reward cannot be trained on"
        traces = [sample.origin == "trace" for sample in samples]
        completions = [sample.completion for sample in samples]
        return cls(
            rewards=rewards,
            response_lengths=[completion.num_sampled for completion in completions],
            kind_roles=[(sample.kind, sample.role) for sample in samples],
            groups=[sample.group for sample in samples],
            is_trace=traces if any(traces) else (),
            capped=capped if any(capped) else (),
            rollout_logprobs_R=torch.from_numpy(np.concatenate([c.logprobs[c.is_sampled] for c in completions])),
        )

    @cached_property
    def rewards_N(self) -> Tensor:
        """Rewards of the tasks, without a KL: what baselines and deviations are made of."""
        return torch.tensor(self.rewards, dtype=torch.float64)

    @cached_property
    def rewards_R(self) -> Tensor:
        """Reward of each token: the sample's on its last one, and with a critic less the token's penalty."""
        rewards_R = torch.zeros(len(self.seq_index_R), dtype=torch.float64)
        rewards_R[self.last_token_N] = self.rewards_N[self.lengths_N > 0]
        return rewards_R if self.penalties_R is None or self.values_R is None else rewards_R - self.penalties_R

    @property
    def kl_R(self) -> Tensor | None:
        """Penalties of the token's whole response, which its advantage loses; None if there are none, or a critic,
        which predicts them."""
        if self.penalties_R is None or self.values_R is not None:
            return None
        return torch.bincount(self.seq_index_R, self.penalties_R, len(self.rewards))[self.seq_index_R]

    @cached_property
    def lengths_N(self) -> Tensor:
        return torch.tensor(self.response_lengths, dtype=torch.int64)

    @cached_property
    def seq_index_R(self) -> Tensor:
        """Index of each token's sample."""
        return torch.arange(len(self.lengths_N)).repeat_interleave(self.lengths_N)

    @cached_property
    def last_token_N(self) -> Tensor:
        """Index of the last token of each sample that has any."""
        return self.lengths_N.cumsum(0)[self.lengths_N > 0] - 1

    @cached_property
    def kind_role_N(self) -> Tensor:
        """Index of each sample's (kind, role)."""
        return _factorize(self.kind_roles)

    @cached_property
    def group_N(self) -> Tensor:
        """Index of each sample's group. Proposals that are alone in theirs form one group for each kind; answers never
        do, for theirs are to different questions."""
        sizes = Counter(self.groups)
        labels = zip(self.groups, self.kind_roles, strict=True)
        return _factorize(
            [("alone", kind) if sizes[group] == 1 and role == "proposer" else group for group, (kind, role) in labels]
        )

    def centred(self, label_N: Tensor) -> Tensor:
        """Return the rewards less the mean of their label (N), exactly 0 where all of a label are equal."""
        return torch.where(_is_constant(self.rewards_N, label_N), 0.0, _centre(self.rewards_N, label_N))

    def centred_tokens(self, x_R: Tensor, label_R: Tensor) -> tuple[Tensor, Tensor]:
        """Return numbers less the mean of their label, 0 where all rewards of a label are equal, and whether they
        differ (R)."""
        differs_R = ~_is_constant(self.rewards_N[self.seq_index_R], label_R)
        return torch.where(differs_R, _centre(x_R, label_R), 0.0), differs_R

    def whitened(self, label_N: Tensor) -> Tensor:
        """Return (x - mean) / sqrt(var + 1e-8) of the rewards x over the tokens of each label (R), with the unbiased
        variance; exactly 0 where all rewards of a label are equal."""
        x, label, lengths = (each_N[self.lengths_N > 0] for each_N in (self.rewards_N, label_N, self.lengths_N))
        label_R, count_G = label.repeat_interleave(lengths), label.bincount(lengths)
        # Only sums need every token; they are added one by one, as for numbers that differ within a sample.
        centred = x - (label_R.bincount(x.repeat_interleave(lengths)) / count_G)[label]
        squares_G = label_R.bincount((centred**2).repeat_interleave(lengths))
        whitened = centred * (squares_G / (count_G - 1).clamp(min=1) + VARIANCE_FLOOR).rsqrt()[label]
        return torch.where(_is_constant(x, label), 0.0, whitened).repeat_interleave(lengths)

    def discounted(self, x_R: Tensor, decay: float) -> Tensor:
        """Return y_t = Σ_{j≥0} decay^j x_{t+j}, within the tokens of one sample (R).

        Doubling scan: each pass doubles the reach of every sum, so 8192-token responses take 13 vector passes.
        """
        y_R = x_R.clone()
        reach, longest = 1, max(self.response_lengths, default=0)
        while reach < longest:
            same = self.seq_index_R[reach:] == self.seq_index_R[:-reach]
            y_R[:-reach] += decay**reach * torch.where(same, y_R[reach:], 0.0)
            reach *= 2
        return y_R

    @cached_property
    def is_trace_R(self) -> Tensor | None:
        """Whether a trace gave the token, bool; None where the policy sampled all, so that nothing is spent on it."""
        return torch.tensor(self.is_trace)[self.seq_index_R] if self.is_trace else None

    @property
    def sampled_entropy(self) -> float | None:
        """Entropy of the policy that sampled, in nats a token: the mean of -log p over all sampled tokens, which needs
        no forward pass. None if there are none."""
        assert self.rollout_logprobs_R is not None
        sampled_R = self.rollout_logprobs_R if self.is_trace_R is None else self.rollout_logprobs_R[~self.is_trace_R]
        return -sampled_R.double().mean().item() if len(sampled_R) else None

    @property
    def only_traces(self) -> bool:
        return self.is_trace_R is not None and bool(self.is_trace_R.all())

    def policy_columns(self, config: AlgorithmConfig) -> dict[str, Tensor]:
        """Columns (R) of the policy's loss, those that are there and needed."""
        columns = {name: getattr(self, f"{name}_R") for name in POLICY_COLUMNS}
        if not config.by_sequence:
            del columns["seq_index"]
        return {name: column_R for name, column_R in columns.items() if column_R is not None}

    def critic_columns(self) -> dict[str, Tensor]:
        """Columns (R) of the critic's loss; see `azr.algorithms.losses.value_loss`."""
        columns = {"old_values": self.values_R, "returns": self.returns_R, "is_trace": self.is_trace_R}
        return {name: column_R for name, column_R in columns.items() if column_R is not None}

    def sampled_part(self) -> Batch:
        """Table for an estimator that must not see the traces that there are."""
        assert self.is_trace_R is not None
        members = [i for i, is_trace in enumerate(self.is_trace) if not is_trace]
        return Batch(
            rewards=[self.rewards[i] for i in members],
            response_lengths=[self.response_lengths[i] for i in members],
            kind_roles=[self.kind_roles[i] for i in members],
            groups=[self.groups[i] for i in members],
            capped=[self.capped[i] for i in members] if self.capped else (),
            penalties_R=None if self.penalties_R is None else self.penalties_R[~self.is_trace_R],
            values_R=None if self.values_R is None else self.values_R[~self.is_trace_R],
        )

    def charge_kl(self, config: KLConfig) -> None:
        """Fill in the penalties: the KL of the policy that sampled to the reference, of sampled tokens."""
        assert self.rollout_logprobs_R is not None and self.reference_logprobs_R is not None
        kl_R = kl_estimate(self.rollout_logprobs_R.double(), self.reference_logprobs_R.double(), config.estimator)
        self.penalties_R = config.coef * (kl_R if self.is_trace_R is None else kl_R.masked_fill(self.is_trace_R, 0))

    def with_shuffled_rewards(self, seed: int) -> Batch:
        """Table whose rewards, and caps with them, are in random order within each (kind, role), so that they say
        nothing about a sample."""
        rng = random.Random(f"rewards/{seed}")
        sources = list(range(len(self.rewards)))
        for indices in grouped((label, index) for index, label in enumerate(self.kind_roles)).values():
            for index, source in zip(indices, rng.sample(indices, len(indices)), strict=True):
                sources[index] = source
        capped = [self.capped[source] for source in sources] if self.capped else ()
        return replace(self, rewards=[self.rewards[source] for source in sources], capped=capped)

    def has_gradient(self, config: AlgorithmConfig) -> list[bool]:
        """Whether each sample's objective has a gradient: a token of it has an advantage besides its KL, or is
        imitated."""
        assert self.advantages_R is not None
        factor_R = self.advantages_R if self.kl_R is None else (self.advantages_R != -self.kl_R.float()).float()
        if self.is_trace_R is not None and config.off_policy.loss == "sft":
            factor_R = factor_R.masked_fill(self.is_trace_R, config.off_policy.sft_coef)
        taught = torch.bincount(self.seq_index_R[factor_R != 0], minlength=len(self.rewards))
        return (taught > 0).tolist()

    def write_results(self, samples: Sequence[Sample], trainer_logprobs_R: Tensor) -> None:
        """Set advantage and mismatch of the samples that the table was made of.

        ``trainer_logprobs_R``: log-probabilities in the policy before its update. They are not finite where the update
        left a token out, or the optimizer step was skipped.
        """
        assert self.advantages_R is not None and self.rollout_logprobs_R is not None
        count, lengths, owner_R = len(samples), self.response_lengths, self.seq_index_R.numpy()
        advantages = np.bincount(owner_R, self.advantages_R.numpy(), count) / np.maximum(lengths, 1)
        known_R = trainer_logprobs_R.isfinite()
        if self.is_trace_R is not None:
            known_R &= ~self.is_trace_R
        apart = (trainer_logprobs_R - self.rollout_logprobs_R)[known_R].abs().numpy()
        owner = owner_R[known_R.numpy()]
        counts = np.bincount(owner, minlength=count)
        mismatch = np.bincount(owner, apart, count) / np.maximum(counts, 1)
        columns = zip(samples, advantages.tolist(), mismatch.tolist(), counts.tolist(), strict=True)
        for sample, advantage, difference, known in columns:
            sample.advantage = advantage if math.isfinite(advantage) else None
            sample.mismatch = difference if known else None
        # The tokens of a few samples are kept one by one; those of all would nearly triple the records.
        largest = {self.kind_roles[at]: at for at in np.argsort(mismatch, kind="stable").tolist() if counts[at]}
        for at in largest.values():
            own_R = self.seq_index_R == at
            both = [each[own_R].double().round(decimals=4) for each in (self.rollout_logprobs_R, trainer_logprobs_R)]
            columns = zip(*(each.tolist() for each in both), known_R[own_R].tolist(), strict=True)
            samples[at].tokens = [("", *(pair if known else (None, None))) for *pair, known in columns]


def _centre(x: Tensor, label: Tensor) -> Tensor:
    """Subtract each label's mean."""
    return x - (label.bincount(x) / label.bincount())[label]


def _is_constant(x: Tensor, label: Tensor) -> Tensor:
    """Whether all elements of the element's label are equal, bool: rounding of their mean must teach nothing."""
    shape = (int(label.max()) + 1 if len(label) else 0,)
    low_G = x.new_zeros(shape).scatter_reduce(0, label, x, "amin", include_self=False)
    high_G = x.new_zeros(shape).scatter_reduce(0, label, x, "amax", include_self=False)
    return (low_G == high_G)[label]


def _factorize(labels: Sequence[Hashable]) -> Tensor:
    """Labels as indices 0, 1, … in order of appearance."""
    indices: dict[Hashable, int] = {}
    return torch.tensor([indices.setdefault(label, len(indices)) for label in labels], dtype=torch.int64)
