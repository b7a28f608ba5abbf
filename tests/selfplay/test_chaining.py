"""Which stored tasks are chained, and which chains become tasks."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from azr.config import Config, SelfPlayConfig
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.records import Sample, Task
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.chaining import BAND, ENOUGH, FIRST_LINES, MOST_MOVED, bounds_after, chain_tasks
from azr.tasks.normalize import held_out_keys
from azr.tasks.registry import KINDS
from tests.selfplay.test_play import CODEC

CONFIG = Config(selfplay=SelfPlayConfig(kinds=("deduction", "induction"), chained_tasks=8, induction_inputs=2))


async def execute(request: ExecutionRequest) -> ExecutionResult:
    """Run programs of this file."""
    names: dict = {}
    calls = []
    exec(request.program, names)
    for given in request.inputs:
        try:
            calls.append(CallResult(status=CallStatus.OK, value=repr(names["f"](*eval(f"({given},)")))))
        except TypeError:
            calls.append(CallResult(status=CallStatus.RAISED, error="TypeError"))
    return ExecutionResult(outputs=tuple(calls), deterministic=True)


def stored(number: int, expression: str, given: str, output: str, kind: str = "deduction") -> Task:
    program = f"def f(a):\n    return {expression}"
    return KINDS[kind].make_task(f"{number}", program, (given,), (output,))


def buffer_of(*tasks: Task, rates: dict[str, float], **options: object) -> TaskBuffer:
    buffer = TaskBuffer(CONFIG.selfplay.kinds, **options)  # type: ignore[arg-type]
    for task in tasks:
        buffer.add(task)
    scores = [(id, float(index < 10 * rate)) for id, rate in rates.items() for index in range(10)]
    buffer.note(1, [Sample(role="solver", kind="", problem_id=id, group="", accuracy=score) for id, score in scores])
    return buffer


async def chained(buffer: TaskBuffer, taken: tuple[str, ...] = (), kind: str = "deduction") -> SimpleNamespace:
    parts = {"config": CONFIG, "codec": CODEC, "execute": execute, "name": "000002", "step": 2}
    tasks, numbers = await chain_tasks(kind, buffer, taken, **parts)  # type: ignore[arg-type]
    return SimpleNamespace(tasks=tasks, numbers=numbers)


ADD, DOUBLE = stored(1, "a + 1", "1", "2"), stored(2, "a * 2", "4", "8")
BOTH = {"def f(a):\n    a = a + 1\n    return a * 2", "def f(a):\n    a = a * 2\n    return a + 1"}


@pytest.mark.parametrize("rates", [{"1": 0.3, "2": 0.9}, {"1": 0.9}, {}])
async def test_neither_hard_pairs_nor_tasks_of_unknown_rate_are_chained(rates: dict[str, float]) -> None:
    assert (await chained(buffer_of(ADD, DOUBLE, rates=rates))).numbers["tried"] == 0


async def test_known_raising_and_held_out_chains_and_those_without_a_first_half_are_no_tasks() -> None:
    rates = {"1": 0.8, "2": 0.9}
    first, second = sorted((await chained(buffer_of(ADD, DOUBLE, rates=rates))).tasks, key=lambda task: task.program)
    held_out = {key: "question 1" for key in held_out_keys(first.program)}
    made = await chained(buffer_of(ADD, DOUBLE, rates=rates, benchmark=held_out))
    assert [task.program for task in made.tasks] == [second.program]
    known = buffer_of(ADD, DOUBLE, replace(second, id="known"), rates=rates)
    assert [task.program for task in (await chained(known)).tasks] == [first.program]
    made = await chained(buffer_of(ADD, DOUBLE, rates=rates), (first.fingerprint,))
    assert [task.program for task in made.tasks] == [second.program]
    raising = stored(2, "a + ['x']", "['y']", "['y', 'x']")
    assert not (await chained(buffer_of(ADD, raising, rates=rates))).tasks
    constant = stored(2, "len([a]) + 4", "4", "5")
    made = await chained(buffer_of(ADD, constant, rates=rates))
    assert [task.program for task in made.tasks] == ["def f(a):\n    a = len([a]) + 4\n    return a + 1"]


async def test_pairs_within_the_band_are_chained_each_once_inductions_too() -> None:
    made = await chained(buffer_of(ADD, DOUBLE, rates={"1": 0.8, "2": 0.9}))
    assert {task.program for task in made.tasks} == BOTH and made.numbers["made"] == 2
    assert {task.outputs for task in made.tasks} == {("4",), ("9",)}
    assert made.numbers["predicted"] == pytest.approx(0.75 * 10 / 12, abs=0.06)
    again = await chained(buffer_of(ADD, DOUBLE, rates={"1": 0.8, "2": 0.9}))
    assert again == made
    inputs, kind = ("1", "2"), KINDS["induction"]
    add = kind.make_task("1", ADD.program, inputs, ("2", "3"), message="one more")
    double = kind.make_task("2", DOUBLE.program, inputs, ("2", "4"), message="twice")
    made = await chained(buffer_of(add, double, rates={"1": 0.8, "2": 0.9}), kind="induction")
    assert {task.program for task in made.tasks} == BOTH
    assert {(task.message, task.outputs) for task in made.tasks} == {
        ("one more Then: twice", ("4", "6")), ("twice Then: one more", ("3", "5")),
    }  # fmt: skip


def of_rate(rate: float, step: int, lines: int = 2) -> Task:
    program = "def f(a):\n" + "    a = a + 1\n" * (lines - 1) + "    return a"
    task = KINDS["deduction"].make_task(f"{step:06d}-deduction-chain-0000", program, ("1",), ("2",), step=step)
    return replace(task, solve_rate=rate)


def test_the_band_moves_against_the_measured_rates() -> None:
    start = bounds_after([ADD])
    assert start == (*BAND, FIRST_LINES)
    hard, easy = (bounds_after([of_rate(rate, step) for step in range(1, 4)]) for rate in (0.2, 0.9))
    assert hard[0] == pytest.approx(BAND[0] + 3 * 0.2 * 0.3) and easy[0] == pytest.approx(BAND[0] - 3 * 0.2 * 0.4)
    two = bounds_after([of_rate(0.0, 1), of_rate(1.0, 1)])
    assert two[0] == BAND[0], "the mean of a step counts"
    assert bounds_after([of_rate(0.0, step) for step in range(99)])[0] == pytest.approx(BAND[0] + MOST_MOVED)
    assert bounds_after([replace(of_rate(0.0, 1), id="000001-deduction-0000")])[0] == BAND[0]


async def test_programs_grow_only_while_the_longest_are_solved_and_chains_to_no_more_lines() -> None:
    longest = [of_rate(0.5, step, FIRST_LINES) for step in range(ENOUGH)]
    assert bounds_after(longest[1:])[2] == FIRST_LINES
    assert bounds_after(longest)[2] == FIRST_LINES + 1
    assert bounds_after([*longest, *(of_rate(0.1, step, FIRST_LINES) for step in range(ENOUGH))])[2] == FIRST_LINES
    deeper = [of_rate(0.31, step, FIRST_LINES + 1) for step in range(ENOUGH)]
    assert bounds_after([*longest, *deeper])[2] == FIRST_LINES + 2
    longer = of_rate(0.9, 1, FIRST_LINES)
    assert (await chained(buffer_of(ADD, longer, rates={"1": 0.9, longer.id: 0.9}))).numbers["tried"] == 0
