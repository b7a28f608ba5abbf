"""Error: given a program and its input, name the exception it raises, or say that it raises none."""

from __future__ import annotations

from collections.abc import Sequence

from azr.records import CallStatus, ExecutionRequest, ExecutionResult, Task
from azr.tasks.base import Proposal, RejectReason, Verdict
from azr.tasks.prompts import Instructions, Section
from azr.tasks.single_call import SingleCallKind, proposal_wording, refusal_of, texts

NO_ERROR = "NoError"


class Error(SingleCallKind):
    name = "error"
    reference_kinds = ("error",)
    instructions = Instructions(
        propose=proposal_wording(
            "A solver will see the program and the input, and has to say which exception the call raises, if any. "
            "Classes of your own are allowed as exceptions."
        ),
        solve=(
            "Work out whether calling the program with this input raises an exception. Answer with the name of the "
            f"exception's class, or with {NO_ERROR}."
        ),
        propose_answer=("program", "input"),
        solve_answer="output",
    )

    def seed(self) -> Task:
        task = super().seed()
        return self._task(Proposal(program=task.program, inputs=task.inputs), NO_ERROR, id=task.id, step=0, parents=())

    def io_pairs(self, task: Task) -> tuple[tuple[str, str], ...]:
        return ()

    def derive_tasks(self, task: Task, pairs: Sequence[tuple[str, str]]) -> tuple[Task, ...]:
        """None: every run that returned a value would have the same answer."""
        return ()

    def admit(
        self, proposal: Proposal, result: ExecutionResult, *, id: str, step: int, parents: tuple[str, ...]
    ) -> Task | RejectReason:
        refused = refusal_of(result, allowed=(CallStatus.OK, CallStatus.RAISED))
        if refused is not None:
            return refused
        output = result.outputs[0]
        label = NO_ERROR if output.status is CallStatus.OK else output.error
        assert label is not None
        if output.status is CallStatus.RAISED and label == NO_ERROR:
            # A class of the program's own by this name would make the label say the opposite of what happened.
            return RejectReason.NOT_ALLOWED
        return self._task(proposal, label, id=id, step=step, parents=parents)

    def verification(self, task: Task, sections: Sequence[Section]) -> ExecutionRequest | Verdict:
        found = texts(sections, "output")
        if found is None or not found[0].strip().isidentifier():
            return Verdict.MALFORMED
        return Verdict.RIGHT if found[0].strip() == task.outputs[0] else Verdict.WRONG

    def verdict(self, task: Task, result: ExecutionResult) -> Verdict:
        raise AssertionError("an error task is graded without running anything")
