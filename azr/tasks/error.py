"""Error: given a program and its input, name the exception it raises, or say that it raises none."""

from __future__ import annotations

from collections.abc import Sequence

from azr.execution import CallResult, CallStatus
from azr.records import Task
from azr.tasks.base import IDENTITY, IDENTITY_INPUT, Run, SingleCallKind, Verdict, section_texts
from azr.tasks.examples import FAILING, response_example
from azr.tasks.prompts import Instructions, PromptFacts, Section

NO_ERROR = "NoError"


class Error(SingleCallKind):
    name = "error"
    reference_kinds = ("error",)
    accepted_statuses = (CallStatus.OK, CallStatus.RAISED)
    worked = FAILING
    goal = (
        "A solver will see the program and the input, and has to say which exception the call raises, if any. "
        "Classes of your own are allowed as exceptions."
    )
    note = "Do not give the exception: running your program shows it."
    heading = "Python exercises. Each has a function f and one input, for which f may raise an exception."

    def solver_instructions(self, facts: PromptFacts) -> Instructions:
        return Instructions(
            task=(
                "Here are a Python program and an input. Work out whether calling the program with this input raises "
                f"an exception. Answer with the name of the exception's class, or with {NO_ERROR}."
            ),
            blocks=f"one ```output block with the name of the exception's class, or {NO_ERROR}",
            example=response_example(self.name, "solution"),
            heading=(
                "Python exercises on exceptions, with their solutions. Each output is the name of the exception that "
                f"the call of f raises, or {NO_ERROR} if it returns a value. It is never the value."
            ),
        )

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
