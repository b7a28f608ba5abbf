"""Numbers of a table from a few answers, each computed by hand, and how often intervals hold the truth."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from azr.evaluation.report import markdown
from azr.evaluation.scores import Row, estimate, metrics, pass_at, rows
from azr.tasks.base import Verdict
from tests.evaluation.written import answers_to

R, W, M, U = Verdict.RIGHT, Verdict.WRONG, Verdict.MALFORMED, Verdict.UNGRADED
EXAM = [
    *answers_to("exam", "1", "deduction/short", R, [R] * 8),
    *answers_to("exam", "2", "deduction/short", R, [R, W] * 4),
    *answers_to("exam", "3", "deduction/novel", W, [M] * 8),
    *answers_to("exam", "4", "abduction/short", U, [R, R, *[W] * 6]),
    *answers_to("exam", "5", "abduction/novel", U, [U] * 8),
]
PARTS = [
    *answers_to("mbpp+", "1", "all", R, [], {"base": True, "plus": True}),
    *answers_to("mbpp+", "2", "all", W, [], {"base": True, "plus": False}),
    *answers_to("mbpp+", "3", "all", M, []),
    *answers_to("mbpp+", "4", "all", U, []),
]


def table() -> dict[str, Row]:
    return {row.name: row for row in rows([*EXAM, *PARTS], (1, 8), 8, ["exam"])}


def values(name: str) -> dict[str, float]:
    return {measure: share.value for measure, share in table()[name].estimates.items()}


def test_ungraded_answers_count_for_nobody_and_groups_weigh_alike_where_the_suite_says_so():
    assert values("exam/deduction/short") == {"greedy": 1.0, "mean@8": 0.75, "pass@1": 0.75, "pass@8": 1.0}
    assert values("exam/deduction")["greedy"] == pytest.approx(2 / 3)
    assert values("exam/abduction") == {"mean@8": 0.25, "pass@1": 0.25, "pass@8": 1.0}
    assert values("exam/abduction/novel") == {}
    whole = values("exam")
    assert whole["greedy"] == pytest.approx(2 / 3) and whole["mean@8"] == pytest.approx((0.5 + 0.25) / 2)
    assert whole["pass@8"] == pytest.approx((2 / 3 + 1) / 2)


def test_parts_of_a_verdict_have_rows_of_their_own():
    assert values("mbpp+")["greedy"] == pytest.approx(1 / 3)
    assert values("mbpp+ (base)")["greedy"] == pytest.approx(2 / 3)
    assert values("mbpp+ (plus)")["greedy"] == pytest.approx(1 / 3)
    assert "mbpp+/all" not in table()


def test_what_went_wrong_is_a_share_of_all_answers():
    row = table()["mbpp+"]
    assert (row.questions, row.malformed, row.ungraded, row.truncated) == (4, 0.25, 0.25, 0.0)
    assert row.tokens == 7


def test_metrics_have_intervals_for_suites_and_names_that_are_paths():
    named = metrics(list(table().values()))
    assert named["exam/deduction/short/mean@8"] == 0.75 and named["mbpp+/base/greedy"] == pytest.approx(2 / 3)
    assert named["exam/mean@8_low"] <= named["exam/mean@8"] <= named["exam/mean@8_high"]
    assert named["exam/malformed"] == pytest.approx(8 / 45)
    assert "exam/deduction/mean@8_low" not in named


def test_the_table_is_markdown_with_straight_columns():
    lines = markdown(list(table().values())).splitlines()
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == [
        "suite", "questions", "greedy", "mean@8", "pass@1", "pass@8", "truncated", "malformed", "ungraded", "tokens",
    ]  # fmt: skip
    assert len({len(line) for line in lines}) == 1
    (line,) = (line for line in lines if line.startswith("| exam/deduction/short "))
    assert "100.0 [34.2, 100.0]" in line
    (line,) = (line for line in lines if line.startswith("| exam/abduction/novel "))
    assert line.split("|")[3].strip() == "-"


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer():
    for right in range(7):
        answers = [True] * right + [False] * (6 - right)
        subsets = [any(chosen) for chosen in itertools.combinations(answers, 3)]
        assert pass_at(3, right, 6) == pytest.approx(sum(subsets) / len(subsets))


@pytest.mark.parametrize(
    ("right", "questions", "low", "high"),
    [(0, 60, 0.0, 6.0), (60, 60, 94.0, 100.0), (5, 800, 0.3, 1.5), (50, 320, 12.1, 20.0), (1, 1, 20.7, 100.0)],
)
def test_shares_of_questions_have_wilson_intervals(right, questions, low, high):
    share = estimate([[1.0] * right + [0.0] * (questions - right)])
    assert share.value == pytest.approx(right / questions)
    assert (share.low, share.high) == pytest.approx((low / 100, high / 100), abs=0.0005)


def test_shares_of_groups_that_weigh_alike_add_their_distances_in_quadrature():
    groups = [[1.0] * 50 + [0.0] * 270, [1.0] * 3 + [0.0] * 7]
    whole, parts = estimate(groups), [estimate([group]) for group in groups]
    assert whole.value == pytest.approx((50 / 320 + 3 / 10) / 2) and whole == estimate(groups)
    assert whole.value - whole.low == pytest.approx(np.hypot(*(each.value - each.low for each in parts)) / 2)
    assert whole.high - whole.value == pytest.approx(np.hypot(*(each.high - each.value for each in parts)) / 2)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=30))
def test_no_interval_of_a_share_is_a_point_or_leaves_its_range(values):
    share = estimate([values])
    assert 0 <= share.low <= share.value + 1e-9 and share.value - 1e-9 <= share.high <= 1 and share.low < share.high


def test_differences_are_signed():
    assert estimate([[0.0] * 9], signed=True).low == 0 == estimate([[0.0] * 9], signed=True).high
    gain = estimate([[1.0, -1.0, 0.0, 0.0] * 5], signed=True)
    assert gain.low < 0 < gain.high
