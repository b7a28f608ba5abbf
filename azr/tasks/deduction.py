"""Deduction: given a program and its input, say what it returns."""

from __future__ import annotations

from collections.abc import Sequence

from azr import values
from azr.records import ExecutionRequest, ExecutionResult, Task
from azr.tasks.base import Verdict
from azr.tasks.prompts import Instructions, Section
from azr.tasks.single_call import SingleCallKind, proposal_wording, texts


class Deduction(SingleCallKind):
    name = "deduction"
    reference_kinds = ("deduction",)
    instructions = Instructions(
        propose=proposal_wording("A solver will see the program and the input, and has to predict the output."),
        solve=(
            "Work out what the program returns for this input. Write the returned value as a Python literal, "
            "strings in quotes, several returned values as a tuple."
        ),
        propose_answer=("program", "input"),
        solve_answer="output",
    )

    def verification(self, task: Task, sections: Sequence[Section]) -> ExecutionRequest | Verdict:
        found = texts(sections, "output")
        if found is None:
            return Verdict.MALFORMED
        try:
            answer = values.parse(found[0])
        except values.PlainDataError:
            return Verdict.MALFORMED
        return Verdict.RIGHT if values.equal(answer, values.parse(task.outputs[0])) else Verdict.WRONG

    def verdict(self, task: Task, result: ExecutionResult) -> Verdict:
        raise AssertionError("a deduction is graded without running anything")
