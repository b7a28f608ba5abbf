"""Plain data: the only format in which text of a model is read, and values are written.

Plain data is None, bool, int, float, complex, str, bytes, list, tuple, dict, set and frozenset, by exact
type, nested, and bounded in size. Text is never evaluated: a scan that allows no other tokens bounds its
length, depth and numbers, then the syntax tree is walked and everything but a literal is refused.

Beyond Python's literals the text format knows ``nan``, ``inf``, ``-inf``, ``float('nan')`` and its like,
``complex(re, im)``, ``set(..)`` and ``frozenset(..)`` of a literal list, tuple or set.

Equality is Python's on the values, with one exception, and this is what it means:

* ``1 == 1.0 == True`` and ``0 == -0.0 == False``: numbers are compared by value, whatever their type, as keys and
  elements too. Floats are compared exactly: ``0.1 + 0.2 != 0.3``.
* NaN equals NaN, at any depth (the exception), so that a value always equals itself; a set holds at most one. A
  complex number with a NaN part equals one with the same parts.
* Sets and dicts ignore order; a frozenset equals the same set. ``(1,) != [1]``, ``'a' != b'a'``, ``'1' != 1``.
* Of a key stated twice the last value counts, as in Python.

Canonical text of equal values may differ (``1`` and ``1.0``, dicts in insertion order), so values are compared as
values, never as text. It is the same on every run: elements of a set are written in order (integers by size, others
by their text), ``-0.0`` keeps its sign, and what has no literal is written as a call: ``complex(nan, 1.0)``.

Bounds: longer texts, deeper nesting, more values or longer integers than the constants below are refused, not cut.
``1e999`` is ``inf``, ``1_000`` is 1000, adjacent strings are one and comments are skipped, as in Python. Lone
surrogates may be written by an escape, but not be in the text. F-strings, ``...``, line continuations, and any other
name, operator or call are not plain data.

Standard library only: the sandboxed interpreter imports this file too.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

MAX_BYTES = 262_144
"""Longest text read or written, bytes of UTF-8."""
MAX_DEPTH = 64
"""Deepest nesting of containers."""
MAX_NODES = 32_768
"""Most values in one value, containers and their items counted alike."""
MAX_DIGITS = 4_000
"""Longest integer, decimal digits; below the interpreter's own limit for conversions."""

_INT_BOUND = 10**MAX_DIGITS
_MAX_SIGNS = 4
_NAN, _COMPLEX = object(), object()
_NAMES = frozenset({"None", "True", "False", "nan", "inf", "float", "complex", "set", "frozenset"})
_NUMBERS = {"nan": math.nan, "inf": math.inf}
_FLOAT_WORDS = frozenset({"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"})
_TOKEN = re.compile(
    r"""(?P<string>[bBrRuU]{0,2}(?:
            '''(?>(?:[^'\\]+|\\.|'(?!''))*)'''
          | \"\"\"(?>(?:[^"\\]+|\\.|"(?!""))*)\"\"\"
          | '(?!'')(?:[^'\\\n]++|\\.)*+'
          | "(?!"")(?:[^"\\\n]++|\\.)*+"))
      | (?P<number>(?:[0-9]|\.[0-9])[0-9a-zA-Z_.]*+)
      | (?P<name>[a-zA-Z_][a-zA-Z0-9_]*+)
      | (?P<sign>[+-])
      | (?P<open>[(\[{])
      | (?P<close>[)\]}])
      | (?P<separator>[,:])
      | (?P<space>[ \t\r\n\f]++|\#[^\r\n]*+)""",
    re.VERBOSE | re.DOTALL,
)
# Numbers, strings without escapes, lists and dicts of them; the strings all in single or all in double quotes.
_SIMPLE = re.compile(
    r"(?:[-+0-9.eE,: \n\[\]{}]++|\"[ !#-\[\]-~]*+\")*+"
    r"|(?:[-+0-9.eE,: \n\[\]{}]++|'[ !#-&(-\[\]-~]*+')*+"
)
_JSON = json.JSONDecoder()
_FEW = 256
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}"), set: ("{", "}"), frozenset: ("frozenset({", "})"),
}  # fmt: skip
_PARTNER = {")": "(", "]": "[", "}": "{"}


class PlainDataError(ValueError):
    """The text or value is not plain data."""


class TooLargeError(PlainDataError):
    """It might be plain data, but it exceeds a bound."""


def parse(text: str, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the value of a text. Raises PlainDataError for anything but bounded plain data."""
    simple = _read_simple(text.strip(" \n"), max_bytes)
    if simple is not None:
        return simple
    if not _scan(text, max_bytes):
        raise PlainDataError("the text states no value")
    return _build(_tree(f"(\n{text}\n)"))


def parse_arguments(text: str, *, max_bytes: int = MAX_BYTES) -> tuple[Any, ...]:
    """Return the positional arguments in a text, e.g. ``"1, 'a'"``; none if it is blank.

    The text is read as the items of a literal list, so it cannot reach beyond its call. Raises PlainDataError for
    anything but bounded plain data.
    """
    simple = _read_simple(f"[{text}]", max_bytes + 2)
    if simple is not None:
        return tuple(simple)
    _scan(text, max_bytes)
    return tuple(_build(_tree(f"[\n{text}\n]")))


def canonical(value: object, *, max_bytes: int = MAX_BYTES) -> str:
    """Return the canonical text of a value; ``parse`` of it equals ``value``.

    Types are matched exactly, so no method of a user's class ever runs. Sets are written in a fixed order,
    dicts in insertion order. Raises TooLargeError beyond a bound and PlainDataError for other types.
    """
    return _Writer(max_bytes).write(value)


def canonical_arguments(arguments: tuple[object, ...], *, max_bytes: int = MAX_BYTES) -> str:
    """Return the canonical text of arguments, without outer parentheses: ``1, 'a'``."""
    writer = _Writer(max_bytes)
    return ", ".join([writer.write(argument) for argument in arguments])


def equal(a: object, b: object) -> bool:
    """Whether two plain values are equal: Python's equality, except that NaN equals NaN. See the module's docstring."""
    return bool(_comparable(a) == _comparable(b))


def _read_simple(text: str, max_bytes: int) -> Any:
    """Return the value of a short text that JSON reads exactly as Python does; None if that is not certain.

    JSON's numbers and strings without escapes are Python's, and it knows no adjacent strings, comments or calls.
    """
    if len(text) > min(MAX_DIGITS, max_bytes) or text.count("[") + text.count("{") > MAX_DEPTH:
        return None
    if _SIMPLE.fullmatch(text) is None:
        return None
    try:
        value, end = _JSON.raw_decode(text if '"' in text else text.replace("'", '"'))
    except ValueError:
        return None
    return value if end == len(text) else None


def _scan(text: str, max_bytes: int) -> bool:
    """Refuse what the parser should not see. Return whether the text holds any value."""
    if len(text) > max_bytes or len(text.encode("utf-8", "surrogatepass")) > max_bytes:
        raise TooLargeError(f"the text is longer than {max_bytes} bytes")
    position, signs, values, depth = 0, 0, 0, 0
    last: str | None = None
    brackets: list[str] = []
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise PlainDataError(f"{text[position]!r} does not belong to plain data")
        kind, word, position = token.lastgroup, token.group(), token.end()
        if kind == "space":
            continue
        if kind == "name" and word not in _NAMES:
            raise PlainDataError(f"the name {word[:40]!r} is not plain data")
        if kind == "number" and len(word) > MAX_DIGITS:
            raise TooLargeError(f"a number has more than {MAX_DIGITS} digits")
        if kind == "open":
            brackets.append("call" if last == "name" else word)
            depth += last != "name"
        if kind == "close":
            opened = brackets.pop() if brackets else ""
            if opened != ("call" if opened == "call" and word == ")" else _PARTNER[word]):
                raise PlainDataError(f"unbalanced {word!r}")
            depth -= opened != "call"
        signs = 0 if kind in ("open", "separator") else signs + (kind == "sign")
        values += kind == "separator" or (kind == "open" and last != "name")
        if signs > _MAX_SIGNS:
            raise PlainDataError("arithmetic is not plain data")
        if depth > MAX_DEPTH or values > 2 * MAX_NODES:
            raise TooLargeError(f"nested deeper than {MAX_DEPTH} or more than {MAX_NODES} values")
        last = kind
    if brackets:
        raise PlainDataError("a bracket is never closed")
    return last is not None


def _tree(source: str) -> ast.expr:
    try:
        return ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        # Null bytes and lone surrogates are ValueErrors.
        raise PlainDataError(f"not a literal: {type(error).__name__}") from error


def _build(node: ast.expr | None) -> Any:
    """Return the value of a literal's syntax tree."""
    match node:
        case ast.Constant(value=value) if value is not ...:
            if type(value) is int and value >= _INT_BOUND:
                raise TooLargeError(f"an integer has more than {MAX_DIGITS} digits")
            return value
        case ast.Name(id=name) if name in _NUMBERS:
            return _NUMBERS[name]
        case ast.UnaryOp() | ast.BinOp():
            return _number(node)
        case ast.List(elts=items):
            return [_build(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple([_build(item) for item in items])
        case ast.Set(elts=items):
            return _hashed(set, [_build(item) for item in items])
        case ast.Dict(keys=keys, values=items) if None not in keys:
            return _hashed(dict, [(_build(key), _build(item)) for key, item in zip(keys, items, strict=True)])
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _call(name, arguments)
    raise PlainDataError(f"{type(node).__name__} is not plain data")


def _number(node: ast.expr) -> Any:
    """Return a signed number, or a real plus or minus an imaginary literal."""
    match node:
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _number(operand)
            return -value if isinstance(sign, ast.USub) else +value
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=ast.Constant(value=complex() as right)):
            value = _number(left)
            if type(value) is not complex:
                try:
                    return value - right if isinstance(sign, ast.Sub) else value + right
                except OverflowError as error:
                    raise TooLargeError("an integer does not fit a complex number") from error
        case ast.Name() | ast.Constant():
            value = _build(node)
            if type(value) in (int, float, complex):
                return value
    raise PlainDataError("arithmetic is not plain data")


def _call(name: str, arguments: list[ast.expr]) -> Any:
    """Return a value that has no literal and is written as a call."""
    if name in ("set", "frozenset"):
        make: Callable[[Iterable[Any]], Any] = set if name == "set" else frozenset
        if not arguments:
            return make(())
        if len(arguments) == 1 and isinstance(arguments[0], ast.List | ast.Tuple | ast.Set):
            return _hashed(make, list(_build(arguments[0])))
    if name == "float" and len(arguments) == 1 and isinstance(arguments[0], ast.Constant):
        word = arguments[0].value
        if type(word) is str and word.lower() in _FLOAT_WORDS:
            return float(word)
    if name == "complex" and len(arguments) == 2:
        parts = [_number(argument) for argument in arguments]
        if all(type(part) is float for part in parts):
            return complex(*parts)
    raise PlainDataError(f"this call of {name!r} is not plain data")


def _hashed(make: Callable[[Iterable[Any]], Any], items: list[Any]) -> Any:
    try:
        # Numbers can be chosen to share one hash, and a set of n such takes time of the order of n squared.
        first: dict[int, Any] = {}
        keys = [item[0] for item in items] if make is dict else items
        if len(keys) > _FEW and sum(first.setdefault(hash(key), key) != key for key in keys) > _FEW:
            raise TooLargeError(f"more than {_FEW} elements of a set, or keys, share a hash")
        return make(items)
    except TypeError as error:
        raise PlainDataError("a list, dict or set cannot be an element of a set or a key") from error


class _Writer:
    """Writes canonical text within one shared budget of bytes and nodes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes_left = max_bytes
        self.nodes_left = MAX_NODES

    def write(self, value: object, depth: int = 0) -> str:
        self.nodes_left -= 1
        if self.nodes_left < 0:
            raise TooLargeError(f"more than {MAX_NODES} values")
        kind = type(value)
        if kind in (list, tuple, dict, set, frozenset):
            return self._container(kind, value, depth + 1)
        text = self._scalar(kind, value)
        self._spend(len(text.encode()))
        return text

    def _spend(self, count: int) -> None:
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise TooLargeError(f"the value's text is longer than {self.max_bytes} bytes")

    def _scalar(self, kind: type, value: Any) -> str:
        if kind is int and not -_INT_BOUND < value < _INT_BOUND:
            raise TooLargeError(f"an integer has more than {MAX_DIGITS} digits")
        if kind in (str, bytes) and len(value) > self.bytes_left:
            raise TooLargeError(f"the value's text is longer than {self.max_bytes} bytes")
        if kind is complex and not _has_literal(value):
            return f"complex({value.real!r}, {value.imag!r})"
        if value is None or kind in (bool, int, float, complex, str, bytes):
            return repr(value)
        raise PlainDataError(f"{type_name(kind)} is not plain data")

    def _container(self, kind: type, value: Any, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise TooLargeError(f"nested deeper than {MAX_DEPTH}")
        if len(value) > self.nodes_left:
            raise TooLargeError(f"more than {MAX_NODES} values")
        left, right = _BRACKETS[kind]
        if kind in (set, frozenset) and not value:
            left, right = f"{kind.__name__}(", ")"
        if kind is tuple and len(value) == 1:
            right = ",)"
        self._spend(len(left) + len(right) + 2 * max(0, len(value) - 1))
        return left + ", ".join(self._items(kind, value, depth)) + right

    def _items(self, kind: type, value: Any, depth: int) -> list[str]:
        if kind is dict:
            self._spend(2 * len(value))
            return [f"{self.write(key, depth)}: {self.write(item, depth)}" for key, item in value.items()]
        if kind in (list, tuple):
            return [self.write(item, depth) for item in value]
        if all(type(item) is int for item in value):
            return [self.write(item, depth) for item in sorted(value)]
        # Equal texts of different elements are NaNs.
        return sorted({self.write(item, depth) for item in value})


def _has_literal(value: complex) -> bool:
    """Whether a literal can express this number: a sum loses the sign of a zero, and ``-2j`` has the real part -0.0."""
    parts = value.real, value.imag
    if not all(math.isfinite(part) and (part != 0 or math.copysign(1, part) > 0) for part in parts):
        return False
    return value.real != 0 or value.imag >= 0


def type_name(kind: type) -> str:
    """Return a class's name, at most 60 characters, without running any code of the class."""
    # A metaclass may lie about __name__, or run code when it is read; the slot of type itself does not.
    return str(type.__dict__["__name__"].__get__(kind))[:60]


def _comparable(value: Any) -> Any:
    """Return the value with every NaN replaced by one object, so that Python's equality compares them."""
    kind = type(value)
    if kind is float and value != value:
        return _NAN
    if kind is complex and value != value:
        return (_COMPLEX, _comparable(value.real), _comparable(value.imag))
    if kind in (list, tuple):
        return kind([_comparable(item) for item in value])
    if kind in (set, frozenset):
        return frozenset([_comparable(item) for item in value])
    if kind is dict:
        return {_comparable(key): _comparable(item) for key, item in value.items()}
    return value
