"""Two evaluations side by side, and what makes them incomparable."""

import shutil
from pathlib import Path

import pytest

from azr.errors import UserError
from azr.evaluation.report import compare, differences_table, gains
from azr.tasks.base import Verdict
from tests.evaluation.written import answers_to, write_evaluation

R, W, U = Verdict.RIGHT, Verdict.WRONG, Verdict.UNGRADED


def evaluation(folder: Path, greedy: list[Verdict], **others: object) -> Path:
    answers = [
        answer
        for index, verdict in enumerate(greedy)
        for answer in answers_to("math500", str(index), "all", verdict, [verdict, R])
    ]
    return write_evaluation(folder, answers, **others)


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


def test_questions_in_other_words_are_named(tmp_path: Path):
    files = {"math500": {"sha256": {"math500.jsonl": "0" * 64}}}
    asked = [{"math500": files["math500"] | {"messages_sha256": words}} for words in ("1", "2")]
    before, after = (evaluation(tmp_path / str(i), [R], suites=each) for i, each in enumerate(asked))
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
    with pytest.raises(UserError, match="There is no evaluation in"):
        compare(folder, tmp_path)


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
