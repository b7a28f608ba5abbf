from __future__ import annotations

import ast
import random
from itertools import cycle, islice

import pytest

from azr.pretrain.compositions import FORMS
from azr.pretrain.corpus import as_task, deduce
from azr.pretrain.generator import Sample, sample, with_inputs
from azr.pretrain.working import work


def arguments(text: str) -> tuple:
    return ast.literal_eval(f"({text},)")


def samples(count: int):
    """Programs of the generator and, in turn, of every form that it cannot emit."""
    rng = random.Random(4)
    novel = (with_inputs(rng, form(rng), 1) for form in cycle(FORMS.values()))
    yield from (sample(rng, 1) for _ in range(count))
    yield from islice((made for made in novel if made), count)


def test_working_arrives_at_what_running_the_program_returns():
    for made in samples(1000):
        given = arguments(made.inputs[0])
        assert repr(work(made.program, given).value) == made.outputs[0], made.program
        assert repr(given) == repr(arguments(made.inputs[0])), "the arguments are left as they were"


def test_every_line_is_true():
    sums = 0
    for made in samples(1000):
        for line in work(made.program, arguments(made.inputs[0])).lines:
            left, equals, right = line.rpartition(" = ")
            sums += bool(equals)
            assert eval(left or right) == ast.literal_eval(right), (made.program, line)
    assert sums > 1000


@pytest.mark.parametrize(
    "body, given, lines",
    [
        ("return [a // 4 for a in x]", "[6, 2]", ["6 // 4 = 1", "2 // 4 = 0"]),
        ("return x[::-1]", "'on'", []),
        ("x = x[::-1]\n    return x.upper()", "'on'", ["'no'"]),
        ("return x[0] + x[-1]", "[5, 1, 2]", ["5 + 2 = 7"]),
        ("return sum(x) > 9", "[8, 0, 9]", ["8 + 0 = 8", "8 + 9 = 17", "17 > 9 = True"]),
        ("x.pop()\n    return len(x)", "[5, 1]", ["[5]"]),
        ("x.sort()\n    return x", "[5, 1]", []),
        ("if x > 3:\n        x = x - 3\n    return [x, x + 1]", "5", ["5 > 3 = True", "5 - 3 = 2", "2 + 1 = 3"]),
        ("return [a for a in x if a > 3]", "[5, 1]", ["5 > 3 = True", "1 > 3 = False"]),
        ("r = 0\n    for a in x:\n        r += a * 2\n    return r", "[5]", ["5 * 2 = 10", "0 + 10 = 10"]),
        ("return {k: n + 3 for k, n in x.items()}", "{'a': 1}", ["1 + 3 = 4"]),
        ("return sorted([a - 1 for a in x])", "[3, 2]", ["3 - 1 = 2", "2 - 1 = 1", "[2, 1]"]),
    ],
)
def test_what_is_jotted_down(body, given, lines):
    assert work(f"def f(x):\n    {body}", arguments(given)).lines == tuple(lines)


@pytest.mark.parametrize(
    "body, given, thinking",
    [
        ("x = x + 5\n    return [x, x - 1]", "1", "1 + 5 = 6\n6 - 1 = 5"),
        ("return x[::-1]", "'on'", ""),
        ("return [a + 1 for a in x]", f"[{', '.join('1' * 30)}]", ""),
    ],
    ids=["line by line", "nothing to jot down", "too much"],
)
def test_how_a_deduction_is_worked_out(body, given, thinking):
    assert deduce(as_task("deduction", Sample(f"def f(x):\n    {body}", "", (given,), ("",)))) == thinking
