"""What two programs become when one gives its output to the other."""

import pytest

from azr.tasks.chains import chain, num_lines


def body(expression: str, name: str = "a") -> str:
    return f"def f({name}):\n    return {expression}"


def called(program: str, *arguments: object) -> object:
    names: dict = {}
    exec(program, names)
    return names["f"](*arguments)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (body("a + 1"), body("a * 2"), "def f(a):\n    a = a + 1\n    return a * 2"),
        (body("a + 1"), body("b * 2", "b"), "def f(a):\n    b = a + 1\n    return b * 2"),
        (body("a"), body("a * 2"), "def f(a):\n    return a * 2"),
        (
            "def f(x: int) -> int:\n    'Doubles.'\n    x += x\n    y = x\n    return y",
            "def f(y):\n    z = [y for y in range(y)]\n    return z",
            "def f(x):\n    x += x\n    y = x\n    z = [y for y in range(y)]\n    return z",
        ),
        (
            "import math\n" + body("math.gcd(a, 4)"),
            "import math\nfrom re import sub as s\n" + body("s('1', '2', str(a)) + str(math.pi)"),
            "import math\nfrom re import sub as s\n\n"
            "def f(a):\n    a = math.gcd(a, 4)\n    return s('1', '2', str(a)) + str(math.pi)",
        ),
    ],
)
def test_straight_lines_become_one_function(first: str, second: str, expected: str) -> None:
    assert chain(first, second) == expected


LOOP = "def f(a):\n    for i in range(3):\n        a += i\n    return a"
RECURSIVE = "def f(n):\n    return 1 if n < 2 else n * f(n - 1)"
HELPED = "def twice(x):\n    return 2 * x\n\ndef f(x, y):\n    return twice(x) + y"
SHADOWS = "def f(a):\n    len = a + 1\n    return [len]"


@pytest.mark.parametrize(
    ("first", "second", "given"),
    [
        (LOOP, body("a * 2"), (1,)), (RECURSIVE, RECURSIVE, (3,)), (HELPED, LOOP, (1, 5)),
        (SHADOWS, body("len(a)"), (1,)), (body("[len(a)]"), SHADOWS.replace("a + 1", "a + [1]"), ("ab",)),
        (body("a + 1"), "def f(a):\n    (x, y) = (a, a)\n    return x + y", (1,)),
        ("def f(a):\n    g_0 = a\n    return g_0", LOOP, (1,)),
    ],
)  # fmt: skip
def test_other_programs_keep_their_functions(first: str, second: str, given: tuple[object, ...]) -> None:
    program = chain(first, second)
    assert program is not None and "def g_" in program
    assert called(program, *given) == called(second, called(first, *given))
    assert num_lines(program) == num_lines(first) + num_lines(second) + 1
    again = chain(program, program) if len(given) == 1 else chain(program, LOOP)
    assert again is not None, "a chain may be chained"


def test_a_chain_of_chains_of_functions_names_each_once() -> None:
    twice = chain(RECURSIVE, LOOP)
    program = chain(twice, twice)
    assert program is not None and called(program, 3) == called(LOOP, called(RECURSIVE, called(LOOP, 6)))
    assert [f"def g_{k}(" in program for k in range(7)] == [True] * 6 + [False]


@pytest.mark.parametrize(
    "bad",
    [
        "x = 3\n" + body("a + x"), "class C:\n    pass\n\n" + body("a"), "def f(a, b=1):\n    return a",
        "def f(*a):\n    return a", "def f(a, *, b):\n    return a", "def f(f):\n    return f",
        "def f(a):\n    f = a\n    return f", "def f(a):\n    global f\n    return a",
        "def f(a):\n    def f(b):\n        return b\n    return f(a)", "def g(a):\n    return a",
        "from __future__ import annotations\n" + body("a"), "from math import *\n" + body("a"),
        "from functools import cache\n\n@cache\n" + body("a"), "def f(a:", "", "import math as f\n" + body("a"),
    ],
)  # fmt: skip
def test_a_program_that_is_more_than_imports_and_plain_functions_is_not_chained(bad: str) -> None:
    assert chain(bad, body("a")) is None and chain(body("a"), bad) is None


def test_a_second_program_has_one_parameter_imports_agree_and_lines_are_statements() -> None:
    assert chain(body("a"), "def f(a, b):\n    return a") is None
    assert chain("def f(a, b):\n    return a", body("a + 1")) == "def f(a, b):\n    return a + 1"
    first = "from math import gcd as x\n" + body("x(a, 2)")
    assert chain(first, "from math import lcm as x\n" + body("x(a, 2)")) is None
    assert [num_lines(each) for each in (body("a"), LOOP, HELPED, "import math\n" + RECURSIVE)] == [1, 3, 2, 1]
