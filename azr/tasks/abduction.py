"""Abduction: given a program and its output, find an input that leads there."""

from __future__ import annotations

from collections.abc import Sequence

from azr.records import ExecutionRequest, ExecutionResult, Task
from azr.tasks.base import Verdict
from azr.tasks.grading import all_equal
from azr.tasks.prompts import Instructions, Section
from azr.tasks.single_call import SingleCallKind, canonical_input, proposal_wording, texts


class Abduction(SingleCallKind):
    name = "abduction"
    reference_kinds = ("abduction",)
    instructions = Instructions(
        propose=proposal_wording("A solver will see the program and the output, and has to find an input for it."),
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

    def verification(self, task: Task, sections: Sequence[Section]) -> ExecutionRequest | Verdict:
        found = texts(sections, "input")
        answer = canonical_input(found[0]) if found is not None else None
        if answer is None:
            return Verdict.MALFORMED
        return ExecutionRequest(program=task.program, inputs=(answer,), screen=False)

    def verdict(self, task: Task, result: ExecutionResult) -> Verdict:
        return all_equal(result, task.outputs)
