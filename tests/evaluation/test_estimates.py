"""Hand-made numbers, and how often intervals hold the truth."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from azr.evaluation.estimates import estimate, pass_at


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer():
    for right in range(7):
        answers = [True] * right + [False] * (6 - right)
        subsets = [any(chosen) for chosen in itertools.combinations(answers, 3)]
        assert pass_at(3, right, 6) == pytest.approx(sum(subsets) / len(subsets))


def test_an_estimate_is_the_mean_of_the_groups_means():
    share = estimate([[1.0, 0.0, 0.0, 0.0], [1.0] * 10])
    assert share.value == pytest.approx((0.25 + 1.0) / 2)
    assert share == estimate([[1.0, 0.0, 0.0, 0.0], [1.0] * 10])


def test_the_interval_is_the_normal_one_for_many_tasks():
    values = np.random.default_rng(3).random(4000) < 0.3
    share, half = estimate([values.astype(float)]), 1.96 * values.std() / np.sqrt(4000)
    assert share.low == pytest.approx(share.value - half, abs=0.1 * half)
    assert share.high == pytest.approx(share.value + half, abs=0.1 * half)


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(4)
    intervals = [estimate([(rng.random(100) < 0.3).astype(float)], seed=seed) for seed in range(200)]
    assert 0.88 <= np.mean([share.low <= 0.3 <= share.high for share in intervals]) <= 0.99


def test_equal_scores_have_no_spread():
    share = estimate([[1.0] * 5])
    assert (share.low, share.value, share.high) == (1.0, 1.0, 1.0)
