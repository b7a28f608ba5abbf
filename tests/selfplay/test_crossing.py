"""Tasks of other kinds made of what a task's program has shown."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from azr.records import Task
from azr.selfplay.crossing import crossings

KINDS = ("deduction", "abduction", "induction")
INDUCTION = Task(
    id="t",
    kind="induction",
    program="def f(a):\n    return a + 1",
    inputs=("1", "2", "3"),
    outputs=("2", "3", "4"),
    fingerprint="x",
    message="adds",
    solve_rate=0.5,
)
DEDUCTION = replace(INDUCTION, kind="deduction", inputs=("1",), outputs=("2",), message="")


def test_the_pairs_of_an_induction_are_deductions_and_abductions() -> None:
    found = crossings(INDUCTION, KINDS, 2, random.Random(1))
    assert [task.kind for task in found] == ["deduction", "abduction"] * 2
    assert len({task.id for task in found}) == 4 and all(task.parents == ("t",) for task in found)
    assert {(*task.inputs, *task.outputs) for task in found} < {("1", "2"), ("2", "3"), ("3", "4")}
    assert all(task.message == "" and task.solve_rate is None for task in found)


def test_a_deduction_is_an_abduction_and_the_other_way_round() -> None:
    (found,) = crossings(DEDUCTION, KINDS, 5, random.Random(1))
    assert (found.kind, found.program, found.inputs) == ("abduction", DEDUCTION.program, ("1",))
    (back,) = crossings(found, KINDS, 1, random.Random(1))
    assert back.kind == "deduction"


@pytest.mark.parametrize("task", [INDUCTION, DEDUCTION])
def test_kinds_that_are_not_played_and_a_count_of_none_give_nothing(task: Task) -> None:
    assert not crossings(task, KINDS, 0, random.Random(1))
    assert not crossings(task, ("induction",), 3, random.Random(1))


def test_the_name_of_an_exception_is_no_value() -> None:
    assert not crossings(replace(DEDUCTION, kind="error", outputs=("ValueError",)), KINDS, 1, random.Random(1))
