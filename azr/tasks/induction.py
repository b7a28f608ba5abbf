"""Induction: given half of the input/output pairs and a hint, write the program."""

from __future__ import annotations

from collections.abc import Sequence

from azr import values
from azr.execution import ExecutionRequest
from azr.records import Task
from azr.tasks import base
from azr.tasks.base import IDENTITY, Proposal, ProposalLimits, RejectReason, Run, TaskKind, Verdict
from azr.tasks.inputs import read_input
from azr.tasks.instructions import WORKED, instructions
from azr.tasks.normalize import fingerprint, is_program
from azr.tasks.prompts import Example, Instructions, PromptFacts, Section

MESSAGE_CHARS = 4000
"""Longest message. Real models write hints of a thousand characters now and then; the solver's prompt is the bound."""
SEED_INPUTS = ("'Hello world'", "1", "[1, 2]", "{'a': 1}", "(1, 'b')", "None")


class Induction(TaskKind):
    name = "induction"
    reference_kinds = ("deduction", "abduction", "induction")

    def proposer_instructions(self, facts: PromptFacts) -> Instructions:
        example = _proposal_example(facts.induction_inputs)
        return instructions("induction", "proposal", facts, example, message_chars=MESSAGE_CHARS)

    def solver_instructions(self, facts: PromptFacts) -> Instructions:
        return instructions("induction", "solution", facts)

    def seed(self) -> Task:
        message = "The input comes back unchanged."
        return self.make_task("seed-induction", IDENTITY, SEED_INPUTS, SEED_INPUTS, message=message)

    def examples(self, induction_inputs: int) -> tuple[Task, ...]:
        tasks = []
        for index, each in enumerate(WORKED, 1):
            inputs, outputs = zip(*each.calls[:induction_inputs], strict=True)
            tasks.append(self.make_task(f"example-{index}", each.program, inputs, outputs, message=each.message))
        return tuple(tasks)

    def fingerprint(self, program: str, inputs: Sequence[str]) -> str:
        return fingerprint(program, *sorted(inputs))

    def reference(self, task: Task) -> tuple[Section, ...]:
        return (Section("program", task.program),)

    def references_per_prompt(self, count: int) -> int:
        """One: the program that the proposal is about."""
        return 1

    def proposal(self, task: Task) -> tuple[Section, ...]:
        return (*(Section("input", text) for text in task.inputs), Section("message", task.message))

    async def validate(self, proposal: Proposal, limits: ProposalLimits, run: Run) -> Task | RejectReason:
        """Takes a message and at least the configured number of inputs, of which the first ones are kept. No two of
        them may be equal, ``1`` and ``1.0`` included: a repeat would show the solver a hidden answer."""
        messages = [s.text.strip() for s in proposal.sections if s.label == "message"]
        texts = [s.text for s in proposal.sections if s.label == "input"][: limits.induction_inputs]
        fewest = limits.induction_inputs if limits.fewest_induction_inputs is None else limits.fewest_induction_inputs
        if len(messages) != 1 or len(texts) < fewest:
            return RejectReason.MALFORMED
        message, program = messages[0], proposal.references[0].program
        if len(message) > MESSAGE_CHARS:
            return RejectReason.TOO_LARGE
        if _strip_whitespace(program) in _strip_whitespace(message):
            return RejectReason.NOT_ALLOWED
        given = [each for each in (read_input(text, program) for text in texts) if each is not None]
        if len(given) < len(texts):
            return RejectReason.MALFORMED
        stated = await base.evaluate_inputs(given, program, run, limits.repeats)
        if isinstance(stated, RejectReason):
            return stated
        inputs = _without_repeats(stated)
        if len(inputs) < fewest:
            return RejectReason.MALFORMED
        result = await run(ExecutionRequest(program=program, inputs=inputs, repeats=limits.repeats))
        reason = base.reject_reason(result)
        if reason is not None:
            return reason
        outputs = tuple(call.value for call in result.outputs if call.value is not None)
        return self.make_task(
            proposal.id, program, inputs, outputs, message=message, parents=proposal.references, step=proposal.step
        )

    def solver_view(self, task: Task) -> tuple[Section, ...]:
        shown: list[Section] = []
        for arguments, output in self.io_pairs(task)[: _num_shown(task)]:
            shown += [Section("input", arguments), Section("output", output)]
        return (*shown, Section("message", task.message))

    def solution(self, task: Task) -> tuple[Section, ...]:
        return (Section("program", task.program),)

    async def grade(self, task: Task, answer: Sequence[Section], run: Run) -> Verdict:
        stated = base.section_texts(answer, "program")
        if stated is None or not is_program(stated[0].strip("\n")):
            return Verdict.MALFORMED
        hidden = slice(_num_shown(task), None)
        result = await run(ExecutionRequest(program=stated[0].strip("\n"), inputs=task.inputs[hidden]))
        return base.grade_outputs(result, task.outputs[hidden])


def _proposal_example(count: int) -> Example:
    """A whole answer: a model that sees fewer inputs than it must give will give as few."""
    inputs = [Section("input", f"{list(range(index, index + index % 6))}, {index // 2 + 1}") for index in range(count)]
    message = Section("message", "Look at where an item stands in the list, not at what it is.")
    return Example(
        shown=(
            Section("program", "def f(items, step):\n    return [x for i, x in enumerate(items) if i % step == 0]"),
        ),
        thought=(
            "Every step-th item is kept. Lists of growing length show that it is about positions; the empty list and "
            "step 1, where everything stays, are edge cases."
        ),
        answer=(*inputs, message),
    )


def _num_shown(task: Task) -> int:
    """Return the number of pairs that the solver sees."""
    return len(task.inputs) // 2


def _without_repeats(inputs: Sequence[str]) -> tuple[str, ...]:
    """Return argument texts without those equal in value to an earlier one."""
    kept: dict[str, tuple[object, ...]] = {}
    for text in inputs:
        arguments = values.parse_arguments(text)
        if not any(values.equal(arguments, known) for known in kept.values()):
            kept[text] = arguments
    return tuple(kept)


def _strip_whitespace(text: str) -> str:
    return "".join(text.split())
