"""Grade programs: by calling a function (HumanEval, MBPP+), or on standard input too (LiveCodeBench)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import zip_longest
from typing import Any

from azr.execution import CallStatus
from azr.graders import code_blocks, sandboxed
from azr.graders.code_blocks import defines, parses
from azr.graders.plain_json import decode, refuse_collisions
from azr.graders.question import Question
from azr.graders.sandboxed import MAX_SHOWN, RECURSION, Ran, call_program, calls, shown
from azr.records import Judgement, Reason
from azr.tasks.base import Run, Verdict

_FLOAT_ATOL, _RTOL = 1e-6, 1e-7
"""EvalPlus's tolerances for expected floats."""
_TOO_MUCH = ("timeout", "memory", "MemoryError", "output_too_large")
"""Failures of the reference solution for which a call is left out."""
_FEWEST_KEPT = 0.9
"""Smallest share of calls that must remain for answers to be graded."""
_TOLERANCE = 1e-6
"""Tolerance of most judges; absolute from 1 on, so that amounts of money stay apart, and relative below."""
_ROUNDING = 1e-12
"""Relative error of a computation with floats."""
_ZERO = 1e-9
"""Largest number that equals an expected ``0.0``."""
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)

STARTER_IMPORTS = (
    "import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics, itertools, functools, "
    "operator, io, sys, json\nfrom typing import *\nfrom collections import *\nfrom functools import *\n"
    "from itertools import *\nfrom heapq import *\nfrom bisect import *\nfrom math import *\nfrom operator import *\n"
    "from string import *\nfrom re import *\ninf = float('inf')\npow = __import__('builtins').pow\n"
)
"""Imports that LeetCode's starter code relies on, as in LiveCodeBench."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Gold of a function: its calls and what they must return."""

    entry: str
    """Name of the function, or of the method of the class ``Solution``."""
    cases: Mapping[str, tuple[str, ...]]
    """Arguments of the calls by part, such as ``base`` and ``plus``, each as `case_text` writes them."""
    expected: Mapping[str, tuple[Any, ...]] | None = None
    """Expected return values by part; None if the reference solution computes them."""
    reference: str = ""
    """A program that solves the question, and runs in the sandbox as answers do."""
    recorder: str = ""
    """A program whose ``record()`` returns the arguments of all calls, for a suite whose tests are a program."""
    prelude: str = ""
    """Definitions of the question, run before every answer. A function ``entry`` in them is not an answer."""
    begun: bool = False
    """The prelude ends with the head of the function, so that an answer may be its body."""
    atol: float = 0.0
    """Absolute tolerance; 0 is equality, but for floats."""
    judge: str = ""
    """Name of another rule than equality, in `JUDGES`."""
    recursion: int = RECURSION
    outer_list: bool = False
    """Treat a returned tuple as a list, without tolerance for floats: LiveCodeBench's rule."""
    json: bool = False
    """``expected`` comes from JSON: tuples count as lists, and numeric keys as text."""


def starter_calls(entry: str, inputs: Sequence[list[Any]], outputs: Sequence[Any], **more: Any) -> Calls:
    """Return the gold of a function that is written below LeetCode's starter code; ``more``: other fields."""
    cases = {"tests": tuple(map(sandboxed.case_text, inputs))}
    return Calls(
        entry=entry, cases=cases, expected={"tests": tuple(outputs)}, prelude=STARTER_IMPORTS,
        recursion=sandboxed.DEEP_RECURSION, **more,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tests:
    """Gold of a program that reads standard input: input and expected output of every test."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tolerance: float | None = None
    """Tolerance of numbers: absolute, and relative too for an expected number with a point. 0: exact. None: an expected
    number with a point may differ by 1e-6, below 1 by one part in a million."""


Solved = tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[Any, ...]]]
"""Calls of a question, and what they must return, by part."""


@dataclass(slots=True)
class ProgramGrader:
    """Calls a function, or runs a script once for each of its `Tests`; an answer is right if it passes all. The parts
    of a function's judgement are those of its calls, such as ``base`` and ``plus``."""

    execute: Run
    _solved: dict[tuple[str, str], Solved | Reason] = field(default_factory=dict)
    """By suite and question, or why a reference solution gives none."""
    _solving: defaultdict[tuple[str, str], asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def grade(self, question: Question, response: str) -> Judgement:
        gold: Calls | Tests = question.gold
        if isinstance(gold, Tests):
            answer = code_blocks.program(response)
        else:
            answer = code_blocks.definition(response, gold.entry, begun=gold.begun)
        if answer is None:
            return Judgement(verdict=Verdict.MALFORMED, reason="no_block")
        if isinstance(gold, Tests):
            verdict, failure = await self._run_script(gold, sandboxed.stdin_program(answer))
            reason: Reason = "lost" if verdict is Verdict.UNGRADED else ""
            return Judgement(verdict=verdict, detail=failure, answer=(("answer", answer),), reason=reason)
        key = question.suite, question.id
        async with self._solving[key]:
            solved = self._solved.get(key) or await self._solve(gold)
            if solved != "lost":  # else the next answer asks again
                self._solved[key] = solved
        prelude, source = assembled(gold, answer)
        program = call_program(source, gold.entry, gold.recursion, prelude)
        ran = solved if isinstance(solved, str) else await self._run(gold, program, *solved)
        if isinstance(ran, str):
            return Judgement(verdict=Verdict.UNGRADED, answer=(("answer", answer),), reason=ran)
        parts, failure = ran
        verdict = Verdict.WRONG if failure else Verdict.RIGHT
        return Judgement(verdict=verdict, detail=failure, answer=(("answer", answer),), parts=parts)

    async def _run_script(self, gold: Tests, program: str) -> tuple[Verdict, str]:
        """Return the verdict, and the first failure if there is one."""
        for given, wanted in zip(gold.inputs, gold.outputs, strict=True):
            written, call = await sandboxed.standard_output(self.execute, program, given)
            if call.status is CallStatus.LOST:
                return Verdict.UNGRADED, ""
            if written is None:
                ended = call.error if call.status is CallStatus.RAISED else call.status.value
                return Verdict.WRONG, f"the input {shown(given)} ended with {ended}"
            if not same_output(written, wanted, gold.tolerance):
                return Verdict.WRONG, f"the input {shown(given)} gave {shown(written)}, not {shown(wanted)}"
        return Verdict.RIGHT, ""

    async def _run(
        self, gold: Calls, program: str, every: Mapping[str, tuple[str, ...]], expected: Mapping[str, tuple[Any, ...]]
    ) -> tuple[dict[str, bool], str] | Reason:
        """Return which parts a program passes, and its first failure; or that the executor lost a call."""
        parts, failure = dict[str, bool](), ""
        for part, cases in every.items():
            ran = await calls(self.execute, program, cases) if cases and not failure else Ran(())
            if ran.lost:
                return "lost"
            failure = failure or _failure(gold, cases, expected[part], ran)
            parts[part] = not failure
        return parts, failure

    async def _solve(self, gold: Calls) -> Solved | Reason:
        """Return the calls and their expected values, or why the reference solution gives none."""
        cases = gold.cases
        if gold.recorder:
            ran = await calls(self.execute, call_program(gold.recorder, "record"), ("[]",))
            if ran.failure is not None:
                return "lost" if ran.lost else "no_gold"
            cases = {"base": tuple(ran.values[0])}
        if gold.expected is not None:
            return cases, gold.expected
        program = call_program(gold.reference, gold.entry, gold.recursion)
        kept: dict[str, tuple[str, ...]] = {}
        expected: dict[str, tuple[Any, ...]] = {}
        for part, inputs in cases.items():
            rest, kept[part], expected[part] = inputs, (), ()
            while rest:
                ran = await calls(self.execute, program, rest)
                count = len(ran.values)
                kept[part] += rest[:count]
                expected[part] += ran.values
                if ran.failure not in (None, *_TOO_MUCH):
                    return "lost" if ran.lost else "no_gold"
                rest = rest[count + 1 :]
            if len(kept[part]) < _FEWEST_KEPT * len(inputs):
                return "no_gold"
        return kept, expected


def assembled(gold: Calls, answer: str) -> tuple[str, str]:
    """Return the program to run before an answer, and the answer's program."""
    if not gold.begun:
        return gold.prelude, answer
    if not defines(answer, gold.entry):
        return "", gold.prelude + _as_body(gold.prelude, answer)
    # A head alone is not a program.
    return gold.prelude if parses(gold.prelude) else f"{gold.prelude}\n    pass\n", answer


def _as_body(head: str, answer: str) -> str:
    """Return the answer as the body of a function; all of it or its first line may lack the indentation."""
    lines = answer.strip("\n").rstrip().split("\n")
    later = next((at for at, line in enumerate(lines) if at and line[:1] not in (" ", "\t", "")), len(lines))
    whole = "\n".join(lines)
    indented = "\n".join("    " + line for line in lines)
    if whole[:1] in (" ", "\t"):
        tries = [whole, "\n".join(lines[:later])]
    else:
        tries = [indented, f"    {whole}", "\n".join(["    " + lines[0], *lines[1:later]])]
    return next((each for each in tries if parses(head + each)), tries[0])


def _failure(gold: Calls, cases: Sequence[str], expected: Sequence[Any], ran: Ran) -> str:
    """Return the first call that failed and how; empty if all passed."""
    if ran.failure is not None:
        return f"{_call(gold, cases[len(ran.values)])} ended with {ran.failure[:MAX_SHOWN]}"
    if len(ran.values) != len(expected):
        return f"{len(ran.values)} calls returned, and {len(expected)} values are expected"
    atol = gold.atol
    judge = JUDGES[gold.judge]
    for text, returned, wanted in zip(cases, ran.values, expected, strict=True):
        try:
            value = list(returned) if gold.outer_list and type(returned) is tuple else returned
            value = _like_json(value, wanted) if gold.json else value
            good = judge(value, wanted, tuple(decode(json.loads(text))) if gold.judge else (), atol)
            # As in EvalPlus: once a float was expected, its tolerance stays for the calls that follow.
            parts = wanted if isinstance(wanted, list | tuple) and wanted else [wanted]
            is_float = all(isinstance(each, float) for each in parts)
            if atol == 0 and not gold.outer_list and gold.judge != "root" and is_float:
                atol = _FLOAT_ATOL
            is_close = _is_close_json if gold.json else _is_close
            good = good or (atol != 0 and gold.judge != "root" and is_close(value, wanted, atol))
        except (TypeError, ValueError, ArithmeticError, RecursionError, AttributeError):
            good = False
        if not good:
            return f"{_call(gold, text)} returned {shown(returned)}, not {shown(wanted)}"
    return ""


def _call(gold: Calls, case: str) -> str:
    return f"{gold.entry}({', '.join(map(shown, decode(json.loads(case))))})"


def _like_json(returned: Any, wanted: Any) -> Any:
    """Return the value with lists and text keys where the expected value has them."""
    if isinstance(wanted, list) and isinstance(returned, list | tuple) and len(returned) == len(wanted):
        return [_like_json(each, other) for each, other in zip(returned, wanted, strict=True)]
    if isinstance(wanted, dict) and isinstance(returned, dict):
        named = {json.dumps(k) if isinstance(k, int | float | None) else k: item for k, item in returned.items()}
        if len(named) == len(returned) and named.keys() == wanted.keys():
            return {key: _like_json(named[key], item) for key, item in wanted.items()}
    return returned


def _is_close(returned: Any, wanted: Any, atol: float) -> bool:
    if type(returned) is not type(wanted):
        return False
    import numpy as np  # only now, since commands that grade nothing come here

    if np.shape(returned) != np.shape(wanted):
        return False
    return bool(np.allclose(returned, wanted, rtol=_RTOL, atol=atol))


def _is_close_json(returned: Any, wanted: Any, atol: float) -> bool:
    """Whether values are equal but for numbers within the tolerance, wherever they stand."""
    if isinstance(wanted, list) and isinstance(returned, list) and len(returned) == len(wanted):
        return all(_is_close_json(*pair, atol) for pair in zip(returned, wanted, strict=True))
    if isinstance(wanted, dict) and isinstance(returned, dict) and returned.keys() == wanted.keys():
        return all(_is_close_json(returned[key], item, atol) for key, item in wanted.items())
    if type(wanted) in (int, float) and type(returned) in (int, float) and returned != wanted:
        return _is_within(returned, wanted, atol + (_RTOL * abs(wanted) if type(wanted) is float else 0.0))
    return bool(returned == wanted)


def _is_within(one: Any, other: Any, allowed: float) -> bool:
    """Whether two numbers, or texts of numbers, differ by at most ``allowed``: no digit of theirs is rounded away."""
    with contextlib.suppress(ArithmeticError):  # infinities, NaN, an exponent of many digits
        return math.isfinite(allowed) and abs(Decimal(one) - Decimal(other)) <= Decimal(allowed)
    return False


def _is_surface(returned: Any, wanted: Any, arguments: tuple[Any, ...], atol: float) -> bool:
    """Whether it is the surface of a square pyramid, its height measured from the base to the apex."""
    edge, height = arguments
    surface = round(edge**2 + 2 * edge * math.hypot(edge / 2, height))
    return bool(returned == wanted or abs(returned - surface) <= atol)


def _is_digit_distance(returned: Any, wanted: Any, arguments: tuple[Any, ...], atol: float) -> bool:
    """Whether it is the sum of the differences of digits in the same place."""
    pairs = zip_longest(*(reversed(str(number)) for number in arguments), fillvalue="0")
    return bool(returned == wanted or returned == sum(abs(int(x) - int(y)) for x, y in pairs))


def _as_set(returned: Any) -> set[Any]:
    refuse_collisions(items := list(returned))
    return set(items)


def _not_none(returned: Any, wanted: Any) -> bool:
    """Whether both sides are None or False, or neither is."""
    found = wanted if isinstance(wanted, bool) else wanted is not None
    return bool(returned == found) if isinstance(returned, bool) else found == (returned is not None)


Judge = Callable[[Any, Any, tuple[Any, ...], float], bool]
"""Judges what was returned, given what the reference returned, the arguments and the tolerance."""
JUDGES: dict[str, Judge] = {
    "": lambda returned, wanted, arguments, atol: bool(returned == wanted),
    "set": lambda returned, wanted, arguments, atol: _as_set(returned) == _as_set(wanted),
    "not none": lambda returned, wanted, arguments, atol: _not_none(returned, wanted),
    "any": lambda returned, wanted, arguments, atol: True,
    "or zero": lambda returned, wanted, arguments, atol: bool(returned == wanted or returned == 0),
    "surface": _is_surface,
    "digits": _is_digit_distance,
    "root": lambda returned, wanted, arguments, atol: bool(
        abs(sum(each * math.pow(returned, power) for power, each in enumerate(arguments[0]))) <= atol
    ),
    "truth": lambda returned, wanted, arguments, atol: bool(returned) == bool(wanted),
    "sequence": lambda returned, wanted, arguments, atol: tuple(returned) == tuple(wanted),
}
"""Rules by name."""


def same_output(written: str, wanted: str, tolerance: float | None = 0.0) -> bool:
    """Whether outputs are equal by line, as text or numbers: 1.0 is 1.00. With tolerance 0, as in LiveCodeBench, 0.333
    is not 0.3333. `Tests.tolerance` explains other values."""
    one, other = ([line.strip() for line in text.strip().split("\n")] for text in (written, wanted))
    return len(one) == len(other) and all(_same_line(*pair, tolerance) for pair in zip(one, other, strict=True))


def _same_line(written: str, wanted: str, tolerance: float | None) -> bool:
    if written == wanted:
        return True
    if len(written.split()) != len(wanted.split()):
        return False
    pairs = list(zip(written.split(), wanted.split(), strict=True))
    # Decimal reads digits of every script, and underscores between them.
    if written.isascii() and "_" not in written:
        with contextlib.suppress(InvalidOperation, ValueError):
            if all(Decimal(a) == Decimal(b) for a, b in pairs):
                return True
    return tolerance != 0 and all(a == b or _is_close_text(a, b, tolerance) for a, b in pairs)


def _is_close_text(written: str, wanted: str, tolerance: float | None) -> bool:
    if not _NUMBER.fullmatch(written) or not _NUMBER.fullmatch(wanted):
        return False
    size, is_whole = abs(float(wanted)), wanted.lstrip("+-").isdigit()
    if tolerance is not None:
        allowed = tolerance if is_whole else tolerance * max(1.0, size)
    else:
        allowed = 0.0 if is_whole else _TOLERANCE * min(1.0, size) + _ROUNDING * size + _ZERO * (size == 0)
    return _is_within(written, wanted, allowed)
