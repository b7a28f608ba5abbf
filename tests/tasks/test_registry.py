"""Tasks that the known pairs of a task's program make for free."""

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from azr.records import Task
from azr.tasks.registry import derived_tasks

KINDS = ("deduction", "abduction", "induction", "error")
PAIRS = (("1", "2"), ("2", "3"), ("3", "4"), ("4", "5"))
INDUCTION = Task(
    id="t",
    kind="induction",
    program="def f(a):\n    return a + 1",
    inputs=tuple(given for given, _ in PAIRS),
    outputs=tuple(returned for _, returned in PAIRS),
    fingerprint="x",
    message="adds",
    solve_rate=0.5,
)
DEDUCTION = replace(INDUCTION, kind="deduction", inputs=("1",), outputs=("2",), message="")


def derive(task: Task, most: int = 9, kinds: tuple[str, ...] = KINDS) -> list[Task]:
    return asyncio.run(derived_tasks(task, kinds, most, random.Random(1)))


def test_the_pairs_of_an_induction_are_deductions_and_abductions() -> None:
    derived = derive(INDUCTION)
    assert Counter(task.kind for task in derived) == {"deduction": 4, "abduction": 4}
    for kind in ("deduction", "abduction"):
        posed = {(*task.inputs, *task.outputs) for task in derived if task.kind == kind}
        assert posed == set(PAIRS)
    for task in derived:
        assert task.program == INDUCTION.program and task.parents == ("t",) and task.solve_rate is None
        assert task.message == ""
    assert len({task.id for task in (*derived, INDUCTION)}) == len(derived) + 1


def test_no_more_of_a_kind_than_asked_for() -> None:
    assert Counter(task.kind for task in derive(INDUCTION, 2)) == {"deduction": 2, "abduction": 2}
    assert not derive(INDUCTION, 0)


def test_a_deduction_is_an_abduction_and_the_other_way_round() -> None:
    (derived,) = derive(DEDUCTION)
    assert (derived.kind, derived.program, derived.inputs) == ("abduction", DEDUCTION.program, ("1",))
    (back,) = derive(derived)
    assert (back.kind, back.inputs, back.outputs) == ("deduction", ("1",), ("2",))


@pytest.mark.parametrize("task", [INDUCTION, DEDUCTION])
def test_kinds_that_are_not_played_are_not_posed(task: Task) -> None:
    assert not derive(task, kinds=("error",))


def test_the_name_of_an_exception_is_no_value() -> None:
    assert not derive(replace(DEDUCTION, kind="error", outputs=("ValueError",)))
