"""Deduction: given a program and its input, say what it returns."""

from __future__ import annotations

from collections.abc import Sequence

from azr import values
from azr.records import Task
from azr.tasks.base import Run, SingleCallKind, Verdict, section_texts
from azr.tasks.examples import response_example
from azr.tasks.prompts import Instructions, PromptFacts, Section


class Deduction(SingleCallKind):
    name = "deduction"
    reference_kinds = ("deduction",)
    goal = "A solver will see the program and the input, and has to predict the output."
    note = "Do not give an output: running your program gives it."
    heading = "Python exercises. Each has a function f and one input for it."

    def solver_instructions(self, facts: PromptFacts) -> Instructions:
        return Instructions(
            task=(
                "Here are a Python program and an input. Work out what the program returns for this input. Write the "
                "returned value as a Python literal: strings in quotes, several returned values as a tuple."
            ),
            blocks="one ```output block with the returned value",
            example=response_example(self.name, "solution"),
            heading="Python exercises with their solutions. Each has a function f, an input for it, and the output.",
        )

    async def grade(self, task: Task, answer: Sequence[Section], run: Run) -> Verdict:
        stated = section_texts(answer, "output")
        if stated is None:
            return Verdict.MALFORMED
        try:
            value = values.parse(stated[0])
        except values.PlainDataError:
            return Verdict.MALFORMED
        return Verdict.RIGHT if values.equal(value, values.parse(task.outputs[0])) else Verdict.WRONG
