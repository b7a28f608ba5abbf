"""Composite programs: which programs serve as functions, how they are renamed, what a proposal must do with them."""

import pytest

from azr.config import CompositesConfig
from azr.records import Task
from azr.tasks.base import RejectReason
from azr.tasks.composites import compose, give_functions, schedule
from azr.tasks.normalize import parse_program
from azr.tasks.prompts import Section


def task(program: str, id: str = "t") -> Task:
    return Task(id=id, kind="deduction", program=program, inputs=("1",), outputs=("1",), fingerprint="")


def body(expression: str) -> str:
    return f"def f(a):\n    return {expression}"


def result(source: str, call: str):
    names: dict = {}
    exec(source, names)
    return eval(call, names)


def test_functions_are_renamed_where_they_call_themselves_and_stand_side_by_side():
    factorial = "import math\n\ndef f(n):\n    'f of n'\n    return 1 if n < 2 else n * f(n - 1) + math.gcd(2, 4) - 2"
    given = give_functions([task(factorial, "x"), task("import math\n" + body("math.gcd(a, 4)"), "y")], 2)
    assert given.names == ("g_0", "g_1") and [each.id for each in given.tasks] == ["x", "y"]
    assert given.source.count("import math") == 1 and 'f of n"""' in given.source
    assert result(given.source, "g_0(5), g_1(6)") == (120, 2)


@pytest.mark.parametrize(
    "program",
    [
        body("a") + "\nx = 3", "x = 3\n" + body("a + x"), "def helper(a):\n    return a\n\n" + body("helper(a)"),
        "class C:\n    pass\n\n" + body("a"), "def g_0(a):\n    return a\n\n" + body("g_0(a)"),
        "import math as g_1\n" + body("a"), body("[g_2 for g_2 in a]"), "def f(a, g_0=1):\n    return a",
        "def f(f):\n    return f", "def f(a):\n    f = a\n    return f", "def f(a):\n    global f\n    return a",
        "def f(a):\n    def f(b):\n        return b\n    return f(a)",
        "from __future__ import annotations\n" + body("a"), "from math import *\n" + body("a"),
        "from functools import cache\n\n@cache\n" + body("a"), "def f(a:", "",
    ],
)  # fmt: skip
def test_a_program_that_is_more_than_imports_and_one_function_does_not_serve(program):
    assert give_functions([task(program)], 1) is None
    assert give_functions([task(program), task(body("a"), "good")], 1).tasks[0].id == "good"


def test_equal_programs_and_imports_of_another_thing_by_the_same_name_are_passed_over():
    first = task("from math import gcd as x\n" + body("x(a, 2)"), "1")
    other = task("from math import lcm as x\n" + body("x(a, 2)"), "2")
    given = give_functions([first, first, other, task(body("a"), "3")], 3)
    assert [each.id for each in given.tasks] == ["1", "3"]
    assert give_functions([], 1) is None


GIVEN = give_functions([task(body("a + 1")), task(body("a * 2"))], 2)


def test_the_program_that_is_stored_needs_nothing_else():
    sections = (Section("input", "3"), Section("program", "\n" + body("g_0(a) + max(map(g_1, [g_1(a)]))") + "\n"))
    given_input, program = compose(sections, GIVEN)
    assert given_input == sections[0]
    assert program.text == GIVEN.source + "\n\n" + sections[1].text.strip("\n")
    assert parse_program(program.text) is not None and result(program.text, "f(3)") == 16
    # A composite is no function of the next one.
    assert give_functions([task(program.text)], 1) is None


@pytest.mark.parametrize(
    "program",
    [
        body("g_0(a)"),
        body("[g_0, g_1]"),
        body("a") + "\n\ndef h(a):\n    return g_0(g_1(a))",
        "def g_1(a):\n    return a\n\n" + body("g_0(g_1(a))"),
        "def f(a, g_1):\n    return g_0(g_1(a))",
        "def f(a):\n    g_1 = a\n    return g_0(g_1(a))",
        "def f(a):\n    import math as g_1\n    return g_0(g_1(a))",
        "def f(a):\n    try:\n        return g_0(g_1(a))\n    except ValueError as g_1:\n        pass",
        "def f(a):\n    match a:\n        case [*g_1]:\n            return g_0(g_1(a))",
        "def f(a):\n    return g_0(g_1(a)) if (g_1 := a) else 0",
        "class g_0:\n    pass\n\n" + body("g_0(g_1(a))"),
        "def f(a):\n    del g_1\n    return g_0(g_1(a))",
    ],
)
def test_a_proposal_must_call_every_function_and_bind_none_of_their_names(program):
    assert compose((Section("program", program), Section("input", "1")), GIVEN) is RejectReason.NOT_ALLOWED


def test_a_proposal_without_exactly_one_program_with_f_is_malformed():
    program, given = Section("program", body("g_0(g_1(a))")), Section("input", "1")
    others = ["def f(a) return g_0(g_1(a))", "def h(a):\n    return g_0(g_1(a))", "f = g_0"]
    for sections in [(given,), (program, program), *((Section("program", text), given) for text in others)]:
        assert compose(sections, GIVEN) is RejectReason.MALFORMED
    assert not isinstance(compose((program,), GIVEN), RejectReason)


def test_the_number_of_functions_grows_every_interval_up_to_its_bound():
    grows = CompositesConfig(chance=0.5, functions=1, start_step=10, interval=5)
    assert {step: schedule(grows, step) for step in (0, 9, 10, 14, 15, 20, 25, 1000)} == {
        0: (0, 0), 9: (0, 0), 10: (0.5, 1), 14: (0.5, 1), 15: (0.5, 2), 20: (0.5, 3), 25: (0.5, 3), 1000: (0.5, 3),
    }  # fmt: skip
    assert schedule(CompositesConfig(), 10**6) == (0, 0)
