"""What deduction, abduction and error share: a proposal is one program and one input."""

from __future__ import annotations

from collections.abc import Sequence

from azr import values
from azr.records import CallStatus, ExecutionRequest, ExecutionResult, Task
from azr.tasks.base import Proposal, ProposalLimits, RejectReason
from azr.tasks.normalize import fingerprint, parse_program
from azr.tasks.prompts import Label, Section

IDENTITY = "def f(a):\n    return a"
IDENTITY_INPUT = "'Hello world'"

_REFUSED: dict[CallStatus, RejectReason] = {
    CallStatus.RAISED: RejectReason.FAILED,
    CallStatus.TIMEOUT: RejectReason.FAILED,
    CallStatus.MEMORY: RejectReason.FAILED,
    CallStatus.CRASHED: RejectReason.FAILED,
    CallStatus.REJECTED: RejectReason.FAILED,
    CallStatus.OUTPUT_TOO_LARGE: RejectReason.TOO_LARGE,
    CallStatus.LOST: RejectReason.LOST,
}


def refusal_of(result: ExecutionResult, allowed: Sequence[CallStatus] = (CallStatus.OK,)) -> RejectReason | None:
    """Why an executed proposal is refused; None when every call ended in an allowed status."""
    if result.screen:
        return RejectReason.NOT_ALLOWED
    if result.lost:
        return RejectReason.LOST
    if result.deterministic is False:
        return RejectReason.NON_DETERMINISTIC
    return next((_REFUSED[o.status] for o in result.outputs if o.status not in allowed), None)


def texts(sections: Sequence[Section], *labels: Label) -> tuple[str, ...] | None:
    """Texts of the sections when they carry exactly these labels, in any order; else None."""
    if sorted(s.label for s in sections) != sorted(labels):
        return None
    by_label = {s.label: s.text for s in sections}
    return tuple(by_label[label] for label in labels)


def canonical_input(text: str) -> str | None:
    """Argument text in canonical form; None when it is not plain data."""
    try:
        return values.canonical_arguments(values.parse_arguments(text))
    except values.PlainDataError:
        return None


def read_program_and_input(sections: Sequence[Section], rules: ProposalLimits) -> Proposal | RejectReason:
    """A proposal of exactly one program that defines ``f`` and one plain-data argument list."""
    found = texts(sections, "program", "input")
    if found is None:
        return RejectReason.MALFORMED
    program, given = found[0].strip("\n"), canonical_input(found[1])
    if len(program.encode("utf-8", "surrogatepass")) > rules.source_bytes:
        return RejectReason.TOO_LARGE
    if given is None or parse_program(program) is None:
        return RejectReason.MALFORMED
    return Proposal(program=program, inputs=(given,))


def validation(proposal: Proposal, rules: ProposalLimits) -> ExecutionRequest:
    """Run the proposed program on the proposed inputs, as often as determinism is checked."""
    return ExecutionRequest(program=proposal.program, inputs=proposal.inputs, repeats=rules.repeats)


class SingleCallKind:
    """Base of the kinds whose tasks are one call; as it stands, the output is what the solver must find."""

    name: str
    reference_kinds: tuple[str, ...]

    def seed(self) -> Task:
        return self._task(
            Proposal(program=IDENTITY, inputs=(IDENTITY_INPUT,)),
            IDENTITY_INPUT,
            id=f"seed-{self.name}",
            step=0,
            parents=(),
        )

    def reference(self, task: Task) -> tuple[Section, ...]:
        return (
            Section("program", task.program),
            Section("input", task.inputs[0]),
            Section("output", task.outputs[0]),
        )

    def proposal(self, task: Task) -> tuple[Section, ...]:
        return (Section("program", task.program), Section("input", task.inputs[0]))

    def solver_view(self, task: Task) -> tuple[Section, ...]:
        return (Section("program", task.program), Section("input", task.inputs[0]))

    def solution(self, task: Task) -> tuple[Section, ...]:
        return (Section("output", task.outputs[0]),)

    def io_pairs(self, task: Task) -> tuple[tuple[str, str], ...]:
        return ((task.inputs[0], task.outputs[0]),)

    def derive_tasks(self, task: Task, pairs: Sequence[tuple[str, str]]) -> tuple[Task, ...]:
        if task.kind == self.name:
            return ()
        return tuple(
            self._task(
                Proposal(program=task.program, inputs=(given,)),
                returned,
                id=f"{task.id}-{self.name}-{number}",
                step=task.step,
                parents=(task.id,),
            )
            for number, (given, returned) in enumerate(pairs)
        )

    def references_per_prompt(self, wanted: int) -> int:
        return wanted

    def read_proposal(
        self, sections: Sequence[Section], references: Sequence[Task], rules: ProposalLimits
    ) -> Proposal | RejectReason:
        return read_program_and_input(sections, rules)

    def validation(self, proposal: Proposal, rules: ProposalLimits) -> ExecutionRequest:
        return validation(proposal, rules)

    def admit(
        self, proposal: Proposal, result: ExecutionResult, *, id: str, step: int, parents: tuple[str, ...]
    ) -> Task | RejectReason:
        refused = refusal_of(result)
        if refused is not None:
            return refused
        value = result.outputs[0].value
        assert value is not None
        return self._task(proposal, value, id=id, step=step, parents=parents)

    def _task(self, proposal: Proposal, output: str, *, id: str, step: int, parents: tuple[str, ...]) -> Task:
        return Task(
            id=id,
            kind=self.name,
            program=proposal.program,
            inputs=proposal.inputs,
            outputs=(output,),
            fingerprint=fingerprint(proposal.program),
            parents=parents,
            step=step,
        )


PROGRAM_RULES = (
    "The entry function is called f, takes at least one argument and returns a plain value (numbers, strings, "
    "lists, tuples, sets, dictionaries). It must give the same result on every run: no randomness, no clock, no "
    "files, no network, no printing, no state outside of it. Put imports first and nothing after the last function."
)


def proposal_wording(goal: str) -> str:
    """English instructions for proposing a program and an input, towards a goal of the kind."""
    return (
        f"Invent a new Python program together with one input for it. {goal} Make it need several steps of careful "
        f"reasoning, and unlike the reference programs in structure and idea. {PROGRAM_RULES} Give the input as "
        "comma-separated arguments, strings in quotes. Think first about what would be hard, then answer."
    )
