"""Deduction: given a program and its input, say what it returns."""

from __future__ import annotations

from collections.abc import Sequence

from azr import values
from azr.records import Task
from azr.tasks.base import Run, SingleCallKind, Verdict, section_texts
from azr.tasks.prompts import Section


class Deduction(SingleCallKind):
    name = "deduction"
    reference_kinds = ("deduction",)

    async def grade(self, task: Task, answer: Sequence[Section], run: Run) -> Verdict:
        stated = section_texts(answer, "output")
        if stated is None:
            return Verdict.MALFORMED
        try:
            value = values.parse(stated[0])
        except values.PlainDataError:
            return Verdict.MALFORMED
        return Verdict.RIGHT if values.equal(value, values.parse(task.outputs[0])) else Verdict.WRONG
