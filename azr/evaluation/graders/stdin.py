"""Grade programs that read standard input: LiveCodeBench and APPS."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from azr.evaluation.graders import code_blocks
from azr.evaluation.graders.sandboxed import shown, standard_output, stdin_program
from azr.evaluation.question import Question
from azr.execution import CallStatus
from azr.records import Judgement, Reason
from azr.tasks.base import Verdict

if TYPE_CHECKING:
    from azr.answering import Executor

_TOLERANCE = 1e-6
"""Tolerance of most judges; absolute from 1 on, so that amounts of money stay apart, and relative below."""
_ROUNDING = 1e-12
"""Relative error of a computation with floats."""
_ZERO = 1e-9
"""Largest number that equals an expected ``0.0``."""
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tests:
    """Gold of `StdinGrader`: input and expected output of every test."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tolerance: float | None = None
    """Tolerance of numbers: absolute, and relative too for an expected number with a point. 0: exact. None: an expected
    number with a point may differ by 1e-6, below 1 by one part in a million."""


@dataclass(slots=True)
class StdinGrader:
    """Runs every test in its own process; a program is right if it passes all."""

    executor: Executor

    async def grade(self, question: Question, response: str) -> Judgement:
        gold: Tests = question.gold
        answer = code_blocks.program(response)
        if answer is None:
            return Judgement(verdict=Verdict.MALFORMED, reason=Reason.NO_BLOCK)
        verdict, failure = await self._run(gold, stdin_program(answer))
        reason = Reason.LOST if verdict is Verdict.UNGRADED else ""
        return Judgement(verdict=verdict, detail=failure, answer=(("answer", answer),), reason=reason)

    async def _run(self, gold: Tests, program: str) -> tuple[Verdict, str]:
        """Return the verdict, and the first failure if there is one."""
        for given, wanted in zip(gold.inputs, gold.outputs, strict=True):
            written, call = await standard_output(self.executor, program, given)
            if call.status is CallStatus.LOST:
                return Verdict.UNGRADED, ""
            if written is None:
                ended = call.error if call.status is CallStatus.RAISED else call.status.value
                return Verdict.WRONG, f"the input {shown(given)} ended with {ended}"
            if not same_output(written, wanted, gold.tolerance):
                return Verdict.WRONG, f"the input {shown(given)} gave {shown(written)}, not {shown(wanted)}"
        return Verdict.RIGHT, ""


def same_output(written: str, wanted: str, tolerance: float | None = 0.0) -> bool:
    """Whether outputs are equal by line, as text or numbers: 1.0 is 1.00.

    With tolerance 0, as in LiveCodeBench, 0.333 is not 0.3333. `Tests.tolerance` explains other values.
    """
    one, other = _lines(written), _lines(wanted)
    return len(one) == len(other) and all(_same_line(*pair, tolerance) for pair in zip(one, other, strict=True))


def _lines(text: str) -> Sequence[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(written: str, wanted: str, tolerance: float | None) -> bool:
    if written == wanted:
        return True
    one, other = written.split(), wanted.split()
    if len(one) != len(other):
        return False
    try:
        # Decimal reads digits of every script, and underscores between them.
        if (
            written.isascii()
            and "_" not in written
            and all(Decimal(a) == Decimal(b) for a, b in zip(one, other, strict=True))
        ):
            return True
    except (InvalidOperation, ValueError):
        pass
    return tolerance != 0 and all(a == b or _is_close(a, b, tolerance) for a, b in zip(one, other, strict=True))


def _is_close(written: str, wanted: str, tolerance: float | None) -> bool:
    if not _NUMBER.fullmatch(written) or not _NUMBER.fullmatch(wanted):
        return False
    number, size, is_whole = float(wanted), abs(float(wanted)), wanted.lstrip("+-").isdigit()
    if tolerance is not None:
        allowed = tolerance if is_whole else tolerance * max(1.0, size)
    else:
        allowed = 0.0 if is_whole else _TOLERANCE * min(1.0, size) + _ROUNDING * size + _ZERO * (size == 0)
    return math.isfinite(number) and abs(float(written) - number) <= allowed
