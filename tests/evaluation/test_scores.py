"""Numbers of a table from a few answers, each computed by hand, and two evaluations side by side."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from azr.errors import UserError
from azr.evaluation.report import compare, differences_table, gains, markdown
from azr.evaluation.scores import Row, estimate, metrics, pass_at, rows
from azr.tasks.base import Verdict
from tests.evaluation.written import answers_to, write_evaluation

R, W, M, U = Verdict.RIGHT, Verdict.WRONG, Verdict.MALFORMED, Verdict.UNGRADED
EXAM = [
    *answers_to("exam", "1", "deduction/short", R, [R] * 8), *answers_to("exam", "2", "deduction/short", R, [R, W] * 4),
    *answers_to("exam", "3", "deduction/novel", W, [M] * 8),
    *answers_to("exam", "4", "abduction/short", U, [R, R, *[W] * 6]),
    *answers_to("exam", "5", "abduction/novel", U, [U] * 8),
]  # fmt: skip
PARTS = [
    *answers_to("mbpp+", "1", "all", R, [], {"base": True, "plus": True}),
    *answers_to("mbpp+", "2", "all", W, [], {"base": True, "plus": False}), *answers_to("mbpp+", "3", "all", M, []),
    *answers_to("mbpp+", "4", "all", U, []),
]  # fmt: skip


def table() -> dict[str, Row]:
    return {row.name: row for row in rows([*EXAM, *PARTS], (1, 8), 8)}


def values(name: str) -> dict[str, float]:
    return {measure: share.value for measure, share in table()[name].estimates.items()}


def test_parts_of_a_verdict_have_rows_and_suites_intervals():
    assert values("mbpp+")["greedy"] == pytest.approx(1 / 3)
    assert values("mbpp+ (base)")["greedy"] == pytest.approx(2 / 3)
    assert values("mbpp+ (plus)")["greedy"] == pytest.approx(1 / 3)
    assert "mbpp+/all" not in table()
    row = table()["mbpp+"]
    assert (row.questions, row.malformed, row.ungraded, row.truncated, row.tokens) == (4, 0.25, 0.25, 0.0, 7)
    named = metrics(list(table().values()))
    assert named["exam/deduction/short/mean@8"] == 0.75 and named["mbpp+/base/greedy"] == pytest.approx(2 / 3)
    assert named["exam/mean@8_low"] <= named["exam/mean@8"] <= named["exam/mean@8_high"]
    assert named["exam/malformed"] == pytest.approx(8 / 45)
    assert "exam/deduction/mean@8_low" not in named


def test_ungraded_answers_count_for_nobody_and_the_table_is_markdown():
    assert values("exam/deduction/short") == {"greedy": 1.0, "mean@8": 0.75, "pass@1": 0.75, "pass@8": 1.0}
    assert values("exam/deduction")["greedy"] == pytest.approx(2 / 3)
    assert values("exam/abduction") == {"mean@8": 0.25, "pass@1": 0.25, "pass@8": 1.0}
    assert values("exam/abduction/novel") == {}
    whole = values("exam")
    assert whole["greedy"] == pytest.approx(2 / 3) and whole["mean@8"] == pytest.approx((0.5 + 0.25) / 2)
    assert whole["pass@8"] == pytest.approx((2 / 3 + 1) / 2)
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


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=30))
def test_no_interval_of_a_share_is_a_point_or_leaves_its_range(values):
    share = estimate([values])
    assert 0 <= share.low <= share.value + 1e-9 and share.value - 1e-9 <= share.high <= 1 and share.low < share.high


def test_groups_that_weigh_alike_add_their_distances_in_quadrature_and_differences_are_signed():
    groups = [[1.0] * 50 + [0.0] * 270, [1.0] * 3 + [0.0] * 7]
    whole, parts = estimate(groups), [estimate([group]) for group in groups]
    assert whole.value == pytest.approx((50 / 320 + 3 / 10) / 2) and whole == estimate(groups)
    assert whole.value - whole.low == pytest.approx(np.hypot(*(each.value - each.low for each in parts)) / 2)
    assert whole.high - whole.value == pytest.approx(np.hypot(*(each.high - each.value for each in parts)) / 2)
    assert estimate([[0.0] * 9], signed=True).low == 0 == estimate([[0.0] * 9], signed=True).high
    uneven = [[0.1 * n for n in range(9)], [0.3, 0.9, 0.2]]
    assert estimate(uneven) == estimate([group[::-1] for group in uneven[::-1]])
    gain = estimate([[1.0, -1.0, 0.0, 0.0] * 5], signed=True)
    assert gain.low < 0 < gain.high


def evaluation(folder: Path, greedy: list[Verdict], **others: object) -> Path:
    questions = [answers_to("math500", str(at), "all", each, [each, R]) for at, each in enumerate(greedy)]
    return write_evaluation(folder, [answer for each in questions for answer in each], **others)


def test_differences_are_paired_question_by_question(tmp_path: Path):
    before = evaluation(tmp_path / "a", [R, W, W, W] * 10)
    after = evaluation(tmp_path / "b", [R, R, W, W] * 9 + [W, R, W, U])
    differences, others = compare(before, after)
    greedy, sampled = differences
    assert others == [] and (greedy.measure, sampled.measure) == ("greedy", "samples")
    assert greedy.questions == 39 and greedy.before == pytest.approx(10 / 39) and greedy.after == pytest.approx(19 / 39)
    assert greedy.gain.value == pytest.approx(9 / 39) and greedy.gain.low < 9 / 39 < greedy.gain.high
    assert len(greedy.won) == 10 and greedy.lost == ("36",) and greedy.won[0] == "1"
    # Paired, the interval is narrower than that of two samples that know nothing of each other.
    assert greedy.gain.high - greedy.gain.low < 0.35
    assert sampled.questions == 40
    assert "| math500 | greedy  |        39 | 25.6 | 48.7 | +23.1 [" in differences_table(differences)


def test_what_else_differs_is_named(tmp_path: Path):
    before = evaluation(tmp_path / "a", [R, W], template="train")
    after = evaluation(tmp_path / "b", [R, W], template="tokenizer", temperature=0.6)
    assert sorted(compare(before, after)[1]) == ["temperature", "template"]
    files = {"math500": {"sha256": {"math500.jsonl": "0" * 64}}}
    asked = [{"math500": files["math500"] | {"messages_sha256": words}} for words in ("1", "2")]
    before, after = (evaluation(tmp_path / f"words{i}", [R], suites=each) for i, each in enumerate(asked))
    assert compare(before, after)[1] == ["what math500 asks"] and compare(before, before)[1] == []
    # Those of a run do not say.
    assert compare(before, evaluation(tmp_path / "run", [R], suites=files))[1] == []


def test_what_cannot_be_compared_is_refused(tmp_path: Path):
    folder = evaluation(tmp_path / "a", [R])
    other = write_evaluation(tmp_path / "b", answers_to("gsm8k", "0", "all", R, []))
    with pytest.raises(UserError, match="no question in common"):
        compare(folder, other)
    files = {"math500": {"sha256": {"math500.jsonl": "1" * 64}}}
    altered = write_evaluation(tmp_path / "c", answers_to("math500", "0", "all", R, []), suites=files)
    with pytest.raises(UserError, match="read math500 from different files"):
        compare(folder, altered)


def test_a_run_is_told_what_its_last_evaluation_gained_over_its_first(tmp_path: Path):
    def after(step: int, greedy: list[Verdict], **others: object) -> None:
        written = evaluation(tmp_path / f"step {step}", greedy, **others) / "answers.jsonl.gz"
        (tmp_path / "run").mkdir(exist_ok=True)
        shutil.copy(written, tmp_path / "run" / f"step_{step:06d}.jsonl.gz")

    after(0, [R, W, W, W] * 10)
    assert gains(tmp_path / "run") == []
    after(12, [W] * 40)
    (loss,) = gains(tmp_path / "run")
    assert loss.startswith("math500: 62.5% to 50.0% of 40 questions at temperature 1, -12.5 points [-") and (
        loss.endswith("]: a loss beyond chance")
    )
    after(24, [R, R, W, W] * 10)
    (gain,) = gains(tmp_path / "run")
    assert gain.startswith("math500: 62.5% to 75.0%") and gain.endswith("]: a gain beyond chance")
    after(25, [R, W, W, R, *[W, W, R, W] * 9])
    assert gains(tmp_path / "run")[0].endswith("]: within chance")
    after(26, [R], suites={"math500": {"sha256": {"math500.jsonl": "1" * 64}}})
    assert "read math500 from different files" in gains(tmp_path / "run")[0]
