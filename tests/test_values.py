from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from azr import values
from azr.values import PlainDataError, TooLargeError, canonical, canonical_arguments, equal, parse, parse_arguments

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(allow_nan=True),
    st.text(st.characters(), max_size=12),
    st.binary(max_size=12),
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
@given(PLAIN)
def test_canonical_text_states_an_equal_value_of_the_same_type(value):
    parsed = parse(canonical(value))
    assert equal(parsed, value)
    assert type(parsed) is type(value)
    assert equal(value, value)


@settings(max_examples=60, deadline=None)
@given(st.lists(PLAIN, max_size=4).map(tuple))
def test_argument_texts_round_trip(arguments):
    assert equal(parse_arguments(canonical_arguments(arguments)), arguments)


@settings(max_examples=60, deadline=None)
@given(PLAIN, PLAIN)
def test_equality_is_symmetric(a, b):
    assert equal(a, b) == equal(b, a)


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("()[]{}'\"\\,:+-.0159eEjnaifxb# \n_\x00\ud800setcomplex"), max_size=30))
def test_any_text_is_a_value_or_plain_data_error(text):
    for read in (parse, parse_arguments):
        try:
            canonical(read(text))
        except PlainDataError:
            continue


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("nan", math.nan),
        ("-inf", -math.inf),
        ("float('inf')", math.inf),
        ("complex(inf, -nan)", complex(math.inf, math.nan)),
        ("(1-2j)", 1 - 2j),
        ("set()", set()),
        ("frozenset({1, 2})", frozenset({1, 2})),
        ("set([1, 1])", {1}),
        ("1, 2", (1, 2)),
        ("[1,\n 2, # two\n]", [1, 2]),
        ("'it''s'", "its"),
        ("'''a'b''c'''", "a'b''c"),
        ('""', ""),
        ("b'\\x00\\xff'", b"\x00\xff"),
        ("'" + "1" * 5000 + "'", "1" * 5000),
        ("0x" + "f" * 100, 16**100 - 1),
        ("{1: {2: [3, (4,)]}}", {1: {2: [3, (4,)]}}),
    ],
)
def test_parse_reads(text, value):
    assert equal(parse(text), value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  # nothing",
        "x",
        "f(1)",
        "1 + 1",
        "1 or 2",
        "1 < 2",
        "'a' * 3",
        "[1] + [2]",
        "1 if 1 else 2",
        "[i for i in (1, 2)]",
        "lambda: 0",
        "f'{1}'",
        "...",
        "*[1]",
        "[*[1]]",
        "{**{}}",
        "{[]: 1}",
        "{{}}",
        "a=1",
        "dict(a=1)",
        "float('1')",
        "complex('1')",
        "set(frozenset())",
        "__import__('os')",
        "(1).real",
        "'a'[0]",
        "1)",
        "(1",
        "(1]",
        "'open",
        "1; 2",
        "1\\\n",
        "'\x00'",
        "'\ud800'",
        "-True",
        "+'a'",
        "1j-2j-3j",
        "9**9**9",
        "01",
        "True and False",
    ],
)
def test_parse_refuses_what_is_not_a_literal(text):
    with pytest.raises(PlainDataError):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10_000 + "]" * 10_000,
        "-" * 10_000 + "1",
        "1+" * 10_000 + "1",
        "set(" * 300 + ")" * 300,
        "9" * (values.MAX_DIGITS + 1),
        "0x" + "f" * 3900,
        "'" + "a" * values.MAX_BYTES + "'",
        "'" + "é" * (values.MAX_BYTES // 2) + "'",
        "[" + "1," * (3 * values.MAX_NODES) + "]",
        "(" * 150 + "1 2" + ")" * 150,
        "{0:" * 60 + "1 2" + "}" * 60,
    ],
    ids=range(11),
)
def test_bombs_are_refused(text):
    with pytest.raises(PlainDataError):
        parse(text)


def test_arguments():
    assert parse_arguments("") == ()
    assert parse_arguments("1, 'a'") == (1, "a")
    assert parse_arguments("1,") == (1,)
    assert parse_arguments("(1, 2)") == ((1, 2),)
    assert parse_arguments("[1,\n  2],\n'x'\n") == ([1, 2], "x")
    assert canonical_arguments((1, "a")) == "1, 'a'"
    assert canonical_arguments(((1,),)) == "(1,)"
    assert canonical_arguments(()) == ""


@pytest.mark.parametrize(
    "text", ["0) or True or (0", "0) or (1", "0], [1", "*(1, 2)", "a=1", "**{}", ",", "1 # )\n) or (1", "0]\n#["]
)
def test_argument_text_cannot_leave_the_call(text):
    with pytest.raises(PlainDataError):
        parse_arguments(text)


def test_canonical_is_deterministic_and_ordered():
    assert canonical({10, 9, 1}) == "{1, 9, 10}"
    assert canonical({"b", "a", 1}) == "{'a', 'b', 1}"
    assert canonical({2: "x", 1: "y"}) == "{2: 'x', 1: 'y'}"
    assert canonical(frozenset()) == "frozenset()"
    assert canonical((1,)) == "(1,)"
    assert canonical(complex(math.nan, 1)) == "complex(nan, 1.0)"


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
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (nan, float("nan")),
        ([nan], [float("nan")]),
        ({nan: 1}, {float("nan"): 1}),
        ({nan}, {float("nan")}),
        (complex(nan, 1), complex(nan, 1)),
        ({1, 2}, {2, 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1}, frozenset({1})),
    ]:
        assert equal(a, b)
    for a, b in [
        ((1,), [1]),
        ("1", 1),
        (b"a", "a"),
        (0.1 + 0.2, 0.3),
        (nan, 1.0),
        (nan, None),
        (complex(nan, 1), complex(nan, 2)),
        ([1, 2], [2, 1]),
    ]:
        assert not equal(a, b)


def test_a_text_is_never_read_as_another_texts_value():
    """The AZR fallback evaluated the contents of strings, so that '5' accepted '5.0' and '2' accepted '1+1'."""
    assert not equal(parse("'5'"), parse("'5.0'"))
    assert not equal(parse("'2'"), parse("'1+1'"))


def test_imports_nothing_beyond_the_standard_library():
    code = f"import runpy; runpy.run_path({values.__file__!r})"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
