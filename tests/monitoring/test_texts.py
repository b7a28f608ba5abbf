"""What texts, tokens and programs show, on small cases by hand and on programs that models wrote."""

import ast

import numpy as np
import pytest
from radon.complexity import cc_visit
from radon.metrics import h_visit

from azr.monitoring.monitor import repeated_share
from azr.monitoring.texts import is_comment_heavy, is_mixed, means, measure


def by_hand(ids: list[int]) -> float:
    grams = [tuple(ids[i : i + 8]) for i in range(len(ids) - 7)]
    return 1 - len(set(grams)) / len(grams)


def test_the_share_of_repeated_sequences_is_that_of_counting_them() -> None:
    rng = np.random.default_rng(0)
    for vocabulary in (2, 3, 50_000):
        ids = rng.integers(0, vocabulary, 700).astype(np.int32)
        assert repeated_share(ids) == pytest.approx(by_hand(ids.tolist()), abs=1e-12)
    loop = np.array([5, 6, 7, 8] * 100, np.int32)
    assert repeated_share(loop) == pytest.approx(1 - 4 / 393)
    assert repeated_share(np.zeros(8, np.int32)) == repeated_share(np.zeros(0, np.int32)) == 0.0


@pytest.mark.parametrize(
    ("text", "mixed"),
    [
        ("def f(a):\n    return a  # plain", False),
        ("The answer is π·r², so Δ ≤ λ → ∑ x_i ≈ 3.14 ✓ 😀", False),
        ("naïve café, Ångström", False),
        ("Let me think. 首先我们计算这个函数的输出, then return it.", True),
        ("首先我们计算这个函数的输出, 然后返回结果。", False),
        ("Сначала вычислим. Then we return the value.", True),
        ("I think 计算 it", False),
        ("x" * 100_000 + "计算这个函数", False),
    ],
)
def test_two_writing_systems_are_a_mixture_and_formulas_are_not(text: str, mixed: bool) -> None:
    assert is_mixed(text) is mixed


COMMENTED = '''def f(a):
    """First look at every item.

    Then add them up.
    """
    # A plan:
    # 1. start at zero
    # 2. go on
    t = sum(a)
    return t
'''


@pytest.mark.parametrize(
    ("program", "heavy"),
    [
        (COMMENTED, True),
        ("def f(a):\n    t = 0  # zero\n    t += 1  # one\n    return t  # done", False),
        ("def f(a):\n    s = '''\n# not a comment\n# nor this\n# nor that\n'''\n    return s", False),
        ("# one\n# two", False),
        ("# one\n# two\n# three\nthis is ( no program", True),
        ("def f(a):\n    'a'.join(a)\n    'b'.join(a)\n    'c'.join(a)", False),
    ],
)
def test_comments_are_counted_by_lines_that_hold_nothing_else(program: str, heavy: bool) -> None:
    assert is_comment_heavy(program) is heavy


def test_complexity_is_radons_and_shapes_ignore_names_and_constants() -> None:
    program = "def f(a):\n    if a > 1:\n        return [x for x in a if x]\n    return a + 2\n"
    same = "def f(other):\n    if other > 7:\n        return [y for y in other if y]\n    return other + 'b'\n"
    unlike = program.replace("a + 2", "a - 2")
    measured = measure(program)
    assert measured is not None
    assert measured["cyclomatic"] == sum(block.complexity for block in cc_visit(program)) > 2
    assert measured["halstead_volume"] == h_visit(program).total.volume > 0
    assert measured["nodes"] == len(list(ast.walk(ast.parse(program)))) and measured["lines"] == 4
    assert measured["shape"] == measure(same)["shape"] != measure(unlike)["shape"]
    assert means([measured, measure(same), measure(unlike)])["distinct_shapes"] == pytest.approx(2 / 3)
    assert measure("def f(:") is None and measure("(" * 500 + ")" * 500) is None and means([]) == {}
