"""A process that compares mathematical answers by math-verify; its parent kills it when it takes too long.

It answers ``{gold: [..], answer, tolerance}`` with ``{right, exact, close}``. The library's own alarms are off:
they need a main thread, cancel each other and do not stop native code.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import resource
import sys
from collections.abc import Callable, Sequence
from typing import Any

from azr.isolated import InvalidReply, serve

MEMORY_BYTES = 2 * 2**30
RELATIVE = 1e-4
"""Within this share of the gold answer a number is close, as Qwen2.5-Math's grader has it."""
SMALL, SMALL_RELATIVE = 1e-3, 5e-6
"""Below the one, numbers are the same within this share of them: six places say less and less of them."""
DIGITS = 20_000
"""An answer of more digits is wrong where the gold answer has fewer: it is not computed."""
_BIG_BINOMIAL = re.compile(r"\\[dt]?binom\s*\{[^{}]*\d{5}")


def load(arguments: Sequence[str]) -> Callable[[Any], Any]:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # Deep nesting ends in an exception here, and in a crash beyond.
    sys.setrecursionlimit(3_000)
    _patch()
    return _compare


def _read(text: str) -> list[Any]:
    """Read a text as a whole: the library's other patterns find a number within what cannot be read."""
    from math_verify import LatexExtractionConfig, parse

    how = (LatexExtractionConfig(boxed_match_priority=0),)
    text = f"$\\boxed{{{text}}}$"
    return list(parse(text, how, extraction_mode="first_match", parsing_timeout=None, raise_on_error=True))


_read_gold = functools.cache(_read)


def _equal(gold: Any, answer: Any) -> bool:
    from math_verify import verify

    return bool(verify(gold, answer, allow_set_relation_comp=True, timeout_seconds=None, raise_on_error=True))


def _compare(asked: dict[str, Any]) -> dict[str, bool]:
    texts, given = asked["gold"], asked["answer"]
    parsed = [_read_gold(text) for text in texts]
    if "".join(given.split()) in ("".join(gold.split()) for gold in texts):
        return {"right": True, "exact": True, "close": True}
    golds = [gold for gold in parsed if gold]
    if not golds:
        raise InvalidReply("no comparison, as the gold answer cannot be parsed")
    wrong = dict.fromkeys(("right", "exact", "close"), False)
    if _BIG_BINOMIAL.search(given):
        return wrong
    try:
        answer = _read(given)
        if max(map(_digits, answer), default=0) > DIGITS >= max(_digits(each) for gold in golds for each in gold):
            return wrong
        right = any(_equal(gold, answer) for gold in golds)
        distances = [_distance(gold, answer) for gold in golds]
    except Exception as error:
        error.__traceback__ = error.__context__ = None  # they hold what took the memory that ran out
        # Raised for the gold answer alone too, this says nothing of the answer.
        if all(_equal(gold, gold) for gold in golds):
            return wrong
        raise
    within = asked["tolerance"] is not None and any(a <= asked["tolerance"] for a, _ in distances)
    close = right or any(relative <= RELATIVE for _, relative in distances)
    return {"right": right or within, "exact": right, "close": close}


def _patch() -> None:
    """Tells numbers of any size apart: the library rounds to six places, and to zero below 1e-15 (Math-Verify#14)."""
    from math_verify import grader
    from sympy import Basic, Float  # type: ignore[import-untyped]

    theirs = grader.sympy_numeric_eq

    def numeric_eq(one: Any, other: Any, *how: Any) -> bool:
        if not theirs(one, other, *how):
            return False
        if not all(isinstance(each, Basic) and not each.free_symbols for each in (one, other)):
            return True
        try:
            first, second = (complex_of(each) for each in (one, other))
        except (TypeError, ValueError, ArithmeticError, AttributeError):
            return True
        largest = max(abs(first), abs(second))
        if one.has(Float) or other.has(Float):
            return bool(largest >= SMALL or abs(first - second) <= SMALL_RELATIVE * largest)
        return bool(abs(first - second) <= 1e-12 * largest)

    def complex_of(each: Any) -> Any:
        percent = grader.get_pct_val(each)
        value = (each if percent is None else percent).doit().evalf(30)
        if not value.is_number:
            raise ValueError
        return value

    grader.sympy_numeric_eq = numeric_eq


def _digits(expression: Any, depth: int = 0) -> float:
    """Return an upper bound on the decimal digits of the largest number in an expression."""
    if depth > 200:
        return math.inf
    name: str = type(expression).__name__
    parts: tuple[Any, ...] = getattr(expression, "args", ())
    if getattr(expression, "is_Rational", False):
        return max(expression.p.bit_length(), expression.q.bit_length()) * 0.30103
    if getattr(expression, "is_Float", False):
        return abs(math.log10(abs(expression))) if expression else 0.0
    inner = [_digits(part, depth + 1) for part in parts]
    largest = max(inner, default=0.0)
    if largest > DIGITS:
        return math.inf
    if name == "Pow" and not parts[1].free_symbols:
        if inner[1] > 6:
            return math.inf if parts[0] not in (0, 1, -1) else 1.0
        times = 10 ** inner[1]
        is_open = parts[0].is_Add and parts[0].free_symbols and times > 1_000
        return math.inf if is_open else max(times * inner[0], inner[1])
    if name in ("factorial", "factorial2", "gamma") and not parts[0].free_symbols:
        return math.inf if inner[0] > 6 else 10 ** inner[0] * max(inner[0], 1)
    return sum(inner) if name == "Mul" else largest + (1 if name == "Add" else 0)


def _distance(gold: list[Any], answer: list[Any]) -> tuple[float, float]:
    """Absolute and relative, of two real numbers; NaN for all else."""
    one, other = _number(gold), _number(answer)
    distance = float(abs(one - other))
    return distance, distance / abs(float(one)) if one else (0.0 if distance == 0 else math.inf)


def _number(parsed: list[Any]) -> Any:
    for each in parsed:
        with contextlib.suppress(TypeError, ValueError, OverflowError, AttributeError):
            if math.isfinite(float(value := each.evalf(50))):
                return value
    return math.nan


if __name__ == "__main__":
    serve(load)
