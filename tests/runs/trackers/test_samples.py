from __future__ import annotations

from dataclasses import replace

from azr.records import Role
from azr.runs.trackers import CHARACTERS, ROLLOUT_COLUMNS, TASKS, cut, is_due, sample_tables
from tests.runs.factory import sample
from tests.runs.trackers.factory import TASK


def test_a_sample_is_the_best_and_the_worst_of_each_player_and_some_tasks() -> None:
    samples = [sample(role, reward=reward) for role in Role for reward in (0.5, -1.0, 1.0, None)]
    samples.append(sample(Role.SOLVER, "error", verdict="right"))
    for each in samples:
        each.prompt = each.response = "x" * 9000
    kinds = ["deduction"] * 20 + ["induction"] * 20
    tasks = [replace(TASK, id=str(number), kind=kind) for number, kind in enumerate(kinds)]
    tables = sample_tables(3, samples, tasks)
    rows = [dict(zip(ROLLOUT_COLUMNS, row, strict=True)) for row in tables["rollouts"].rows]
    assert [(row["kind"], row["role"], row["reward"]) for row in rows] == [
        ("deduction", "proposer", 1.0), ("deduction", "proposer", -1.0),
        ("deduction", "solver", 1.0), ("deduction", "solver", -1.0), ("error", "solver", 1.0),
    ]  # fmt: skip
    assert [row["outcome"] for row in rows] == [None] * 4 + ["right"]
    assert {row["step"] for row in rows} == {3} and all(len(str(row["prompt"])) < CHARACTERS + 50 for row in rows)
    assert len(tables["tasks"].rows) == TASKS and {row[1] for row in tables["tasks"].rows} == {"deduction", "induction"}


def test_a_step_without_anything_has_no_tables() -> None:
    assert sample_tables(1, [], []) == {}


def test_a_long_text_loses_its_middle() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 4) == "ab\n[… 3 characters …]\nfg"


def test_samples_are_taken_at_the_beginning_and_then_now_and_then() -> None:
    assert [step for step in range(0, 31) if is_due(step) and step] == [1, 10, 20, 30]
