"""Which trajectories a step learns from, with which rewards, and what it made of each.

Legend: R response tokens of all trajectories of a step, in their order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from azr.records import FinishReason, Learned, Sample


def learned_of(
    lengths: Sequence[int],
    advantages_R: Tensor,
    index_B: Tensor,
    trainer_B: Tensor,
    rollout_R: npt.NDArray[np.float32],
    is_trace_R: Tensor | None = None,
) -> list[Learned | None]:
    """What a step made of each of its trajectories, of these many response tokens.

    ``index_B`` says which of the R tokens the B are that the trainer gave logprobs of; ``is_trace_R`` those that no
    engine did.
    """
    count = len(lengths)
    owner_R = np.repeat(np.arange(count), lengths)
    advantages = np.bincount(owner_R, advantages_R.numpy(), count) / np.maximum(lengths, 1)
    index, trainer = index_B.numpy(), trainer_B.numpy()
    is_known = np.isfinite(trainer)  # others are those of a step that was skipped
    if is_trace_R is not None:
        is_known &= ~is_trace_R.numpy()[index]
    owner, apart = owner_R[index[is_known]], np.abs(trainer - rollout_R[index])[is_known]
    counts = np.bincount(owner, minlength=count)
    mismatch = np.bincount(owner, apart, count) / np.maximum(counts, 1)
    return [
        Learned(each if math.isfinite(each) else None, apart if known else None)
        for each, apart, known in zip(advantages.tolist(), mismatch.tolist(), counts.tolist(), strict=True)
    ]


def without_cut_off(trajectories: Sequence[Sample]) -> list[Sample]:
    """Trajectories that ended by themselves.

    DAPO's overlong filtering (arXiv 2503.14476, section 3.4) goes as far as the loss. Here, the estimators do not see
    cut-off responses either: the baseline of the others would otherwise hold their penalty, and more so the longer they
    are, and reward every finished response, malformed ones included, for being shorter. The critic is not fitted to
    returns that say nothing of what would have come.
    """
    return [each for each in trajectories if each.completion.finish_reason is not FinishReason.LENGTH]


def drop_zero_advantage(
    mini_batches: Sequence[Sequence[int]], advantages: Sequence[Tensor], ranks: int
) -> list[Sequence[int]]:
    """Each mini-batch without the trajectories whose advantages are all 0, unless fewer than `ranks` would be left."""
    result = []
    for members in mini_batches:
        kept = [index for index in members if advantages[index].any()]
        result.append(kept if len(kept) >= ranks else members)
    return result


def shuffle_rewards(rewards: Sequence[float], labels: Sequence[Hashable], seed: int) -> list[float]:
    """Rewards in random order within each label (across groups), so that they say nothing about their trajectory."""
    rng = random.Random(f"rewards/{seed}")
    by_label: dict[Hashable, list[int]] = {}
    for index, label in enumerate(labels):
        by_label.setdefault(label, []).append(index)
    result = list(rewards)
    for indices in by_label.values():
        for index, source in zip(indices, rng.sample(indices, len(indices)), strict=True):
            result[index] = rewards[source]
    return result
