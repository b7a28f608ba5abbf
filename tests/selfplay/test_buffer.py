import random
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest

from azr.config import Replay
from azr.prompts.codec import PromptCodec
from azr.records import Judgement, Sample, Task
from azr.runtime import restore
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.proposer import draw_references
from azr.selfplay.seeds import write_lines
from azr.tasks.base import RejectReason
from azr.tasks.normalize import held_out_keys
from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import IDENTITY
from tests.conftest import byte_tokenizer

CODEC = PromptCodec(byte_tokenizer(), CompactFormat())


def task(number: int, kind: str = "deduction") -> Task:
    return Task(id=f"{kind}-{number}", kind=kind, program=f"def f(a):\n    return {number}", inputs=("1",),
                outputs=(str(number),), fingerprint=str(number), step=number)  # fmt: skip


def filled(count: int, capacity: int = 100) -> TaskBuffer:
    buffer = TaskBuffer(["deduction", "induction"], capacity)
    for number in range(count):
        buffer.add(task(number))
    return buffer


def test_a_full_buffer_keeps_the_newest_and_rejects_an_equal_task_until_it_is_evicted():
    assert [t.step for t in filled(10, capacity=4).tasks("deduction")] == [6, 7, 8, 9]
    buffer = filled(2, capacity=2)
    assert buffer.reject_reason(task(0)) is RejectReason.DUPLICATE and buffer.reject_reason(task(2)) is None
    assert buffer.twin(replace(task(0), id="another")) == "deduction-0"
    with pytest.raises(AssertionError):
        buffer.add(task(0))
    buffer.add(task(2))
    assert buffer.reject_reason(task(2)) is RejectReason.DUPLICATE
    assert buffer.reject_reason(task(0)) is None


def test_references_are_drawn_without_replacement_and_problems_repeat_only_when_there_are_too_few():
    drawn = filled(5).references("deduction", "newest", 1)(8, random.Random(1))
    assert sorted(t.step for t in drawn) == [0, 1, 2, 3, 4]
    pool = filled(5).references("induction", "newest", 1)
    drawn = draw_references("induction", pool, CODEC, 6, random.Random(1))
    assert len(drawn) == 1 and drawn[0].kind == "deduction"
    drawn = filled(3).sample_tasks("deduction", 5, {"deduction-0"}, random.Random(1))
    assert {t.step for t in drawn[:2]} == {1, 2} and len(drawn) == 5
    assert all(t.step in (1, 2) for t in drawn)


def rated() -> TaskBuffer:
    buffer = TaskBuffer(["deduction"], 100)
    for step in range(60):
        buffer.add(replace(task(step), solve_rate=(None, 0.0, 0.5, 1.0, 0.125)[step % 5]))
    return buffer


def drawn_steps(buffer: TaskBuffer, replay: Replay, count: int, step: int = 60, draws: int = 200) -> Counter[int]:
    drawn = [buffer.repeated("deduction", count, replay, step, random.Random(seed)) for seed in range(draws)]
    assert all(len({each.id for each in tasks}) == len(tasks) for tasks in drawn), "without replacement"
    return Counter(each.step for tasks in drawn for each in tasks)


def test_learnable_tasks_are_drawn_from_the_newest_and_up_to_half_from_seeds():
    drawn = drawn_steps(rated(), "newest", 4)
    assert set(drawn) == {step for step in range(20, 60) if step % 5 in (2, 4)} and drawn.total() == 4 * 200
    assert drawn_steps(rated(), "newest", 99, draws=1).total() == 24
    assert not drawn_steps(rated(), "newest", 0)
    buffer = TaskBuffer(["deduction"], 100)
    for number in range(20):
        buffer.add(replace(task(number), step=0 if number < 8 else number, solve_rate=None if number < 8 else 0.5))
    assert drawn_steps(buffer, "newest_and_seeds", 10, draws=100)[0] == 500
    assert drawn_steps(buffer, "newest_and_seeds", 18, draws=100)[0] == 800, "the newest fill the places of seeds"


def answers(id: str, *scores: float) -> list[Sample]:
    judged = [Judgement(verdict="right" if score else "wrong") for score in scores]
    return [
        Sample(role="solver", kind="deduction", problem_id=id, group=f"estimate:1:{id}", judgement=each, accuracy=score)
        for each, score in zip(judged, scores, strict=True)
    ]


def test_a_rate_follows_the_answers_and_fades_with_the_steps():
    buffer = filled(3)
    buffer.note(1, [*answers("deduction-0", 1, 1, 1), *answers("deduction-1", 0), *answers("of another", 1)])
    assert buffer.rate("deduction-0", 1) == 4 / 5 and buffer.rate("deduction-1", 1) == 1 / 3
    assert buffer.rate("deduction-2", 1) == buffer.rate("of another", 1) == 1 / 2
    known = [id for id in ("deduction-0", "deduction-2", "of another") if buffer.is_answered(id)]
    assert known == ["deduction-0"]
    assert buffer.rate("deduction-0", 3) == pytest.approx((1 + 3 * 0.81) / (2 + 3 * 0.81))
    buffer.note(3, answers("deduction-0", 0))
    assert buffer.rate("deduction-0", 3) == pytest.approx((1 + 3 * 0.81) / (3 + 3 * 0.81))


def test_shapes_of_stored_programs_are_counted():
    buffer = filled(5, capacity=3)
    assert buffer.times_seen(task(9)) == 3 and buffer.num_shapes() == {"deduction": 1, "induction": 0}
    other = replace(task(7), program="def f(word):\n    return word + 'x'")
    assert buffer.times_seen(other) == 0 and buffer.times_seen(task(9, "induction")) == 0
    for number in range(3):
        buffer.add(replace(other, fingerprint=f"other {number}"))
    assert buffer.times_seen(replace(other, program="def f(a):\n    return a + 3")) == 3
    assert buffer.times_seen(task(9)) == 0 and buffer.num_shapes()["deduction"] == 1

    # An evicted task leaves no rate.
    buffer = filled(2, capacity=2)
    buffer.note(1, answers("deduction-0", 1))
    buffer.add(task(2))
    buffer.note(2, [])
    assert not buffer.is_answered("deduction-0")


def test_a_checkpoint_holds_the_rates_of_its_step_although_the_next_one_has_been_played(tmp_path):
    buffer = filled(3)
    for step, scores in enumerate([(1, 1, 0), (0,), (1,)], 1):
        buffer.note(step, answers("deduction-1", *scores))
        buffer.recorded(step - 1)
    buffer.write_rates(tmp_path, 2)
    read = filled(3)
    read.read_rates(tmp_path, 2)
    assert read.rate("deduction-1", 2) == (1 + 2 * 0.9) / (3 + 3 * 0.9)
    read.note(3, answers("deduction-1", 1))
    assert read.rate("deduction-1", 4) == buffer.rate("deduction-1", 4)
    fresh = filled(3)
    fresh.read_rates(tmp_path / "of an earlier version", 2)
    assert fresh.rate("deduction-1", 3) == 1 / 2


def test_replay_by_learnability_draws_all_stored_tasks_in_proportion_to_their_weights():
    buffer = filled(4)
    scores = {1: (1,) * 9, 2: (0,) * 9, 3: (1, 0)}
    buffer.note(60, [each for number, some in scores.items() for each in answers(f"deduction-{number}", *some)])
    drawn = drawn_steps(buffer, "learnability", 1, draws=10_000)
    weights = [1 / 4, 10 / 121, 10 / 121, 1 / 4]
    for number, weight in enumerate(weights):
        assert drawn[number] / 10_000 == pytest.approx(weight / sum(weights), abs=0.015)
    assert drawn_steps(buffer, "learnability", 9, draws=5) == Counter(dict.fromkeys(range(4), 5))
    shown = Counter(
        each.step
        for seed in range(4_000)
        for each in buffer.references("deduction", "learnability", 60)(1, random.Random(seed))
    )
    assert shown[1] / 4_000 == pytest.approx(weights[1] / sum(weights), abs=0.02)
    assert not drawn_steps(TaskBuffer(["deduction"]), "learnability", 3)


QUESTION = "def f(x):\n    y = x[1:] + 'ba'\n    return y * 3"
NEAR = "def f(word):\n    # longer\n    part = word[-2:] + 'kilo'\n    return part * 12"


@pytest.mark.parametrize("question, program, is_near", [
    (QUESTION, NEAR, True), (QUESTION, NEAR.replace("*", "+"), False),
    (QUESTION, NEAR.replace("word[-2:]", "word[:2]"), False),
    (QUESTION, "def f(x):\n    return (x[1:] + 'ba') * 3", False),
    ("def f(x):\n    return x + 3", "def f(y):\n    return y + 3", True),  # of programs with one statement only equal
    ("def f(x):\n    return x + 3", "def f(y):\n    return y + 4", False),  # ones are near
    ("def f(b):\n    return 7", 'def f(number):\n    """7."""\n    return 7  # seven', True),
])  # fmt: skip
def test_what_equals_a_program_of_the_benchmark_up_to_names_and_constants_is_rejected(question, program, is_near):
    buffer = TaskBuffer(["deduction"], 10, dict.fromkeys(held_out_keys(question), "question 7"))
    asked = replace(task(0), program=program, inputs=("'other'",))
    assert buffer.reject_reason(asked) is (RejectReason.IN_BENCHMARK if is_near else None)
    if is_near:
        assert buffer.twin(asked) == "question 7"
    with pytest.raises(AssertionError) if is_near else nullcontext():
        buffer.add(asked)


@pytest.mark.parametrize("stored", [100, 1000])
def test_a_resumed_run_reads_no_more_of_its_tasks_than_it_keeps(stored, tmp_path, monkeypatch):
    path, looked, buffer = tmp_path / "tasks.jsonl", [], TaskBuffer(["deduction", "abduction"], 10)
    write_lines(path, [replace(task(n), kind=kind).record() for n in range(stored) for kind in buffer.sizes()])
    monkeypatch.setattr(buffer, "reject_reason", looked.append)
    restore(buffer, path, CODEC, 200, print)
    assert len(looked) == 20
    for kind in buffer.sizes():
        assert [each.id for each in buffer.tasks(kind)] == [f"deduction-{n}" for n in range(stored - 10, stored)]


def test_a_resumed_run_asks_no_task_that_is_held_out_by_now_or_too_long(tmp_path):
    path, said = tmp_path / "tasks.jsonl", []
    long = replace(task(3), program="def f(a):\n    return " + "a + " * 100 + "a")
    buffer = TaskBuffer(["deduction"], benchmark={key: "question 1" for key in held_out_keys(task(2).program)})
    asked = [task(1), task(2), long, replace(task(4), program=IDENTITY)]
    write_lines(path, [each.record() for each in asked])
    restore(buffer, path, CODEC, 200, said.append)
    assert [each.id for each in buffer.tasks("deduction")] == ["deduction-1", "deduction-4"]
    assert said == ["2 stored tasks are left out: an evaluation has them, or they are too long"]
