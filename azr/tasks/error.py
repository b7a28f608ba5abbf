"""Error: given a program and its input, name the exception it raises, or say that it raises none."""

from __future__ import annotations

from collections.abc import Sequence

from azr.execution import CallResult, CallStatus
from azr.records import Task
from azr.tasks.base import IDENTITY, IDENTITY_INPUT, Run, SingleCallKind, Verdict, section_texts
from azr.tasks.instructions import FAILING
from azr.tasks.prompts import Section

NO_ERROR = "NoError"


class Error(SingleCallKind):
    name = texts = "error"
    reference_kinds = ("error",)
    accepted_statuses = (CallStatus.OK, CallStatus.RAISED)
    worked = FAILING

    def label(self, call: CallResult) -> str | None:
        if call.status is CallStatus.OK:
            return NO_ERROR
        # A class of the program's own by this name would say the opposite of what happened.
        return None if call.error == NO_ERROR else call.error

    def seed(self) -> Task:
        return self.make_task(f"seed-{self.name}", IDENTITY, (IDENTITY_INPUT,), (NO_ERROR,))

    async def grade(self, task: Task, answer: Sequence[Section], run: Run) -> Verdict:
        stated = section_texts(answer, "output")
        if stated is None or not stated[0].strip().isidentifier():
            return Verdict.MALFORMED
        return Verdict.RIGHT if stated[0].strip() == task.outputs[0] else Verdict.WRONG

    def io_pairs(self, task: Task) -> tuple[tuple[str, str], ...]:
        """None: the name of an exception is no value."""
        return ()

    def derive_tasks(self, task: Task, pairs: Sequence[tuple[str, str]]) -> tuple[Task, ...]:
        """None: every pair would have the same answer, no error."""
        return ()
