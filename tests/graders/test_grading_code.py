import asyncio
import json
import sys
import time
from pathlib import Path

import pytest

from azr.config import ExecutorConfig
from azr.evaluation.suites import SUITES
from azr.evaluation.suites.own import gold
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.executor.pool import SandboxPool
from azr.graders import make_grader
from azr.graders.plain_json import Opaque, decode, encode
from azr.graders.programs import Calls, ProgramGrader, Tests, _failure, same_output
from azr.graders.question import TASK, Question
from azr.graders.sandboxed import Ran, answer_pool, call_program, calls, case_text
from azr.graders.stated_values import ProgramValue
from azr.graders.value import ValueGrader
from azr.tasks.base import Verdict
from azr.tasks.prompts import ChatFormat, CompactFormat
from azr.tasks.registry import KINDS
from benchmarks import evalplus_agreement
from tests import tables
from tests.executor.hostile.forgery import FORGERY, PEEKING
from tests.executor.hostile.world import World
from tests.graders.grading import fenced, grade_all, questions, reference

pytestmark = pytest.mark.asyncio(loop_scope="session")
CODE_SUITES = {"cruxeval-i": 8, "cruxeval-o": 1, "humaneval": 6, "mbpp+": 15}
"""Of the short test every so many questions."""
KNOWN = {"cruxeval-i": {"sample_621": "needs the Shift JIS codec, which no sandbox has"}}
"""Reference answers that are not right here, and why."""
SLOW = {"Mbpp/255": "its reference computes for seconds and returns tens of megabytes on some inputs"}
"""Left out of the short test."""
_READ = "input()\ntotal = sum(map(int, input().split()))"


def programs(use: str) -> dict[str, str]:
    """Programs of `programs.txt` by name."""
    named = tables.programs(Path(__file__).with_name("programs.txt"), use)
    return {name: one.replace("{work}", "{read}\nprint(total)").replace("{read}", _READ) for name, one in named.items()}


NORMAL_PROGRAMS, STDIN_PROGRAMS, FAILING, HARNESSED = map(programs, ("calls", "stdin", "fails", "harness"))


def question(wanted: object) -> Question:
    return Question(id="q", suite="s", group="all", message="?", gold=wanted)


def function(expected: object, *arguments: object, entry: str = "f", **more: object) -> Question:
    called = Calls(entry=entry, cases={"base": (case_text(arguments),)}, expected={"base": (expected,)}, **more)
    return question(called)


async def verdict_on(answers: SandboxPool, asked: Question, program: str) -> Verdict:
    return (await ProgramGrader(answers.execute).grade(asked, fenced(program))).verdict


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", CODE_SUITES)
async def test_references_are_right_and_empty_answers_are_not(answers, name, whole):
    rows = [each for each in questions(name, 1 if whole else CODE_SUITES[name]) if whole or each.id not in SLOW]
    known = KNOWN.get(name, {})
    async with make_grader(SUITES[name].grader, answers) as grader:
        right = await grade_all(grader, ((row, reference(row)) for row in rows))
        empty = await grade_all(grader, ((row, "") for row in rows))
        prose = await grade_all(grader, ((row, fenced("pass")) for row in rows[:5]))
    wrong = {row.id for row, said in zip(rows, right, strict=True) if said.verdict is not Verdict.RIGHT}
    assert wrong == {row.id for row in rows} & known.keys()
    assert {said.verdict for said in empty} == {Verdict.MALFORMED}
    assert Verdict.RIGHT not in {said.verdict for said in prose}


async def test_chosen_hashes_do_not_stop_the_comparison_of_sets(answers):
    row = function([3, 4], 1, judge="set")
    programs = ["def f(x): return [i * (2**61 - 1) for i in range(50_000)]", "def f(x): return [4, 3, 3]"]
    started = time.process_time()
    said = await grade_all(ProgramGrader(answers.execute), [(row, fenced(each)) for each in programs])
    assert [each.verdict for each in said] == [Verdict.WRONG, Verdict.RIGHT]
    assert time.process_time() - started < 2


@pytest.mark.parametrize("name", NORMAL_PROGRAMS)
async def test_answers_are_normal_programs(answers, name):
    assert await verdict_on(answers, function({1: 2, 5: 1}, [1, 1, 5]), NORMAL_PROGRAMS[name]) is Verdict.RIGHT


async def test_proposals_get_no_more_freedom_from_that(answers):
    request = ExecutionRequest(program="import random\ndef f():\n    return 1", inputs=("",))
    assert (await answers.execute(request)).static_check == ("line 1: imports random",)


@pytest.mark.parametrize("name", STDIN_PROGRAMS)
async def test_programs_read_standard_input_as_they_like(answers, name):
    right, wrong = Tests(("3\n1 2 3\n", "1\n-4"), ("6\n", "-4.0\n")), Tests(("3\n1 2 3\n",), ("7\n",))
    for tests, verdict in ((right, Verdict.RIGHT), (wrong, Verdict.WRONG)):
        assert await verdict_on(answers, question(tests), STDIN_PROGRAMS[name]) is verdict


@pytest.mark.parametrize("name", FAILING)
async def test_programs_that_fail_elsewhere_fail_here(answers, name):
    assert await verdict_on(answers, question(Tests(("",), ("6\n",))), FAILING[name]) is Verdict.WRONG


async def test_no_module_of_answers_opens_a_wall(answers):
    """Whatever answers may import, files, processes, sockets and threads are as far away as ever."""
    attempts = tables.table(__file__, "attempts at a wall")
    modules = {each.partition(".")[0] for each in attempts if "." in each.partition("(")[0]}
    source = f"""import {", ".join(modules)}
REFUSALS = OSError, ImportError, LookupError, RuntimeError, sqlite3.Error
def f(attempt):
    try:
        return repr(eval(attempt))
    except REFUSALS:
        return True
"""
    ran = await calls(answers.execute, call_program(source, "f"), [case_text([each]) for each in attempts])
    assert ran.failure is None
    assert dict(zip(attempts, ran.values, strict=True)) == dict.fromkeys(attempts, True)


async def test_most_of_the_standard_library_can_be_imported(answers):
    names = sorted(name for name in sys.stdlib_module_names if not name.startswith("_"))
    names.append("numpy")
    source = """import importlib
def f(name):
    try:
        importlib.import_module(name)
        return True
    except Exception:
        return False
"""
    ran = await calls(answers.execute, call_program(source, "f"), [case_text([name]) for name in names])
    missing = {name for name, found in zip(names, ran.values, strict=True) if not found}
    assert {"numpy", "socket", "ctypes", "tkinter"} <= missing and len(missing) < 0.45 * len(names)
    needed = {"unittest", "doctest", "xml", "asyncio", "concurrent", "atexit", "fileinput", "pickle", "resource", "bz2"}
    assert not missing & needed


ROWS = tables.table(__file__, "rows of JSON")


@pytest.mark.parametrize(("wanted", "expression", "right"), ROWS)
async def test_rows_hold_what_json_can_say(answers, wanted, expression, right):
    asked = question(gold("calls", {"entry": "f", "inputs": [[1]], "outputs": [wanted]}))
    said = await verdict_on(answers, asked, f"def f(_):\n    return {expression}")
    assert said is (Verdict.RIGHT if right else Verdict.WRONG)


NEAR = [*tables.table(__file__, "rows with a tolerance"), (2**53 + 1, float(2**53), False), (1, float("nan"), False)]


@pytest.mark.parametrize(("wanted", "returned", "right"), NEAR)
async def test_the_tolerance_of_a_row_is_that_of_every_number_in_it(wanted, returned, right):
    row = {"entry": "f", "inputs": [[1]], "outputs": [wanted], "tolerance": 1e-6}
    said = _failure(gold("calls", row), ["[1]"], [wanted], Ran((returned,)))
    assert (said == "") is right, said


@pytest.mark.parametrize("name", HARNESSED)
async def test_rows_run_as_in_the_harnesses_of_benchmarks(answers, name):
    asked = question(gold("calls", {"entry": "down", "inputs": [[3000]], "outputs": [3000]}))
    assert await verdict_on(answers, asked, HARNESSED[name]) is Verdict.RIGHT


@pytest.mark.parametrize(
    "prelude", ["from math import *", "class Solution:\n    def gcd(self, a, b):\n        return 2"]
)
async def test_what_a_question_defines_is_no_answer(answers, prelude):
    asked = function(2, 4, 6, entry="gcd", prelude=prelude)
    for source in ("x = 1", "print(gcd(4, 6))"):
        assert await verdict_on(answers, asked, source) is Verdict.WRONG
    assert await verdict_on(answers, asked, "def gcd(a, b):\n    return 2") is Verdict.RIGHT


async def test_long_inputs_and_outputs_pass(answers):
    numbers = "\n".join(str(n) for n in range(150_000))
    tests = Tests((numbers,), (numbers,))
    pairs = [
        (question(tests), fenced("import sys\nprint(sys.stdin.read())")),
        (function(list(range(100_000)), 100_000), fenced("def f(n): return list(range(n))")),
    ]
    assert {each.verdict for each in await grade_all(ProgramGrader(answers.execute), pairs)} == {Verdict.RIGHT}


EXACTLY = tables.table(__file__, "output, exactly")
AS_JUDGES_DO = tables.table(__file__, "output, as judges do")
WITH_TOLERANCE = tables.table(__file__, "output, with a tolerance")


def test_output_is_compared_line_by_line_as_text_and_as_numbers_within_the_tolerance():
    """An absolute tolerance, relative for an expected number with a point; None: that of judges. Digits are plain."""
    rows = [(*row[:2], 0.0, row[2]) for row in EXACTLY] + [(*row[:2], None, row[2]) for row in AS_JUDGES_DO]
    rows += WITH_TOLERANCE
    assert [row for row in rows if same_output(*row[:3]) is not row[3]] == []
    assert all(same_output(wanted, wanted, None) for _, wanted, _ in AS_JUDGES_DO)


TOLERANCES = [
    (1.0, "1.0000005", True), (1.0, "1.00001", False), (1.0, "1", True), (1, "1.0000005", False),
    ([0.1, 0.2], "[0.1 + 1e-8, 0.2]", True), ([0.1, 0.2], "(0.1 + 1e-8, 0.2)", False), ([0.1], "[0.1, 0.2]", False),
    ([[0.1]], "[[0.1 + 1e-8]]", False), (float("nan"), "float('nan')", False), ((1, 2), "[1, 2]", False),
    ({1, 2}, "{2, 1}", True), (True, "1", True), ("a", "'a'", True), (None, "None", True), (1j, "1j", True),
    ({"a": [1]}, "{'a': [1]}", True), (b"x", "b'x'", True), (10**400, "10**400", True), (10**400, "10**400 + 1", False),
]  # fmt: skip


OF_A_SHAPE = [
    ([1.0, 2.0], "[[1.0, 2.0], [1.0, 2.0]]", False), ([1.0, 2.0], "[1.0, 2.0 + 1e-9]", True),
    ([[1.0, 2.0]], "[[1.0, 2.0], [1.0, 2.0]]", False), ([1.0], "[1.0, 1.0]", False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "expression", "right", "atol"),
    [(*each, 0.0) for each in TOLERANCES] + [(*each, 1e-6) for each in OF_A_SHAPE],
)
async def test_values_are_compared_as_evalplus_does(answers, wanted, expression, right, atol):
    said = await verdict_on(answers, function(wanted, atol=atol), f"def f():\n    return {expression}")
    assert said is (Verdict.RIGHT if right else Verdict.WRONG)


JUDGED = tables.table(__file__, "special judges")


@pytest.mark.parametrize(("judge", "wanted", "right", "wrong"), JUDGED)
async def test_special_judges(answers, judge, wanted, right, wrong):
    arguments = {"root": [[1, 2]], "digits": [1, 2], "surface": [3, 4]}.get(judge, [])
    asked = function(wanted, *arguments, judge=judge, atol=1e-4 if judge in ("root", "surface") else 0.0)
    for expression, verdict in ((right, Verdict.RIGHT), (wrong, Verdict.WRONG)):
        if expression is not None:
            assert await verdict_on(answers, asked, f"def f(*_):\n    return {expression}") is verdict


async def test_what_json_states_comes_back():
    values = [None, True, 1, -2.5, "ü\ud800", [1], (1, (2,)), {1: (2,)}, {3}, frozenset({4}), 1j, b"\0", 10**500]
    assert decode(encode(values)) == values
    assert isinstance(decode(encode([object()]))[0], Opaque)
    deep: list = []
    for _ in range(300):
        deep = [deep]
    encode(deep)


HOSTILE = [attack for family in (FORGERY, PEEKING) for attack in family.attacks if attack.fits]
_SECRET = 86_419_753


@pytest.mark.parametrize("way", ["calls", "stdin"])
async def test_no_forgery_is_right(way):
    """Whatever a hostile answer does, it is not right, and the answers beside and after it are judged as always."""
    config = ExecutorConfig(workers=3, wall_s=1.0, memory_mb=256)
    honest = fenced(f"def f(*_):\n    return {_SECRET}" if way == "calls" else f"print({_SECRET})")
    asked = function(_SECRET, 1) if way == "calls" else question(Tests(("1\n",), (f"{_SECRET}\n",)))
    ending = "" if way == "calls" else "\nprint(f(1))"
    with World() as world:
        pairs = [(asked, fenced(world.fill(attack.program, "mark") + ending)) for attack in HOSTILE]
        async with SandboxPool(config, answers=True) as pool:
            grader = ProgramGrader(pool.execute)
            said = await grade_all(grader, [pair for hostile in pairs for pair in (hostile, (asked, honest))])
    assert len(HOSTILE) > 60
    assert [each.verdict for each in said[1::2]] == [Verdict.RIGHT] * len(pairs)
    assert {each.verdict for each in said[::2]} <= {Verdict.WRONG, Verdict.MALFORMED}


@pytest.mark.parametrize("program, reason", tables.table(__file__, "reasons"))
async def test_a_wrong_answer_says_which_test_failed_and_how(program, reason):
    cases = {"base": (case_text([2]),), "plus": (case_text([[1, "a"]]),)}
    gold = Calls(entry="f", cases=cases, expected={"base": (4,), "plus": (0,)})
    async with SandboxPool(ExecutorConfig(workers=1, wall_s=1.0), answers=True) as pool:
        asked = question(gold if "f(x)" in program else Tests(("7\n",), ("8",)))
        said = await ProgramGrader(pool.execute).grade(asked, fenced(program))
    assert (said.verdict, said.detail) == (Verdict.WRONG, reason)


async def test_loops_are_wrong_and_block_nobody():
    async with SandboxPool(ExecutorConfig(workers=3, wall_s=1.0, memory_mb=256), answers=True) as pool:
        grader = ProgramGrader(pool.execute)
        cases = {"base": tuple(case_text([n]) for n in range(40))}
        asked = question(Calls(entry="f", cases=cases, expected={"base": tuple(range(40))}))
        programs = (
            "def f(x):\n    while x == 30: pass\n    return x",
            "def f(x):\n    return x",
            "def f(x):\n    return [0] * 10**9 if x == 3 else x",
            "import os\ndef f(x):\n    return os._exit(0) if x == 3 else x",
        )
        said = await grade_all(grader, [(asked, fenced(each)) for each in programs])
    assert [each.verdict.value for each in said] == ["wrong", "right", "wrong", "wrong"]


class _Losing:
    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        return ExecutionResult(outputs=tuple(CallResult(status=CallStatus.LOST) for _ in request.inputs))


async def test_what_the_executor_loses_and_what_a_reference_fails_over_is_ungraded(answers):
    program = fenced("def f(): return 1")
    by_reference = question(Calls(entry="f", cases={"base": ("[]",)}, reference="def f(): return 1"))
    value = question(ProgramValue("def f(x): return x", "input", "1", "1"))
    said = [await ValueGrader(_Losing().execute).grade(value, "```input\n1\n```")]
    for asked in (function(1), by_reference, *(question(Tests((text,), ("1",))) for text in ("", "1" * 2**24))):
        said.append(await ProgramGrader(_Losing().execute).grade(asked, program))
    fails = question(Calls(entry="f", cases={"base": ("[]",)}, reference="def f(): return 1 / 0"))
    said.append(await ProgramGrader(answers.execute).grade(fails, program))
    assert {each.verdict for each in said} == {Verdict.UNGRADED}


async def test_base_and_plus_are_apart_and_so_are_calls_that_share_a_process(answers):
    cases = {"base": (case_text([1]),), "plus": (case_text([2]), case_text([3]))}
    gold = Calls(entry="f", cases=cases, reference="def f(x): return x * x")
    grader = ProgramGrader(answers.execute)
    for returned, base, plus in (("x", True, False), ("-x", False, False), ("x ** 2", True, True)):
        said = await grader.grade(question(gold), fenced(f"def f(x): return {returned}"))
        assert said.verdict is (Verdict.RIGHT if plus else Verdict.WRONG)
        assert said.parts == {"base": base, "plus": plus}
    program = call_program("def f(x):\n    return 1 / x", "f")
    ran = await calls(answers.execute, program, [case_text([n]) for n in (1, 2, 0, 4)])
    assert (ran.values, ran.failure, ran.lost) == ((1.0, 0.5), "ZeroDivisionError", False)


INPUTS = [
    ("[1, 2]", Verdict.RIGHT), ("list((1, 2))", Verdict.RIGHT), ("f([1, 2])", Verdict.RIGHT), ("[2, 1]", Verdict.RIGHT),
    ("assert f([1, 2]) == 3", Verdict.RIGHT), ("x=[1, 2]", Verdict.RIGHT), ("[1]", Verdict.WRONG),
    ("1 /", Verdict.MALFORMED), ("[1]) or 3 #", Verdict.MALFORMED), ("__import__('os')", Verdict.WRONG),
    ("(f := sum)", Verdict.MALFORMED), ("type('L', (list,), {'__iter__': lambda self: iter([3])})()", Verdict.WRONG),
    ("", Verdict.WRONG), ("globals()", Verdict.MALFORMED), ("lambda: 3", Verdict.WRONG),
]  # fmt: skip


_EXEC = "getattr(__import__('builtins'), 'ex' + 'ec')('x = 1')"
_LOOP = "[x for x in range(9) if sum([x]) == 3]"
SEARCHES = [*tables.table(__file__, "searches"), _EXEC, _LOOP]


FUNCTIONS = [
    ("lambda x: x * 3", Verdict.RIGHT), ("lambda x: 6 if x == 2 else 0", Verdict.RIGHT), ("abs", Verdict.WRONG),
    ("lambda x: x.bit_length() + 4", Verdict.RIGHT), ("lambda x: x", Verdict.WRONG), ("lambda x: f", Verdict.MALFORMED),
    ("lambda x: [y for y in range(9) if y == 6][0]", Verdict.WRONG), ("lambda x, g=lambda: 6: g()", Verdict.WRONG),
    ("lambda x: (lambda: 6)()", Verdict.WRONG), ("lambda x: max(range(9), key=lambda y: y == 6)", Verdict.WRONG),
    ("lambda x: '{0.__code__}'.format(x) and 6", Verdict.WRONG), ("lambda x: x.__class__(6)", Verdict.MALFORMED),
]  # fmt: skip


ANY = ProgramValue("def f(x):\n    return sum(list.__iter__(x))", "input", "[3]", "3")
OF_DATA = ProgramValue("def f(x):\n    return sum(x)", "input", "[3]", "3")
OF_A_FUNCTION = ProgramValue("def f(g):\n    return g(2)", "input", "lambda x: x + 4", "6")
OF_LENGTH = ProgramValue("def f(x):\n    return len(x)", "input", "'a'", "300000")
OF_LONG = ProgramValue("def f(x):\n    return 'a' * x", "input", "1", "'a'")
NOT_RIGHT = (Verdict.WRONG, Verdict.MALFORMED)


@pytest.mark.parametrize(
    ("wanted", "stated", "verdicts"),
    [(ANY, stated, (verdict,)) for stated, verdict in INPUTS]
    + [(OF_DATA, stated, NOT_RIGHT) for stated in SEARCHES]
    + [(OF_A_FUNCTION, stated, (verdict,)) for stated, verdict in FUNCTIONS]
    + [(OF_LENGTH, "'a' * 300000", (Verdict.RIGHT,)), (OF_LONG, "300000", (Verdict.WRONG,))],
)
async def test_any_input_that_leads_there_is_right_unless_it_searches_or_reaches_the_interpreter(
    answers, wanted, stated, verdicts
):
    said = await ValueGrader(answers.execute).grade(question(wanted), f"```input\n{stated}\n```")
    assert said.verdict in verdicts


OUTPUTS = [
    ("```output\n[1, 2]\n```", Verdict.RIGHT), ("The value is \\boxed{[1, 2.0]}", Verdict.RIGHT),
    ("[1, 2]", Verdict.RIGHT),
    ("[ANSWER]f(2) == [1, 2][/ANSWER]", Verdict.RIGHT), ("```\n[2, 1]\n```", Verdict.WRONG), ("", Verdict.MALFORMED),
    ("```output\nf(2)\n```", Verdict.MALFORMED), ("```output\nlist(range(1, 3))\n```", Verdict.MALFORMED),
    ("```\n1\n```\nno:\n```output\n[1, 2]\n```", Verdict.RIGHT),
    ("<answer>```output\n[1, 2]\n```</answer> bye", Verdict.RIGHT),
    ("<think>```output\n[1, 2]\n```</think>", Verdict.MALFORMED), ("I do not know", Verdict.MALFORMED),
]  # fmt: skip


@pytest.mark.parametrize(("response", "verdict"), OUTPUTS)
async def test_outputs_are_compared_as_plain_data(answers, response, verdict):
    gold = ProgramValue("def f(n):\n    return list(range(1, n + 1))", "output", "2", "[1, 2]")
    assert (await ValueGrader(answers.execute).grade(question(gold), response)).verdict is verdict


@pytest.mark.parametrize("form", [CompactFormat(), ChatFormat(str)])
async def test_tasks_of_the_exam_are_graded_by_their_kind(tmp_path, form):
    rows = SUITES["exam"].read(tmp_path)[::40]
    async with SandboxPool(ExecutorConfig(workers=3)) as pool, make_grader(TASK, pool) as grader:
        said = await grade_all(grader, ((row, form.response(KINDS[row.gold.kind].solution(row.gold))) for row in rows))
        empty = await grade_all(grader, ((row, "") for row in rows))
    assert {each.verdict for each in said} == {Verdict.RIGHT}
    assert {each.verdict for each in empty} == {Verdict.MALFORMED}


async def test_a_reference_is_run_once_and_again_if_the_executor_loses_it(answers):
    calls = [_Losing().execute, answers.execute, answers.execute]
    grader = ProgramGrader(lambda request: calls.pop(0)(request))
    asked = question(Calls(entry="f", cases={"base": ("[]",)}, reference="def f(): return 54321"))
    said = [await grader.grade(asked, fenced("def f(): return 54321")) for _ in range(2)]
    assert [(each.verdict, each.reason) for each in said] == [(Verdict.UNGRADED, "lost"), (Verdict.RIGHT, "")]
    grader = ProgramGrader(answers.execute)
    gold = Calls(entry="f", cases={"base": ("[]",)}, reference="def f(): return 12345")
    before = answers.stats()["requests"]
    said = await asyncio.gather(*(grader.grade(question(gold), fenced(f"def f(): return {n}")) for n in range(5)))
    assert answers.stats()["requests"] - before == 6
    assert {each.verdict for each in said} == {Verdict.WRONG}


async def test_verdicts_on_broken_solutions_are_those_of_evalplus():
    """Which solutions, and what evalplus 0.3.1 said of them, is from `benchmarks.evalplus_agreement`."""
    verdicts = json.loads((Path(__file__).parent / "evalplus_verdicts.json").read_text())
    asked = [row for name in evalplus_agreement.SUITES_HERE for row in questions(name)]
    asked = [row for row in asked if row.id not in evalplus_agreement.SLOW]
    samples = evalplus_agreement.choose(asked, len(verdicts))
    assert [sample.question.id for sample in samples] == [id for id, _ in verdicts]
    # A pool that waits for loops no longer than an evaluation does.
    async with answer_pool(ExecutorConfig(workers=2)) as pool, make_grader("calls", pool) as grader:
        judged = await grade_all(grader, [(sample.question, fenced(sample.source)) for sample in samples])
    agree = [
        dict(found.parts) == {part: theirs.get(part, False) for part in found.parts}
        for found, (_, theirs) in zip(judged, verdicts, strict=True)
    ]
    assert 0.2 < sum(all(theirs.values()) for _, theirs in verdicts) / len(verdicts) < 0.5
    assert not any(found.verdict is Verdict.UNGRADED for found in judged) and sum(agree) >= 0.995 * len(agree)
