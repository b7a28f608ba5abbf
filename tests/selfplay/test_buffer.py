import random
from dataclasses import replace

import pytest

from azr.prompts.codec import PromptCodec
from azr.records import Task
from azr.runtime import restore
from azr.selfplay.buffer import TaskBuffer
from azr.tasks.base import RejectReason
from azr.tasks.normalize import fingerprint, held_out_keys
from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import IDENTITY
from tests.conftest import byte_tokenizer


def task(number: int, kind: str = "deduction") -> Task:
    return Task(id=f"{kind}-{number}", kind=kind, program=f"def f(a):\n    return {number}", inputs=("1",),
                outputs=(str(number),), fingerprint=str(number), step=number)  # fmt: skip


def filled(count: int, capacity: int = 100) -> TaskBuffer:
    buffer = TaskBuffer(["deduction", "induction"], capacity)
    for number in range(count):
        buffer.add(task(number))
    return buffer


def test_a_full_buffer_keeps_the_newest():
    assert [t.step for t in filled(10, capacity=4).tasks("deduction")] == [6, 7, 8, 9]


def test_an_equal_task_is_rejected_until_it_is_evicted():
    buffer = filled(2, capacity=2)
    assert buffer.reject_reason(task(0)) is RejectReason.DUPLICATE and buffer.reject_reason(task(2)) is None
    assert buffer.twin(replace(task(0), id="another")) == "deduction-0"
    with pytest.raises(AssertionError):
        buffer.add(task(0))
    buffer.add(task(2))
    assert buffer.reject_reason(task(2)) is RejectReason.DUPLICATE
    assert buffer.reject_reason(task(0)) is None


def test_references_are_drawn_without_replacement():
    drawn = filled(5).references("deduction", 8, random.Random(1))
    assert sorted(t.step for t in drawn) == [0, 1, 2, 3, 4]


def test_induction_draws_one_program_from_the_other_kinds():
    drawn = filled(5).references("induction", 6, random.Random(1))
    assert len(drawn) == 1 and drawn[0].kind == "deduction"


def test_problems_repeat_only_when_there_are_too_few():
    drawn = filled(3).sample_tasks("deduction", 5, {"deduction-0"}, random.Random(1))
    assert {t.step for t in drawn[:2]} == {1, 2} and len(drawn) == 5
    assert all(t.step in (1, 2) for t in drawn)


def test_learnable_tasks_are_drawn_from_the_newest():
    buffer = TaskBuffer(["deduction"], 100)
    for step in range(60):
        buffer.add(replace(task(step), solve_rate=(None, 0.0, 0.5, 1.0, 0.125)[step % 5]))
    drawn = [buffer.sample_learnable("deduction", 4, random.Random(seed)) for seed in range(50)]
    assert all(len({t.step for t in each}) == 4 for each in drawn)
    assert {t.step for each in drawn for t in each} == {step for step in range(20, 60) if step % 5 in (2, 4)}
    assert len(buffer.sample_learnable("deduction", 99, random.Random(0))) == 24
    assert buffer.sample_learnable("deduction", 0, random.Random(0)) == []


QUESTION = "def f(x):\n    y = x[1:] + 'ba'\n    return y * 3"
NEAR = "def f(word):\n    # longer\n    part = word[-2:] + 'kilo'\n    return part * 12"


@pytest.mark.parametrize(
    "question, program, is_near",
    [
        (QUESTION, NEAR, True),
        (QUESTION, NEAR.replace("*", "+"), False),
        (QUESTION, NEAR.replace("word[-2:]", "word[:2]"), False),
        (QUESTION, "def f(x):\n    return (x[1:] + 'ba') * 3", False),
        # Of programs with one statement only equal ones are near.
        ("def f(x):\n    return x + 3", "def f(y):\n    return y + 3", True),
        ("def f(x):\n    return x + 3", "def f(y):\n    return y + 4", False),
    ],
)
def test_what_equals_a_program_of_the_benchmark_up_to_names_and_constants_is_rejected(question, program, is_near):
    buffer = TaskBuffer(["deduction"], 10, dict.fromkeys(held_out_keys(question), "question 7"))
    reason = buffer.reject_reason(replace(task(0), program=program))
    assert reason is (RejectReason.IN_BENCHMARK if is_near else None)


def test_a_program_of_the_benchmark_is_rejected_with_any_input_and_any_names():
    buffer = TaskBuffer(["deduction"], 10, {fingerprint("def f(b):\n    return 7"): "question 7"})
    renamed = replace(task(7), inputs=("'other'",), program='def f(number):\n    """7."""\n    return 7  # seven')
    for held_out in (task(7), renamed):
        assert buffer.reject_reason(held_out) is RejectReason.IN_BENCHMARK and buffer.twin(held_out) == "question 7"
        with pytest.raises(AssertionError):
            buffer.add(held_out)
    assert buffer.reject_reason(task(8)) is None


def test_a_resumed_run_asks_no_task_that_is_held_out_by_now_or_too_long():
    said: list[str] = []
    codec = PromptCodec(byte_tokenizer(), CompactFormat())
    long = replace(task(3), program="def f(a):\n    return " + "a + " * 100 + "a")
    buffer = TaskBuffer(["deduction"], benchmark={key: "question 1" for key in held_out_keys(task(2).program)})
    restore(buffer, [task(1), task(2), long, replace(task(4), program=IDENTITY)], codec, 200, said.append)
    assert [each.id for each in buffer.tasks("deduction")] == ["deduction-1", "deduction-4"]
    assert said == ["2 stored tasks are left out: an evaluation has them, or they are too long"]
