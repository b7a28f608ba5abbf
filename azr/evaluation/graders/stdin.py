"""Grade programs that read standard input: LiveCodeBench and APPS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from azr.evaluation.graders.extraction import code
from azr.evaluation.graders.sandboxed import standard_output, stdin_program
from azr.evaluation.question import Question
from azr.execution import CallStatus
from azr.records import Judgement
from azr.tasks.base import Verdict

if TYPE_CHECKING:
    from azr.answering import Executor


@dataclass(frozen=True, slots=True)
class Tests:
    """Gold of `StdinGrader`: input and expected output of every test."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(slots=True)
class StdinGrader:
    """Runs every test in its own process; a program is right if it passes all."""

    executor: Executor

    async def grade(self, question: Question, response: str) -> Judgement:
        gold: Tests = question.gold
        answer = code(response)
        if answer is None:
            return Judgement(verdict=Verdict.MALFORMED)
        return Judgement(verdict=await self._run(gold, stdin_program(answer)), answer=(("answer", answer),))

    async def _run(self, gold: Tests, program: str) -> Verdict:
        for given, wanted in zip(gold.inputs, gold.outputs, strict=True):
            written, call = await standard_output(self.executor, program, given)
            if call.status is CallStatus.LOST:
                return Verdict.UNGRADED
            if written is None or not same_output(written, wanted):
                return Verdict.WRONG
        return Verdict.RIGHT


def same_output(written: str, wanted: str) -> bool:
    """Whether outputs are equal by line, as text or numbers: 1.0 is 1.00, 0.333 is not 0.3333. As LiveCodeBench."""
    one, other = _lines(written), _lines(wanted)
    return len(one) == len(other) and all(map(_same_line, one, other))


def _lines(text: str) -> Sequence[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(written: str, wanted: str) -> bool:
    if written == wanted:
        return True
    one, other = written.split(), wanted.split()
    if len(one) != len(other):
        return False
    try:
        return all(Decimal(a) == Decimal(b) for a, b in zip(one, other, strict=True))
    except (InvalidOperation, ValueError):
        return False
