"""Abduction: given a program and its output, find an input that leads there."""

from __future__ import annotations

from collections.abc import Sequence

from azr.records import ExecutionRequest, Task
from azr.tasks.base import Run, SingleCallKind, Verdict, canonical_input, grade_outputs, invent_program, section_texts
from azr.tasks.prompts import Instructions, Section


class Abduction(SingleCallKind):
    name = "abduction"
    reference_kinds = ("abduction",)
    instructions = Instructions(
        propose=invent_program("A solver will see the program and the output, and has to find an input for it."),
        solve=(
            "Find one input for which the program returns this output. Several may be right; give one, as "
            "comma-separated arguments, strings in quotes."
        ),
        propose_answer=("program", "input"),
        solve_answer="input",
    )

    def solver_view(self, task: Task) -> tuple[Section, ...]:
        return (Section("program", task.program), Section("output", task.outputs[0]))

    def solution(self, task: Task) -> tuple[Section, ...]:
        return (Section("input", task.inputs[0]),)

    async def grade(self, task: Task, answer: Sequence[Section], run: Run) -> Verdict:
        stated = section_texts(answer, "input")
        arguments = canonical_input(stated[0]) if stated is not None else None
        if arguments is None:
            return Verdict.MALFORMED
        # The program was checked when it was proposed.
        result = await run(ExecutionRequest(program=task.program, inputs=(arguments,), static_check=False))
        return grade_outputs(result, task.outputs)
