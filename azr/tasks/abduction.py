"""Abduction: given a program and its output, find an input that leads there."""

from __future__ import annotations

from collections.abc import Sequence

from azr.execution import CallStatus, ExecutionRequest
from azr.records import Task
from azr.tasks.base import RejectReason, Run, SingleCallKind, Verdict, evaluate_inputs, grade_outputs, section_texts
from azr.tasks.inputs import read_input
from azr.tasks.prompts import Section

_REPEATS = 4
"""Evaluations of an expression that must agree."""


class Abduction(SingleCallKind):
    name = texts = "abduction"
    reference_kinds = ("abduction",)

    def solver_view(self, task: Task) -> tuple[Section, ...]:
        return (Section("program", task.program), Section("output", task.outputs[0]))

    def solution(self, task: Task) -> tuple[Section, ...]:
        return (Section("input", task.inputs[0]),)

    async def grade(self, task: Task, answer: Sequence[Section], run: Run) -> Verdict:
        stated = section_texts(answer, "input")
        given = read_input(stated[0], task.program, is_answer=True) if stated is not None else None
        if given is None:
            return Verdict.MALFORMED
        inputs = await evaluate_inputs((given,), task.program, run, _REPEATS)
        match inputs:
            case RejectReason.LOST:
                return Verdict.UNGRADED
            case RejectReason.FAILED:
                return Verdict.WRONG
            case RejectReason():
                return Verdict.MALFORMED
        result = await run(ExecutionRequest(program=task.program, inputs=inputs, admitted=True))
        if result.outputs[0].status is CallStatus.TIMEOUT:
            # Twice, the second time alone. If the recorded input is in time now, the answer is to blame.
            recorded = await run(ExecutionRequest(program=task.program, inputs=task.inputs, admitted=True))
            in_time = recorded.outputs[0].status is not CallStatus.TIMEOUT and not recorded.lost
            return Verdict.WRONG if in_time else Verdict.UNGRADED
        return grade_outputs(result, task.outputs)
