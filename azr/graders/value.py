"""Grade values: the output of a program, an input that leads to an output, or the answer to a self-play task."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from azr import values
from azr.execution import CallResult, CallStatus, ExecutionRequest
from azr.graders.question import Question
from azr.graders.stated_values import ProgramValue, is_data, stated_value
from azr.records import Judgement, Reason, Task
from azr.tasks.base import Run, Verdict
from azr.tasks.inputs import answer_may_state
from azr.tasks.normalize import parse
from azr.tasks.prompts import ChatFormat, CompactFormat
from azr.tasks.registry import KINDS

_REASONS: dict[Verdict, Reason] = {Verdict.MALFORMED: "unreadable", Verdict.UNGRADED: "lost"}
"""Reasons of verdicts on what was read as an answer."""
_UNBOUNDED = 2**30
"""Longest text of a value: what programs take and return is bounded by their pool, in which it may be longer."""
_TAKE = """
nan, inf = float("nan"), float("inf")
def _take(*given, **named):
    return given, named

def f():
    return _take({text}
)
"""
_RUN = """
def f(given, named):
    space = {{"__name__": "program"}}
    exec(compile({program!r}, "program", "exec"), space)
    return eval({call!r}, space, {{"given": given, "named": named}})
"""


@dataclass(slots=True)
class ValueGrader:
    """Compares plain data. A stated input is run, and its output is compared outside the sandbox."""

    execute: Run

    async def grade(self, question: Question, response: str) -> Judgement:
        gold: ProgramValue = question.gold
        text = stated_value(response, gold)
        if text is None:
            detail = f"states no {gold.asked}, or several"
            return Judgement(verdict=Verdict.MALFORMED, reason="no_answer", detail=detail)
        verdict = await self._try_input(gold, text) if gold.asked == "input" else _compare(gold, text)
        return Judgement(verdict=verdict, answer=(("answer", text),), reason=_REASONS.get(verdict, ""))

    async def _try_input(self, gold: ProgramValue, text: str) -> Verdict:
        try:
            arguments = values.canonical_arguments((values.parse_arguments(text), {}))
        except values.PlainDataError:
            lambdas = not is_data(gold.input, values.parse_arguments)  # some recorded inputs are functions
            if not _computes(text, lambdas):
                return Verdict.WRONG
            # Evaluate the arguments in another process, so that f gets data and no object that acts inside it.
            stated = await self._call(_TAKE.format(text=text), "")
            if stated.status is CallStatus.LOST:
                return Verdict.UNGRADED
            if stated.status is CallStatus.REJECTED and lambdas:
                return await self._judge(gold, f"{gold.entry}({text}\n)", "(), {}")
            value = values.parse(stated.value, max_bytes=_UNBOUNDED) if stated.value is not None else None
            if type(value) is not tuple or len(value) != 2 or type(value[0]) is not tuple or type(value[1]) is not dict:
                return Verdict.WRONG
            arguments = values.canonical_arguments(value, max_bytes=_UNBOUNDED)
        return await self._judge(gold, f"{gold.entry}(*given, **named)", arguments)

    async def _call(self, program: str, arguments: str) -> CallResult:
        request = ExecutionRequest(program=program, inputs=(arguments,), static_check=False, admitted=True)
        return (await self.execute(request)).outputs[0]

    async def _judge(self, gold: ProgramValue, stated: str, arguments: str) -> Verdict:
        # The gold program has its own namespace, so that it may recurse.
        call = await self._call(_RUN.format(program=gold.program, call=stated), arguments)
        if call.status is CallStatus.LOST:
            return Verdict.UNGRADED
        if call.status is not CallStatus.OK or call.value is None:
            return Verdict.WRONG
        return _compare(gold, call.value)


@dataclass(slots=True)
class TaskGrader:
    """Grades answers to self-play tasks by the task's kind; responses may be in either prompt format."""

    execute: Run

    async def grade(self, question: Question, response: str) -> Judgement:
        task: Task = question.gold
        sections = CompactFormat("answer").parse(response)
        if sections is None and not response.startswith("<|"):
            sections = ChatFormat(str, response_format="answer").parse(response)
        if sections is None:
            return Judgement(verdict=Verdict.MALFORMED, reason="no_answer")
        verdict = await KINDS[task.kind].grade(task, sections, self.execute)
        answer = tuple((str(each.label), each.text) for each in sections)
        return Judgement(verdict=verdict, answer=answer, reason=_REASONS.get(verdict, ""))


def _compare(gold: ProgramValue, text: str) -> Verdict:
    """Compare the text of a value with the output."""
    try:
        value = values.parse(text, max_bytes=_UNBOUNDED)
    except values.PlainDataError:
        return Verdict.MALFORMED
    try:
        return Verdict.RIGHT if values.equal(value, values.parse(gold.output)) else Verdict.WRONG
    except values.PlainDataError:
        return Verdict.UNGRADED


def _computes(text: str, lambdas: bool) -> bool:
    """Whether an argument list is an answer's: it computes, but does not search, and cannot reach the program."""
    tree = parse(f"_({text}\n)")
    match tree.body if tree is not None else []:
        case [ast.Expr(value=ast.Call(func=ast.Name(id="_"), args=given, keywords=words))]:
            stated = [*given, *(word.value for word in words)]
            return all(answer_may_state(each, lambdas=lambdas) for each in stated)
    return False
