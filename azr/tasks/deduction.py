"""Deduction: given a program and its input, say what it returns."""

from __future__ import annotations

from collections.abc import Sequence

from azr import values
from azr.records import Task
from azr.tasks.base import Run, SingleCallKind, Verdict, propose_program, section_texts
from azr.tasks.prompts import Example, Instructions, PromptFacts, Section

PROPOSAL = Example(
    thought=(
        "The solver should have to keep a state over several rounds. I can put words into four buckets, with a bucket "
        "that depends on the length and on the position, so that no word can be skipped; sorting at the end hides the "
        "order of the words. Four words are enough."
    ),
    answer=(
        Section(
            "program",
            "def f(words, shift):\n"
            "    buckets = {}\n"
            "    for index, word in enumerate(words):\n"
            "        key = (len(word) + index * shift) % 4\n"
            "        buckets[key] = buckets.get(key, '') + word[0]\n"
            "    return sorted(buckets.items())",
        ),
        Section("input", "['tea', 'lemon', 'ox', 'plum'], 3"),
    ),
)
SOLUTION = Example(
    shown=(
        Section("program", "def f(text, n):\n    return text[n:] + text[:n].upper()"),
        Section("input", "'planet', 2"),
    ),
    thought="text[2:] is 'anet', and text[:2] is 'pl', in capitals 'PL'. Together that is 'anetPL'.",
    answer=(Section("output", "'anetPL'"),),
)


class Deduction(SingleCallKind):
    name = "deduction"
    reference_kinds = ("deduction",)

    def proposer_instructions(self, facts: PromptFacts) -> Instructions:
        goal = "A solver will see the program and the input, and has to predict the output."
        note = "Do not give an output: running your program gives it."
        heading = "Python exercises. Each has a function f and one input for it."
        return propose_program(goal, note, facts, PROPOSAL, heading)

    def solver_instructions(self, facts: PromptFacts) -> Instructions:
        return Instructions(
            task=(
                "Here are a Python program and an input. Work out what the program returns for this input. Write the "
                "returned value as a Python literal: strings in quotes, several returned values as a tuple."
            ),
            blocks="one ```output block with the returned value",
            example=SOLUTION,
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
