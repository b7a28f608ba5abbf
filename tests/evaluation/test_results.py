from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from azr.evaluation import results
from azr.evaluation.evaluate import TaskScore
from azr.evaluation.results import estimate, pass_at


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


def score(kind: str, difficulty: str, right: int, greedy: bool | None = True, graded: int = 8) -> TaskScore:
    return TaskScore(
        id=f"{kind}/{difficulty}/{right}", kind=kind, difficulty=difficulty, greedy=greedy, right=right, graded=graded
    )


SCORES = [
    score("deduction", "short", 8), score("deduction", "short", 4), score("deduction", "novel", 0, greedy=False),
    score("abduction", "short", 2, greedy=None), score("abduction", "novel", 0, greedy=None, graded=0),
]  # fmt: skip


def values(kind: str, difficulty: str) -> dict[str, float]:
    (row,) = (row for row in results.rows(SCORES) if (row.kind, row.difficulty) == (kind, difficulty))
    return {measure: share.value for measure, share in row.estimates.items()}


def test_rows_leave_out_what_the_executor_lost_and_weigh_kinds_alike():
    assert values("deduction", "short") == {"greedy": 1.0, "accuracy": 0.75, "pass@8": 1.0}
    assert values("deduction", "all") == pytest.approx({"greedy": 2 / 3, "accuracy": 0.5, "pass@8": 2 / 3})
    assert values("abduction", "all") == {"accuracy": 0.25, "pass@8": 1.0}
    assert values("abduction", "novel") == {}
    assert values("all", "all") == pytest.approx({"greedy": 2 / 3, "accuracy": (0.5 + 0.25) / 2, "pass@8": 5 / 6})


def test_metrics_have_intervals_for_kinds_and_names_that_are_paths():
    named = results.metrics(results.rows(SCORES))
    assert named["deduction/short/accuracy"] == 0.75
    assert named["mean/accuracy"] == pytest.approx(0.375)
    assert named["deduction/accuracy_low"] <= named["deduction/accuracy"] <= named["deduction/accuracy_high"]


def test_the_table_and_the_file_say_the_same(tmp_path: Path):
    rows = results.rows(SCORES)
    shown = results.text_table(rows).splitlines()
    assert shown[0].split() == ["kind", "difficulty", "tasks", "greedy", "accuracy", "pass@8"]
    assert shown[1].startswith("deduction  short           2  100.0% [100.0, 100.0]")
    assert len({len(line) for line in shown}) == 1
    results.write_results(tmp_path / "new" / "eval.json", {"model": "m"}, SCORES)
    tree = json.loads((tmp_path / "new" / "eval.json").read_text())
    assert tree["model"] == "m" and len(tree["scores"]) == len(SCORES)
    assert tree["rows"][0]["estimates"]["accuracy"]["value"] == 0.75
