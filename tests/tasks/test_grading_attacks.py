"""Attempts to be graded right without being right: responses as text, through the real kinds and real sandboxes.

Induction runs a solver's program, so each attack is tried twice: as it is graded, and with the static check off, when
isolation and grading must hold alone.
"""

import asyncio
import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from azr.config import ExecutorConfig
from azr.execution import ExecutionRequest, ExecutionResult
from azr.executor.pool import SandboxPool
from azr.records import Task
from azr.tasks.base import Proposal, RejectReason, Verdict
from azr.tasks.prompts import ChatFormat, Section
from azr.tasks.registry import KINDS
from tests import tables
from tests.executor.conftest import execute_many, sandboxes, usable_backends

pytestmark = pytest.mark.asyncio(loop_scope="module")

STYLE = ChatFormat(str)
LIMITS = {"source_bytes": 16_384, "induction_inputs": 6, "repeats": 2}
NOT_RIGHT = (Verdict.WRONG, Verdict.MALFORMED)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with SandboxPool(ExecutorConfig(workers=2, wall_s=2.0, memory_mb=256)) as pool:
        yield pool


def answer(fence: str, text: str) -> str:
    return f"thinking</think>\n<answer>\n```{fence}\n{text}\n```\n</answer>"


async def propose(pool: SandboxPool, kind: str, *sections: Section, references: tuple[Task, ...] = ()) -> object:
    """What becomes of a proposal, from the response's text to the task."""
    parsed = STYLE.parse(STYLE.response(sections))
    proposal = Proposal(id="t", sections=parsed, references=references, step=1, **LIMITS)
    return await KINDS[kind].validate(proposal, pool.execute)


async def task_of(pool: SandboxPool, kind: str, program: str, given: str) -> Task:
    task = await propose(pool, kind, Section("program", program), Section("input", given))
    assert isinstance(task, Task), task
    return task


async def grade(pool: SandboxPool, task: Task, response: str, *, static_check: bool | None = None) -> Verdict:
    """The verdict on a response's text, the way the solver's answers are graded."""
    sections = STYLE.parse(response)
    if sections is None:
        return Verdict.MALFORMED

    async def run(request: ExecutionRequest) -> ExecutionResult:
        return await pool.execute(request if static_check is None else replace(request, static_check=static_check))

    return await KINDS[task.kind].grade(task, sections, run)


PROGRAMS = Path(__file__).with_name("attacks.txt")
ANSWERS = {
    **dict(tables.values(PROGRAMS, "answers")),
    "long literal": "'" + "a" * 10_000_000 + "'",
    "long number": "9" * 10_000_000,
    "long list": "[" + "1," * 5_000_000 + "]",
    "deep": "[" * 10_000 + "]" * 10_000,
    "deep and open": "(" * 10_000,
    "many signs": "-" * 10_000 + "41",
    "hash collisions": "{" + ", ".join(str(n * (2**61 - 1)) for n in range(10_000)) + "}",
}


OTHER_SPELLINGS = ("arithmetic", "conversion", "keyword argument", "subscript")
"""Of the answers above, those that are inputs as people write them, and right as such: an input may be computed."""


@pytest.mark.parametrize("kind", ["deduction", "abduction", "error"])
async def test_no_answer_but_the_right_value_is_right(pool, kind):
    """All three tasks have 41 for an answer, except that the last wants its exception's name."""
    program = "def f(x):\n    if x != 41: raise KeyError(x)\n    return 41"
    task = await task_of(pool, kind, program, "0" if kind == "error" else "41")
    fence = "input" if kind == "abduction" else "output"
    for name, text in ANSWERS.items():
        graded = await grade(pool, task, answer(fence, text))
        is_right = kind == "abduction" and name in OTHER_SPELLINGS
        assert graded is Verdict.RIGHT if is_right else graded in NOT_RIGHT, name
        assert await grade(pool, task, answer(fence, "KeyError" if kind == "error" else "41")) is Verdict.RIGHT, name


async def test_other_spellings_of_the_right_value_are_right(pool):
    for kind, fence in (("deduction", "output"), ("abduction", "input")):
        task = await task_of(pool, kind, "def f(x): return x", "41")
        for text in ("41", " 41 ", "+41", "41.0", "0x29", "(41)", "4_1", "41 # I think", "41\n"):
            assert await grade(pool, task, answer(fence, text)) is Verdict.RIGHT, text


async def test_arguments_never_run_and_never_reach_past_their_call(pool):
    """Abduction hands the answer to a program that takes and shows every argument."""
    program = "def f(x, *more, **named): return [x, more, named]"
    task = await task_of(pool, "abduction", program, "1")
    for text in ("1, y=2", "*(1,)", "1, **{'y': 2}", "(y := 1)", "1), print(1), (1", "1 # )"):
        verdict = await grade(pool, task, answer("input", text))
        assert verdict is (Verdict.RIGHT if text.startswith("1 #") else Verdict.MALFORMED)
    assert await grade(pool, task, answer("input", "1, 2")) is Verdict.WRONG


LIARS = tables.programs(PROGRAMS, "not plain data")
"""Of each way not to be plain data one; the executor's hostile catalogue has all (`LIES`, `OUTPUT`)."""


async def test_what_is_not_plain_data_is_neither_a_task_nor_an_answer(pool):
    task = await hidden(pool)
    for name, program in LIARS.items():
        for kind in ("deduction", "abduction"):
            outcome = await propose(pool, kind, Section("program", program), Section("input", "41"))
            assert outcome in (RejectReason.FAILED, RejectReason.TOO_LARGE), (name, outcome)
        for static_check in (None, False):
            graded = await grade(pool, task, answer("python", program), static_check=static_check)
            assert graded is Verdict.WRONG, name


SECRET = "def f(x):\n    return (x * 7919 + 104729) % 1000003"


async def hidden(pool: SandboxPool) -> Task:
    """An induction task whose hidden outputs cannot be guessed."""
    inputs = [Section("input", str(n)) for n in range(11, 17)]
    reference = await task_of(pool, "deduction", SECRET, "1")
    task = await propose(pool, "induction", *inputs, Section("message", "a hint"), references=(reference,))
    assert isinstance(task, Task)
    return task


SEARCH, FROM_FRAMES = (f"{text}\n" for text in tables.programs(PROGRAMS, "looks around").values())
CHEATS = tables.programs(PROGRAMS, "cheats")


@pytest.mark.parametrize("static_check", [None, False], ids=["as graded", "walls alone"])
async def test_no_program_but_the_right_one_is_right(pool, static_check):
    task = await hidden(pool)
    shown = dict(zip(map(int, task.inputs[:3]), map(int, task.outputs[:3]), strict=True))
    for name, cheat in CHEATS.items():
        program = cheat.replace("{shown}", str(shown)).replace("{search}", SEARCH).replace("{judge}", FROM_FRAMES)
        assert await grade(pool, task, answer("python", program), static_check=static_check) in NOT_RIGHT, name
        assert await grade(pool, task, answer("python", SECRET)) is Verdict.RIGHT, name


async def test_the_search_of_memory_finds_what_is_there(pool):
    """It finds the text of the call's own input, so it looks everywhere; that of a later one is not there."""
    program = f"""{SEARCH}
def f(x):
    own, later = repr(x), repr(x.upper())
    known = (own, later, x, x.upper())
    texts = [thing for thing in everything() if type(thing) is str and thing in (own, later)]
    texts = [thing for thing in texts if not any(thing is one for one in known)]
    return [own in texts, later in texts]
"""
    request = ExecutionRequest(program=program, inputs=("'needle'", "'hay'", "'NEEDLE'"), static_check=False)
    values = [output.value for output in (await pool.execute(request)).outputs]
    assert values[:2] == ["[True, False]"] * 2


async def test_a_patched_judge_claims_a_value_for_its_own_call_and_nothing_else(pool):
    claim = FROM_FRAMES + "def f(x):\n    the_judge()._Writer.write = lambda *a: '41'\n    return x"
    request = ExecutionRequest(program=claim, inputs=("1",), static_check=False)
    honest = ExecutionRequest(program="def f(x): return x", inputs=("1", "2"))
    claimed, unmoved = await execute_many(pool, [request, honest])
    assert claimed.outputs[0].value == "41"
    assert [output.value for output in unmoved.outputs] == ["1", "2"]


async def test_an_exception_cannot_be_named_like_no_exception(pool):
    program = "class NoError(Exception): pass\ndef f(x):\n    raise NoError"
    outcome = await propose(pool, "error", Section("program", program), Section("input", "1"))
    assert outcome is RejectReason.NOT_ALLOWED
    task = await task_of(pool, "error", program.replace("raise NoError", "return x"), "1")
    assert task.outputs == ("NoError",)


async def test_bugs_2_7_and_8_long_and_unordered_outputs_are_compared_as_values_and_never_evaluated(pool):
    whole, cut = str(list(range(300))), f"{list(range(100))}..."
    for kind, program, given, verdicts in (
        ("deduction", "def f(n): return list(range(n))", "300", {whole: "right", cut: "malformed"}),
        ("deduction", "def f(x): return '5'", "1", {"5.0": "wrong", "'5.0'": "wrong"}),
        ("deduction", "def f(x): return '2'", "1", {"'1+1'": "wrong", "1+1": "malformed"}),
        ("deduction", "def f(x): return {'a': {2, 1}, 'b': 0}", "1", {"{'b': 0, 'a': {1, 2}}": "right"}),
        ("abduction", "def f(a, b): return a + b", "[1], [2]", {"[\n  1,\n],\n[2]\n": "right"}),
    ):
        task = await task_of(pool, kind, program, given)
        fence = "output" if kind == "deduction" else "input"
        graded = {text: await grade(pool, task, answer(fence, text)) for text in verdicts}
        assert graded == {text: Verdict(verdict) for text, verdict in verdicts.items()}


async def test_bug_19_no_hidden_pair_is_shown(pool):
    reference = await task_of(pool, "deduction", SECRET, "1")
    for twin in ("11", " 11 ", "11.0", "0xb", "(11)", "+11"):
        inputs = [Section("input", text) for text in ("11", "12", "13", "14", "15", twin)]
        proposal = await propose(pool, "induction", *inputs, Section("message", "m"), references=(reference,))
        assert proposal is RejectReason.MALFORMED, twin
    task = await hidden(pool)
    assert not set(task.inputs[3:]) & {section.text for section in KINDS["induction"].solver_view(task)}


async def test_bug_19_equal_inputs_of_other_types_or_order_count_as_one(pool):
    given = ["True", "2", "{'a': 1, 'b': 2}", "1", "3", "4"], ["nan", "1", "2", "3", "4", "float('nan')"]
    identity = KINDS["deduction"].seed()

    async def outcome(texts) -> Task | RejectReason:
        sections = [*(Section("input", text) for text in texts), Section("message", "m")]
        return await propose(pool, "induction", *sections, references=(identity,))

    for texts in (*given, ["{'b': 2, 'a': 1}", *given[0][1:3], "5", "6", "7"]):
        assert await outcome(texts) is RejectReason.MALFORMED
    assert isinstance(await outcome(("'1'", "1", "(1,)", "[1]", "b'1'", "(1, 1)")), Task)


async def test_a_lost_executor_is_ungraded_whatever_the_answer():
    """Every sandbox is killed again and again while a right and a wrong answer are being graded."""
    backend = next(name for name in usable_backends() if name != "docker")
    async with SandboxPool(ExecutorConfig(backend=backend, workers=2, wall_s=10.0, memory_mb=256)) as pool:
        program = "def f(x):\n    n = 0\n    for _ in range(20_000_000): n += 1\n    return x"
        task = KINDS["abduction"].seed()
        task = replace(task, program=program, inputs=("1",), outputs=("1",))
        grading = [asyncio.create_task(grade(pool, task, answer("input", text))) for text in ("1", "2")]
        while not all(each.done() for each in grading):
            await asyncio.sleep(0.1)
            connections = [slot.connection for slot in pool._scheduler.slots]
            # Parents first: a zygote that outlives its program reports a crash.
            for process in sorted(sandboxes({each._sandbox._process.pid for each in connections if each is not None})):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        assert [each.result() for each in grading] == [Verdict.UNGRADED, Verdict.UNGRADED]
        assert await grade(pool, KINDS["abduction"].seed(), answer("input", "'Hello world'")) is Verdict.RIGHT
