import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from azr import values
from azr.values import PlainDataError, TooLargeError, canonical, canonical_arguments, equal, parse, parse_arguments
from tests import tables

# pytest puts its own filters before the module's.
pytestmark = pytest.mark.filterwarnings("ignore:::<unknown>")

TEXTS = Path(__file__).with_name("values.txt")
SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(allow_nan=True)),
    *(st.text(st.characters(), max_size=12), st.binary(max_size=12)),
)
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=4), max_leaves=6)
PLAIN = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.sets(HASHABLE, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(PLAIN, PLAIN, st.lists(PLAIN, max_size=4).map(tuple))
def test_canonical_text_states_an_equal_value_of_the_same_type(value, other, arguments):
    parsed = parse(canonical(value))
    assert equal(parsed, value)
    assert type(parsed) is type(value)
    assert equal(value, value) and equal(value, other) == equal(other, value)
    assert equal(parse_arguments(canonical_arguments(arguments)), arguments)


def thoroughly(read, text):
    """What is read without the short way for simple texts."""
    with patch.object(values, "_read_simple", return_value=None):
        return read(text)


def outcome(read, text):
    """The canonical text of what is read, which tells 1, 1.0 and True apart, or the error's class."""
    try:
        return canonical(read(text))
    except PlainDataError:
        return PlainDataError


def assert_ways_agree(text):
    for read in (parse, parse_arguments):
        assert outcome(read, text) == outcome(lambda text, read=read: thoroughly(read, text), text), text


SIMPLE = st.recursive(
    st.integers()
    | st.floats()
    | st.text(st.characters(max_codepoint=0x7F), max_size=6)
    | st.sampled_from([True, None]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab'\"", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(SIMPLE.map(repr) | st.text("0123456789[]{}:,.eE+- \n'\"ab", max_size=16))
def test_the_short_way_reads_what_the_thorough_way_reads(text):
    assert_ways_agree(text)


@pytest.mark.parametrize(
    "text",
    [
        *tables.values(TEXTS, "edges"),
        "9" * values.MAX_DIGITS,
        "9" * (values.MAX_DIGITS + 1),
        "[" * 64 + "]" * 64,
        "[" * 65 + "]" * 65,
        "'" + "[" * 70 + "'",
    ],
)
def test_the_short_way_agrees_on_its_edges(text):
    assert_ways_agree(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("nan", math.nan), ("-inf", -math.inf), ("float('inf')", math.inf),
        ("complex(inf, -nan)", complex(math.inf, math.nan)), ("(1-2j)", 1 - 2j), ("set()", set()),
        ("frozenset({1, 2})", frozenset({1, 2})), ("set([1, 1])", {1}), ("1, 2", (1, 2)), ("[1,\n 2, # two\n]", [1, 2]),
        ("'it''s'", "its"), ("'''a'b''c'''", "a'b''c"), ('""', ""), ("b'\\x00\\xff'", b"\x00\xff"),
        ("'" + "1" * 5000 + "'", "1" * 5000), ("0x" + "f" * 100, 16**100 - 1),
        ("{1: {2: [3, (4,)]}}", {1: {2: [3, (4,)]}}), ("1_000", 1000), ("'a' \"b\"", "ab"), ("'a' # 'b'\n'c'", "ac"),
        ("1e999", math.inf), ("-1e999", -math.inf), ("9" * 400 + "j", complex(0, math.inf)),
        ("{'a': 1, 'a': 2}", {"a": 2}), ("{1: 'a', True: 'b', 1.0: 'c'}", {1: "c"}), ("{nan, nan}", {math.nan}),
        ("'\\ud800'", "\ud800"), ("'\\N{BULLET}\\x41\\\n'", "\u2022A"), ("b'\\x41\\'' b\"'\"", b"A''"),
        ("'\ufeff\u2028'", "\ufeff\u2028"), ("'" + "[" * 10_000 + "'", "[" * 10_000), ("# (\n1 # )", 1),
    ],
)  # fmt: skip
def test_parse_reads(text, value):
    assert equal(parse(text), value)


@pytest.mark.parametrize(
    "text",
    [
        *tables.values(TEXTS, "no literals"),
        "[" * 10_000 + "]" * 10_000, "-" * 10_000 + "1", "1+" * 10_000 + "1", "set(" * 300 + ")" * 300,
        "9" * (values.MAX_DIGITS + 1), "0x" + "f" * 3900, "'" + "a" * values.MAX_BYTES + "'",
        "'" + "é" * (values.MAX_BYTES // 2) + "'", "[" + "1," * (3 * values.MAX_NODES) + "]",
        "'" + "a" * 10_000_000 + "'", "[" + "1," * 5_000_000 + "]", "9" * 10_000_000, "[" * 10_000,
        "{" + ", ".join(str(n * (2**61 - 1)) for n in range(5_000)) + "}",
        "{" + ", ".join(f"({n}, {m}): 0" for n in range(1) for m in range(30_000)) + "}", "0b" + "1" * 20_000,
        "frozenset({" * 65 + "})" * 65, "(" * 150 + "1 2" + ")" * 150, "{0:" * 60 + "1 2" + "}" * 60,
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_parse_refuses_what_is_not_a_literal_and_bombs(text):
    with pytest.raises(PlainDataError):
        parse(text)


def test_a_bomb_is_refused_at_once():
    """Numbers that share a hash would take a set seconds."""
    started = time.process_time()
    with pytest.raises(TooLargeError):
        parse("{" + ", ".join(str(n * (2**61 - 1)) for n in range(11_000)) + "}")
    for text in ("9**9**9", "9" * 10_000_000, "[" * 10_000_000, "'" * 10_000_000, "#" * 10_000_000):
        with pytest.raises(PlainDataError):
            parse(text)
    assert time.process_time() - started < 2
    many = "{" + ", ".join(map(str, range(-20_000, 10_000))) + "}"
    assert len(parse(many)) == 30_000


def test_arguments_whose_text_cannot_leave_the_call():
    for text, read in (
        ("", ()), ("1, 'a'", (1, "a")), ("1,", (1,)), ("(1, 2)", ((1, 2),)), ("[1,\n  2],\n'x'\n", ([1, 2], "x")),
    ):  # fmt: skip
        assert parse_arguments(text) == read
    for arguments, text in (((1, "a"), "1, 'a'"), (((1,),), "(1,)"), ((), "")):
        assert canonical_arguments(arguments) == text
    for text in ("0) or True or (0", "0) or (1", "0], [1", "*(1, 2)", "a=1", "**{}", ",", "1 # )\n) or (1", "0]\n#["):
        with pytest.raises(PlainDataError):
            parse_arguments(text)


def test_canonical_is_deterministic_and_ordered():
    for value, text in (
        ({10, 9, 1}, "{1, 9, 10}"), ({"b", "a", 1}, "{'a', 'b', 1}"), ({2: "x", 1: "y"}, "{2: 'x', 1: 'y'}"),
        (frozenset(), "frozenset()"), ((1,), "(1,)"), (complex(math.nan, 1), "complex(nan, 1.0)"),
        (complex(-0.0, -2), "complex(-0.0, -2.0)"), (complex(0.0, -2), "complex(0.0, -2.0)"),  # -2j has -0.0
        ({float("nan"), float("nan")}, "{nan}"), ([-0.0, 1e999], "[-0.0, inf]"), ("\ud800\x00", "'\\ud800\\x00'"),
    ):  # fmt: skip
        assert canonical(value) == text


class Liar:
    def __eq__(self, other):
        return True

    def __repr__(self):
        return "42"

    __hash__ = object.__hash__


class Meta(type):
    @property
    def __name__(cls):
        raise AssertionError("ran user code")


class Hidden(metaclass=Meta):
    pass


@pytest.mark.parametrize(
    "value",
    [Liar(), [Liar()], {Liar(): 1}, type("I", (int,), {})(3), type("S", (str,), {})("a"), len, int, ..., Hidden()],
    ids=range(9),
)
def test_canonical_refuses_other_types_without_running_their_code(value):
    with pytest.raises(PlainDataError) as caught:
        canonical(value)
    assert not isinstance(caught.value, TooLargeError)


def test_canonical_refuses_what_exceeds_a_budget():
    cyclic: list = []
    cyclic.append(cyclic)
    shared: list = [0]
    for _ in range(40):
        shared = [shared, shared]
    deep: object = 0
    for _ in range(values.MAX_DEPTH + 1):
        deep = (deep,)
    for value in (cyclic, shared, deep, 10**values.MAX_DIGITS, "a" * values.MAX_BYTES, b"\0" * 100_000, [0] * 10**6):
        with pytest.raises(TooLargeError):
            canonical(value)
    assert canonical("a" * 8, max_bytes=10) == "'aaaaaaaa'"
    assert canonical(frozenset({1}), max_bytes=14) == "frozenset({1})"
    assert canonical({1: (2,)}, max_bytes=9) == "{1: (2,)}"
    for value in ("a" * 9, ["aaaaaa", 1], "é" * 5, frozenset(), {(1,), (2,)}, {1: [2, 3]}):
        with pytest.raises(TooLargeError):
            canonical(value, max_bytes=10)


def test_what_is_just_within_the_bounds_round_trips():
    deep: object = complex(-math.inf, math.nan)
    for level in range(values.MAX_DEPTH):
        deep = (frozenset({deep}), (deep,))[level % 2]
    assert equal(parse(canonical(deep)), deep)
    wide = [complex(math.nan, -1e-5)] * 6000 + [-(10**values.MAX_DIGITS) + 1, 0.1] + [frozenset()] * 5000
    assert equal(parse(canonical(wide)), wide)
    assert len(parse(canonical([0] * (values.MAX_NODES - 1)))) == values.MAX_NODES - 1


def test_equality_is_pythons_with_nan_equal_to_itself():
    nan = float("nan")
    for a, b in [
        (1, 1.0), (1, True), (0.0, -0.0), (nan, float("nan")), ([nan], [float("nan")]), ({nan: 1}, {float("nan"): 1}),
        ({nan}, {float("nan")}), (complex(nan, 1), complex(nan, 1)), ({1, 2}, {2, 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({1}, frozenset({1})),
    ]:  # fmt: skip
        assert equal(a, b)
    for a, b in [
        ((1,), [1]), ("1", 1), (b"a", "a"), (0.1 + 0.2, 0.3), (nan, 1.0), (nan, None),
        (complex(nan, 1), complex(nan, 2)), (complex(nan, 1.0), (nan, nan, 1.0)),
        ({complex(1.0, nan)}, {(nan, 1.0, nan)}), ([1, 2], [2, 1]),
    ]:  # fmt: skip
        assert not equal(a, b)


PIECES = [
    "[", "]", "(", ")", "{", "}", ",", ", ", ":", "1", "0", "-", "+", ".", "1.5", "1e9", "1e999", "2j", "1_0", "0x1f",
    "'a'", '"b"', "b'c'", "r'\\d'", "'\\n'", "'\\ud800'", "''", "'''", '"""', "f'{1}'", "u''", "True", "None", "nan",
    "inf", "-inf", "float('nan')", "complex(1.0, nan)", "set(", "set()", "frozenset({", "frozenset(", "...", "#", "\n",
    "\\\n", "\x00", "\ud800", "\uff11", "*", "**", "=", ":=", "lambda:", "x", "if", "or", "\f", "\t", "9" * 4_001,
]  # fmt: skip
FUZZ_S = float(os.environ.get("AZR_FUZZ_SECONDS", "2"))


def damaged(text: str, rng: random.Random) -> str:
    """A value's text with a few pieces put in, cut out or doubled."""
    for _ in range(rng.randrange(4)):
        at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        text = rng.choice(
            [text[:at] + rng.choice(PIECES) + text[at:], text[:at] + text[to:], text[:to] + text[at:to] + text[to:]]
        )
    return text


def test_fuzzing_finds_no_other_error_and_no_value_that_does_not_round_trip():
    """For AZR_FUZZ_SECONDS, 2 when not given, of processor time."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    whole = [
        "[1, 'a', (2.5,)]", "{'a': {1, 2}, (1,): b'x'}", "frozenset({nan, -0.0})", "(1-2j), None", "complex(inf, 1.0)",
    ]  # fmt: skip
    until = time.process_time() + FUZZ_S
    count = 0
    while time.process_time() < until:
        count += 1
        text = "".join(rng.choices(PIECES, k=rng.randrange(12))) if count % 2 else damaged(rng.choice(whole), rng)
        for read in (parse, parse_arguments):
            try:
                value = read(text)
            except PlainDataError:
                continue
            except BaseException as error:
                raise AssertionError(f"seed {seed}: {text!r}") from error
            assert equal(parse(canonical(value)), value), (seed, text)
            assert canonical(parse(canonical(value))) == canonical(value), (seed, text)
        assert_ways_agree(text)


def test_imports_nothing_beyond_the_standard_library():
    code = f"import runpy; runpy.run_path({values.__file__!r})"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
