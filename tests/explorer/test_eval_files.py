"""Answers of evaluations are read for the pages, of the former schema too, and bad lines are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from azr.explorer.evaluations import read_side
from azr.explorer.record_files import Problem
from azr.tasks.base import Verdict
from tests.evaluation.written import FORMER, answers_to, protocol, write_evaluation, write_former


def test_answers_of_both_schemas_are_shown_alike(tmp_path: Path):
    now = write_evaluation(tmp_path / "now", answers_to("exam", "0", "deduction/short", Verdict.RIGHT, [Verdict.WRONG]))
    former = tmp_path / "former.gz"
    write_former(former, {"protocol": protocol(["exam"])}, FORMER, FORMER | {"sample": 0, "verdict": "wrong"})
    sides = [read_side("a side", path) for path in (now / "answers.jsonl.gz", former)]
    key = ("exam", "0")
    for side in sides:
        assert side.problems == [] and side.share(key) == 0.5
        greedy, sampled = side.whole(key)
        assert (greedy.index, sampled.index, greedy.response_tokens) == (None, 0, 7)
        assert greedy.prompt == "What?" and greedy.response == "It is\u2028so \\ud800."
        assert greedy.judgement.answer == (("answer", "so"),)
        assert not any(each.prompt or each.response or each.judgement.answer for each in side.answers[key])
    assert sides[0].answers == sides[1].answers


def test_lines_that_are_no_answers_are_counted(tmp_path: Path):
    path = tmp_path / "a.gz"
    del (incomplete := dict(FORMER))["tokens"]
    write_former(path, {"protocol": {}}, FORMER, incomplete, {"suite": 3}, {"kind": "exam"})
    side = read_side("a side", path)
    (problem,) = side.problems
    assert list(side.answers) == [("exam", "0")]
    assert problem.startswith(f"{tmp_path.name}/a.gz: 3 of its lines cannot be read, the first because it is no Sample")


def test_a_file_that_changed_meanwhile_is_named(tmp_path: Path):
    path = tmp_path / "a.gz"
    write_former(path, {"protocol": {}}, FORMER)
    side = read_side("a side", path)
    write_former(path, {"protocol": {}}, {"kind": "exam"} | {"x": "y" * 1000})
    with pytest.raises(Problem):
        side.whole(("exam", "0"))
