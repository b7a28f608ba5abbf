"""Inputs as people write them: data stays as it is, expressions run once behind the walls, the rest is refused."""

import ast
import asyncio

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from azr import values
from azr.config import ExecutorConfig
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.executor.pool import SandboxPool
from azr.records import Task
from azr.tasks.base import Proposal, RejectReason, Verdict, evaluate_inputs
from azr.tasks.inputs import evaluation_request, read_input
from azr.tasks.prompts import Section
from azr.tasks.registry import KINDS
from tests.tables import table

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = {"source_bytes": 16_384, "induction_inputs": 4, "repeats": 2}
PROGRAM = "STEP = 3\ndef double(n):\n    return 2 * n\ndef f(a, b=STEP, *more, c=0):\n    return a, b, more"
ANY = "def f(*items):\n    return list(items)"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with SandboxPool(ExecutorConfig(workers=2, wall_s=1.0, memory_mb=256)) as pool:
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hasty():
    async with SandboxPool(ExecutorConfig(workers=2, wall_s=0.25, memory_mb=256)) as pool:
        yield pool


async def evaluate(pool: SandboxPool, *texts: str, program: str = ANY, is_answer: bool = False):
    """Inputs as they would be stored, or why there are none."""
    stated = [read_input(text, program, is_answer=is_answer) for text in texts]
    if None in stated:
        return RejectReason.MALFORMED
    return await evaluate_inputs([each for each in stated if each is not None], program, pool.execute, 2)


@pytest.mark.parametrize("text", ["", "1, 'a'", "[1, {'a': (2,)}],", "nan, float('inf')", "-0.0, 1_000", "set(), 1+2j"])
async def test_data_is_read_without_the_program(text):
    assert read_input(text, "no program (") == values.canonical_arguments(values.parse_arguments(text))


@pytest.mark.parametrize("text, stored", table(__file__, "data by name"))
async def test_data_by_name_takes_its_place_without_running_anything(text, stored):
    assert read_input(text, PROGRAM) == read_input(text, PROGRAM, is_answer=True) == stored


@pytest.mark.parametrize("text", [
    *table(__file__, "no inputs"), "1 + " * 200 + "1", "-" * 20_000 + "1", "(" * 20_000, "0x" + "f" * 5_000,
    "[1 + 1, 0x" + "f" * 5_000 + "]", "9" * 5_000 + " + 1", "1 + 1 #" + "x" * 9_000,
])  # fmt: skip
async def test_what_is_no_input_is_refused_before_anything_runs(text):
    assert read_input(text, PROGRAM) is None
    assert read_input(text, PROGRAM, is_answer=True) is None


@given(st.text(alphabet="ab01(),[]{}=:+-*'\"\\ \n.#_%<fx", max_size=40) | st.text(max_size=20))
async def test_no_text_raises_and_what_is_evaluated_is_a_program(text):
    for is_answer in (False, True):
        stated = read_input(text, PROGRAM, is_answer=is_answer)
        if isinstance(stated, tuple):
            request = evaluation_request([stated], PROGRAM, 2)
            *before, entry = ast.parse(request.program).body
            assert isinstance(entry, ast.FunctionDef) and isinstance(before[-1], ast.Assign)
            assert len(before) <= 3 + len(ast.parse(PROGRAM).body)


@pytest.mark.parametrize("text, stored", table(__file__, "constant expressions"))
async def test_constant_expressions_are_stored_as_their_values(pool, text, stored):
    assert await evaluate(pool, text) == (stored,)
    assert await evaluate(pool, text, is_answer=True) == (stored,)


@pytest.mark.parametrize("text, stored", table(__file__, "loops of a proposal"))
async def test_a_proposal_may_loop_and_use_its_program_and_an_answer_may_not(pool, text, stored):
    assert await evaluate(pool, text, program=PROGRAM) == (stored,)
    assert read_input(text, PROGRAM, is_answer=True) is None


async def test_a_default_is_filled_in_only_where_one_behind_it_is_given_and_calls_of_f_are_inputs(pool):
    program = "N = 2\ndef f(a, b=N + 1, c=0):\n    return a, b, c"
    stored = await evaluate(pool, "1, c=2", "c=2, a=1 + 0", "1, b=1 + 1", program=program)
    assert stored == ("1, 3, 2", "1, 3, 2", "1, 2")
    # An answer cannot use the program, and so not this default.
    assert await evaluate(pool, "1, c=2", program=program, is_answer=True) is RejectReason.MALFORMED
    assert read_input("1, c=2", "def f(a, b=5, /, c=0): pass", is_answer=True) == "1, 5, 2"
    assert read_input("a=1", "def f(a, /): pass") is None
    program = "def f(n):\n    return 1 if n < 2 else n * f(n - 1)"
    assert await evaluate(pool, "f(5)", "f(n=3) + f(4)", "7", program=program) == ("120", "30", "7")


async def test_all_inputs_of_a_proposal_are_evaluated_in_one_request(pool):
    requests: list[ExecutionRequest] = []

    async def run(request: ExecutionRequest) -> ExecutionResult:
        requests.append(request)
        return await pool.execute(request)

    texts = ("'a' * 3", "'b'", "x='c'", "'d' + 'd'")
    sections = [*(Section("input", text) for text in texts), Section("message", "letters")]
    reference = KINDS["deduction"].make_task("r", "def f(x):\n    return x", ("1",), ("1",))
    proposal = Proposal(id="t", sections=sections, references=[reference], **LIMITS)
    task = await KINDS["induction"].validate(proposal, run)
    assert isinstance(task, Task)
    assert task.inputs == task.outputs == ("'aaa'", "'b'", "'c'", "'dd'")
    assert [request.inputs for request in requests] == [("",), task.inputs]
    assert all(request.repeats == 2 and request.static_check for request in requests)


@pytest.mark.parametrize("kind", ["deduction", "abduction", "error"])
async def test_a_task_is_the_same_however_its_input_was_written(pool, kind):
    program = "def f(word, times):\n    return word * times"

    async def task(text: str) -> Task | RejectReason:
        sections = (Section("program", program), Section("input", text))
        return await KINDS[kind].validate(Proposal(id="t", sections=sections, **LIMITS), pool.execute)

    plain = await task("'abab', 3")
    assert isinstance(plain, Task)
    for text in ("'ab' * 2, 3", "times=3, word='ab' * 2", "word = 'ab' * 2\ntimes = 3", "'abab', len('abc')"):
        assert await task(text) == plain


async def test_expressions_that_repeat_an_input_are_found_out(pool):
    async def induction(*texts: str, fewest: int | None = None) -> Task | RejectReason:
        sections = [*(Section("input", text) for text in texts), Section("message", "m")]
        bounds = LIMITS | {"source_bytes": 99, "fewest_induction_inputs": fewest}
        proposal = Proposal(id="t", sections=sections, references=[KINDS["deduction"].seed()], **bounds)
        return await KINDS["induction"].validate(proposal, pool.execute)

    texts = ("'aa'", "1", "'a' * 2", "a=1.0", "5")
    assert await induction(*texts) is RejectReason.MALFORMED
    assert await induction(*texts, fewest=3) is RejectReason.MALFORMED
    task = await induction(*texts, fewest=2)
    assert isinstance(task, Task) and task.inputs == ("'aa'", "1")


HOSTILE = {
    "9**9**9": RejectReason.FAILED, "'a' * 10**12": RejectReason.FAILED, "'a' * 10**6": RejectReason.TOO_LARGE,
    "[[0] * 10**3] * 10**3": RejectReason.TOO_LARGE, "10**5000": RejectReason.TOO_LARGE,
    "int('9' * 5000)": RejectReason.FAILED, "sum(range(10**11))": RejectReason.FAILED, "1 / 0": RejectReason.FAILED,
    "range(5)": RejectReason.FAILED, "len, 1": RejectReason.FAILED, "reversed([1])": RejectReason.FAILED,
    "[].append": RejectReason.FAILED, "str([].append)": RejectReason.NON_DETERMINISTIC,
    "str({'a', 'b', 'c', 'd', 'e', 'f', 'g'})": RejectReason.NON_DETERMINISTIC,
    "'{0.__globals__}'.format(len)": RejectReason.NOT_ALLOWED, "'{0.f_back}'.format(1) * 2": RejectReason.NOT_ALLOWED,
    "dict(a=1, a=2)": RejectReason.NOT_ALLOWED,
    "{" + ", ".join(str(n * (2**61 - 1)) for n in range(1, 350)) + ", 1 + 1}": RejectReason.FAILED,
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_expressions_end_in_the_sandbox(pool, hasty, text):
    pool = hasty if text in ("9**9**9", "sum(range(10**11))") else pool  # which run out of time
    is_answer = "append" not in text
    assert await evaluate(pool, text, is_answer=is_answer) is HOSTILE[text]
    # The error kind too, for which an exception of the program would be an answer.
    sections = (Section("program", ANY), Section("input", text))
    outcome = await KINDS["error"].validate(Proposal(id="t", sections=sections, **LIMITS), pool.execute)
    assert outcome is HOSTILE[text]
    task = KINDS["abduction"].make_task("t", ANY, ("1",), ("[1]",))
    verdict = await KINDS["abduction"].grade(task, [Section("input", text)], pool.execute)
    assert verdict is (Verdict.WRONG if is_answer and HOSTILE[text] is RejectReason.FAILED else Verdict.MALFORMED)
    assert await evaluate(pool, "1 + 1") == ("2",)


async def test_a_program_that_returns_something_else_than_inputs_is_refused(pool):
    """Its own call is all that it can lie about, and that in shape must be what was asked for."""
    program = (
        "def f(x):\n    import sys\n    frame = sys._getframe()\n    while 'values' not in frame.f_globals:\n"
        "        frame = frame.f_back\n    frame.f_globals['values']._Writer.write = lambda *a: {lie!r}\n    return 1"
    )

    async def unchecked(request: ExecutionRequest) -> ExecutionResult:
        unscreened = ExecutionRequest(
            program=request.program, inputs=request.inputs, repeats=request.repeats, static_check=False
        )
        return await pool.execute(unscreened)

    for lie in ("41", "[41]", "[(1,), (2,)]", "{}", "[]"):
        lying = program.format(lie=lie)
        stated = read_input("f(1)", lying)
        assert isinstance(stated, tuple)
        assert await evaluate_inputs([stated], lying, unchecked, 2) is RejectReason.MALFORMED
    lying = program.format(lie="[(41,)]")
    assert await evaluate_inputs([read_input("f(1)", lying)], lying, unchecked, 2) == ("41",)


async def test_a_lost_evaluation_is_nobodys_fault():
    async def lost(request: ExecutionRequest) -> ExecutionResult:
        return ExecutionResult(outputs=(CallResult(status=CallStatus.LOST),) * len(request.inputs))

    sections = (Section("program", ANY), Section("input", "1 + 1"))
    for kind in ("deduction", "abduction"):
        outcome = await KINDS[kind].validate(Proposal(id="t", sections=sections, **LIMITS), lost)
        assert outcome is RejectReason.LOST
    task = KINDS["abduction"].make_task("t", ANY, ("2",), ("[2]",))
    assert await KINDS["abduction"].grade(task, [Section("input", "1 + 1")], lost) is Verdict.UNGRADED


async def test_answers_are_graded_by_what_they_come_to(pool):
    task = KINDS["abduction"].make_task("t", "def f(a, b):\n    return a + b", ("'aa', 'b'",), ("'aab'",))
    verdicts = {
        "'a' * 2, 'b'": Verdict.RIGHT, "b='b', a='a' * 2": Verdict.RIGHT, "a = 'aa'\nb = 'b'": Verdict.RIGHT,
        "'a' * 3, 'b'": Verdict.WRONG, "1 / 0, 'b'": Verdict.WRONG, "f('aa', 'b')": Verdict.MALFORMED,
        "[x for x in ('aa',)][0], 'b'": Verdict.MALFORMED, "*('aa', 'b')": Verdict.MALFORMED,
    }  # fmt: skip
    graded = await asyncio.gather(
        *(KINDS["abduction"].grade(task, [Section("input", text)], pool.execute) for text in verdicts)
    )
    assert dict(zip(verdicts, graded, strict=True)) == verdicts
