"""Induction: given half of the input/output pairs and a hint, write the program."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from azr import values
from azr.records import ExecutionRequest, ExecutionResult, Task
from azr.tasks.base import Proposal, ProposalLimits, RejectReason, Verdict
from azr.tasks.grading import all_equal
from azr.tasks.normalize import fingerprint, parse_program
from azr.tasks.prompts import Instructions, Section
from azr.tasks.single_call import IDENTITY, PROGRAM_RULES, canonical_input, refusal_of, texts, validation

MESSAGE_CHARS = 1000
SEED_INPUTS = ("'Hello world'", "1", "[1, 2]", "{'a': 1}", "(1, 'b')", "None")


class Induction:
    name = "induction"
    reference_kinds = ("deduction", "abduction", "induction")
    instructions = Instructions(
        propose=(
            "Here is a Python program. Choose inputs for it, all different, that together show how it behaves, "
            "edge cases included, so that someone who sees only some inputs with their outputs can work out the "
            "program, but only by thinking hard. Add a short message that helps, without stating the code. Give each "
            "input as comma-separated arguments in a block of its own."
        ),
        solve=(
            "Write a Python program that maps every input to its output, and that will also be right on inputs you "
            f"are not shown. {PROGRAM_RULES}"
        ),
        propose_answer=("input", "message"),
        solve_answer="program",
    )

    def seed(self) -> Task:
        proposal = Proposal(program=IDENTITY, inputs=SEED_INPUTS, message="The input comes back unchanged.")
        return self._task(proposal, SEED_INPUTS, id="seed-induction", step=0, parents=())

    def reference(self, task: Task) -> tuple[Section, ...]:
        return (Section("program", task.program),)

    def proposal(self, task: Task) -> tuple[Section, ...]:
        return (*(Section("input", text) for text in task.inputs), Section("message", task.message))

    def solver_view(self, task: Task) -> tuple[Section, ...]:
        pairs: list[Section] = []
        for given, output in list(zip(task.inputs, task.outputs, strict=True))[: _shown(task)]:
            pairs += [Section("input", given), Section("output", output)]
        return (*pairs, Section("message", task.message))

    def solution(self, task: Task) -> tuple[Section, ...]:
        return (Section("program", task.program),)

    def io_pairs(self, task: Task) -> tuple[tuple[str, str], ...]:
        return tuple(zip(task.inputs, task.outputs, strict=True))

    def derive_tasks(self, task: Task, pairs: Sequence[tuple[str, str]]) -> tuple[Task, ...]:
        """None: an induction needs more runs than other tasks hold, and a message."""
        return ()

    def references_per_prompt(self, wanted: int) -> int:
        return 1

    def read_proposal(
        self, sections: Sequence[Section], references: Sequence[Task], rules: ProposalLimits
    ) -> Proposal | RejectReason:
        """A message and at least the configured number of inputs, of which the first ones are kept.

        No two of them may be equal, ``1`` and ``1.0`` included: a repeat would show the solver a hidden answer.
        """
        messages = [s.text.strip() for s in sections if s.label == "message"]
        inputs = [canonical_input(s.text) for s in sections if s.label == "input"][: rules.induction_inputs]
        known = [text for text in inputs if text is not None]
        if any(s.label not in ("input", "message") for s in sections) or len(messages) != 1:
            return RejectReason.MALFORMED
        if len(known) < rules.induction_inputs or _repeats(known):
            return RejectReason.MALFORMED
        if len(messages[0]) > MESSAGE_CHARS:
            return RejectReason.TOO_LARGE
        program = references[0].program
        if _squeezed(program) in _squeezed(messages[0]):
            return RejectReason.NOT_ALLOWED
        return Proposal(program=program, inputs=tuple(known), message=messages[0])

    def validation(self, proposal: Proposal, rules: ProposalLimits) -> ExecutionRequest:
        return validation(proposal, rules)

    def admit(
        self, proposal: Proposal, result: ExecutionResult, *, id: str, step: int, parents: tuple[str, ...]
    ) -> Task | RejectReason:
        refused = refusal_of(result)
        if refused is not None:
            return refused
        outputs = tuple(o.value for o in result.outputs if o.value is not None)
        return self._task(proposal, outputs, id=id, step=step, parents=parents)

    def verification(self, task: Task, sections: Sequence[Section]) -> ExecutionRequest | Verdict:
        found = texts(sections, "program")
        if found is None or parse_program(found[0].strip("\n")) is None:
            return Verdict.MALFORMED
        return ExecutionRequest(program=found[0].strip("\n"), inputs=task.inputs[_shown(task) :])

    def verdict(self, task: Task, result: ExecutionResult) -> Verdict:
        return all_equal(result, task.outputs[_shown(task) :])

    def _task(
        self, proposal: Proposal, outputs: tuple[str, ...], *, id: str, step: int, parents: tuple[str, ...]
    ) -> Task:
        return Task(
            id=id,
            kind=self.name,
            program=proposal.program,
            inputs=proposal.inputs,
            outputs=outputs,
            fingerprint=fingerprint(proposal.program, *sorted(proposal.inputs)),
            message=proposal.message,
            parents=parents,
            step=step,
        )


def _shown(task: Task) -> int:
    """How many of the pairs the solver sees."""
    return len(task.inputs) // 2


def _repeats(inputs: Sequence[str]) -> bool:
    """Whether any two argument texts state equal arguments."""
    arguments = [values.parse_arguments(text) for text in inputs]
    return any(values.equal(a, b) for a, b in combinations(arguments, 2))


def _squeezed(text: str) -> str:
    return "".join(text.split())
