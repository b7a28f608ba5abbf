"""The kinds of reasoning, by name: one class each, and tasks of one kind that are derived from a task of another."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

from azr import values
from azr.execution import CallResult, CallStatus, ExecutionRequest
from azr.executor.protocol import MAX_PROGRAM_BYTES, MAX_VALUE_BYTES, REQUEST_VALUES
from azr.records import Task
from azr.registry import Registry
from azr.tasks import base
from azr.tasks.base import Example, Instructions, PromptFacts, RejectReason, Run, Section, TaskKind, Verdict
from azr.tasks.inputs import read_input
from azr.tasks.normalize import fingerprint, is_program

_STATED = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
ProposalOrSolution = Literal["proposal", "solution"]
IDENTITY = "def f(a):\n    return a"
"""The program that self-play starts from."""
IDENTITY_INPUT = "'Hello world'"
NO_ERROR = "NoError"
"""Output of a task of the kind error whose program raises nothing."""
_REPEATS = 4
"""Evaluations of an answer's expression that must agree."""
MESSAGE_CHARS = 4000
"""Longest message. Real models write hints of a thousand characters now and then; the solver's prompt is the bound."""
SEED_INPUTS = ("'Hello world'", "1", "[1, 2]", "{'a': 1}", "(1, 'b')", "None")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """A program with calls.

    Example: ``Worked(program="def f(a):\\n    return a + 1", calls=(("1", "2"),), trace="a = 1\\nreturn 2")``
    """

    program: str
    calls: tuple[tuple[str, str], ...]
    """Canonical argument texts with what the call gives: a value, or for the error kind the name of an exception."""
    trace: str
    """What the first call binds and returns, or raises: a line for each line that runs, or for each round of a loop."""
    message: str = ""
    """Hint for the solver of an induction."""


WORKED, FAILING = (
    tuple(Worked(**each | {"calls": tuple(map(tuple, each["calls"]))}) for each in _STATED[name])
    for name in ("worked", "failing")
)
"""Examples in front of prompts that a model continues. None of their programs may become a task."""


def instructions(kind: str, role: ProposalOrSolution, facts: PromptFacts, **named: object) -> Instructions:
    """Return the instructions of a chat model that proposes or solves tasks of one of the project's kinds. ``named``:
    more names in the texts."""
    stated = _STATED[kind][role]
    is_given = facts.program_is_given and role == "proposal"
    whole = stated if "task" in stated else _STATED["propose_input" if is_given else "propose"] | stated
    named |= {"cpu_s": facts.cpu_s, "count": facts.induction_inputs, "goal": stated.get("goal")}
    named |= {"program_rules": program_rules(facts), "input_rules": _STATED["input_rules"], "note": stated.get("note")}
    named |= {"value_bytes": MAX_VALUE_BYTES, "values_bytes": REQUEST_VALUES * MAX_VALUE_BYTES}
    task, blocks, heading = (whole[part].format(**named) for part in ("task", "blocks", "heading"))
    if facts.easy_to_hard and "harder" in whole:
        heading = f"{heading} {whole['harder']}"
    return Instructions(task=task, blocks=blocks, example=_example(kind, role, is_given), heading=heading)


@lru_cache
def _example(kind: str, role: ProposalOrSolution, is_given: bool) -> Example:
    stated = _STATED[kind][role]
    shown, answer = (tuple(Section(*each) for each in stated.get(part, ())) for part in ("shown", "answer"))
    if is_given and answer[0].label == "program":
        shown, answer = answer[:1], answer[1:]
    return Example(shown=shown, thought=stated["thought"], answer=answer)


def program_rules(facts: PromptFacts) -> str:
    """Return English rules for programs, as the static check and the sandbox enforce them."""
    imports = f"Imports come first, and only of these modules: {', '.join(facts.modules)}. " if facts.modules else ""
    refused = f"Refused names are {', '.join(facts.refused_names)}. " if facts.refused_names else ""
    named = {"cpu_s": facts.cpu_s, "program_bytes": MAX_PROGRAM_BYTES, "value_bytes": MAX_VALUE_BYTES}
    return str(_STATED["program_rules"].format(imports=imports, refused=refused, **named).rstrip())


class SingleCallKind(TaskKind):
    """Base of the kinds whose tasks are one call; as it stands, the output is what the solver must find."""

    proposes_programs = plays_corpus = can_be_chained = True
    texts: ClassVar[str] = "deduction"
    """Table of prompts.toml with its instructions."""
    worked: ClassVar[tuple[Worked, ...]] = WORKED

    accepted_statuses: ClassVar[tuple[CallStatus, ...]] = (CallStatus.OK,)
    """Ends of a call that make a task."""

    def proposer_instructions(self, facts: PromptFacts) -> Instructions:
        return instructions(self.texts, "proposal", facts)

    def solver_instructions(self, facts: PromptFacts) -> Instructions:
        return instructions(self.texts, "solution", facts)

    def label(self, call: CallResult) -> str | None:
        """Return the task's output after this call; None if no task may have it."""
        return call.value

    def seed(self) -> Task:
        return self.make_task(f"seed-{self.name}", IDENTITY, (IDENTITY_INPUT,), (IDENTITY_INPUT,))

    def examples(self, induction_inputs: int) -> tuple[Task, ...]:
        return tuple(
            self.make_task(f"example-{index}", each.program, each.calls[0][:1], each.calls[0][1:])
            for index, each in enumerate(self.worked, 1)
        )

    def working(self, example: Task) -> tuple[Section, ...]:
        return tuple(Section("trace", each.trace) for each in self.worked if each.program == example.program)

    def reference(self, task: Task) -> tuple[Section, ...]:
        return (*self.proposal(task), Section("output", task.outputs[0]))

    def proposal(self, task: Task) -> tuple[Section, ...]:
        return (Section("program", task.program), Section("input", task.inputs[0]))

    async def validate(self, proposal: base.Proposal, run: Run) -> Task | RejectReason:
        # References show their outputs, so a proposal may state one too; what counts is what the program returns.
        stated = base.section_texts([s for s in proposal.sections if s.label != "output"], "program", "input")
        if stated is None:
            return RejectReason.MALFORMED
        program = stated[0].strip("\n")
        if len(program.encode("utf-8", "surrogatepass")) > proposal.source_bytes:
            return RejectReason.TOO_LARGE
        given = read_input(stated[1], program)
        if given is None or not is_program(program):
            return RejectReason.MALFORMED
        inputs = await base.evaluate_inputs((given,), program, run, proposal.repeats)
        if isinstance(inputs, RejectReason):
            return inputs
        result = await run(ExecutionRequest(program=program, inputs=inputs, repeats=proposal.repeats))
        reason = base.reject_reason(result, self.accepted_statuses)
        if reason is not None:
            return reason
        output = self.label(result.outputs[0])
        if output is None:
            return RejectReason.NOT_ALLOWED
        return self.make_task(proposal.id, program, inputs, (output,), parents=proposal.references, step=proposal.step)

    def solver_view(self, task: Task) -> tuple[Section, ...]:
        return self.proposal(task)

    def solution(self, task: Task) -> tuple[Section, ...]:
        return (Section("output", task.outputs[0]),)

    def derive_tasks(self, task: Task, pairs: Sequence[tuple[str, str]]) -> tuple[Task, ...]:
        if task.kind == self.name:
            return ()
        return tuple(
            self.make_task(
                f"{task.id}-{self.name}-{index}", task.program, (given,), (returned,), parents=(task,), step=task.step
            )
            for index, (given, returned) in enumerate(pairs)
        )


class Deduction(SingleCallKind):
    name = "deduction"
    reference_kinds = ("deduction",)

    async def grade(self, task: Task, answer: Sequence[Section], run: Run) -> Verdict:
        stated = base.section_texts(answer, "output")
        if stated is None:
            return Verdict.MALFORMED
        try:
            value = values.parse(stated[0])
        except values.PlainDataError:
            return Verdict.MALFORMED
        return Verdict.RIGHT if values.equal(value, values.parse(task.outputs[0])) else Verdict.WRONG


class Abduction(SingleCallKind):
    name = texts = "abduction"
    reference_kinds = ("abduction",)

    def solver_view(self, task: Task) -> tuple[Section, ...]:
        return (Section("program", task.program), Section("output", task.outputs[0]))

    def solution(self, task: Task) -> tuple[Section, ...]:
        return (Section("input", task.inputs[0]),)

    async def grade(self, task: Task, answer: Sequence[Section], run: Run) -> Verdict:
        stated = base.section_texts(answer, "input")
        given = read_input(stated[0], task.program, is_answer=True) if stated is not None else None
        if given is None:
            return Verdict.MALFORMED
        inputs = await base.evaluate_inputs((given,), "", run, _REPEATS)
        match inputs:
            case RejectReason.LOST:
                return Verdict.UNGRADED
            case RejectReason.FAILED:
                return Verdict.WRONG
            case RejectReason():
                return Verdict.MALFORMED
        result = await run(ExecutionRequest(program=task.program, inputs=inputs, admitted=True))
        if result.outputs[0].status is CallStatus.TIMEOUT:
            # Twice, the second time alone. If the recorded input is in time now, the answer is to blame.
            recorded = await run(ExecutionRequest(program=task.program, inputs=task.inputs, admitted=True))
            in_time = recorded.outputs[0].status is not CallStatus.TIMEOUT and not recorded.lost
            return Verdict.WRONG if in_time else Verdict.UNGRADED
        return base.grade_outputs(result, task.outputs)


class Error(SingleCallKind):
    name = texts = "error"
    reference_kinds = ("error",)
    can_be_chained = False  # an exception ends the first half
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
        stated = base.section_texts(answer, "output")
        if stated is None or not stated[0].strip().isidentifier():
            return Verdict.MALFORMED
        return Verdict.RIGHT if stated[0].strip() == task.outputs[0] else Verdict.WRONG

    def io_pairs(self, task: Task) -> tuple[tuple[str, str], ...]:
        """Empty: an error task has no output values."""
        return ()

    def derive_tasks(self, task: Task, pairs: Sequence[tuple[str, str]]) -> tuple[Task, ...]:
        """None: every pair would have the same answer, no error."""
        return ()


class Induction(TaskKind):
    name = "induction"
    reference_kinds = ("deduction", "abduction", "induction")
    plays_corpus = can_be_chained = True

    def proposer_instructions(self, facts: PromptFacts) -> Instructions:
        """With a whole answer: a model that sees fewer inputs than it must give will give as few."""
        stated = instructions("induction", "proposal", facts, message_chars=MESSAGE_CHARS)
        inputs = [Section("input", f"{list(range(i, i + i % 6))}, {i // 2 + 1}") for i in range(facts.induction_inputs)]
        return replace(stated, example=replace(stated.example, answer=(*inputs, *stated.example.answer)))

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

    async def validate(self, proposal: base.Proposal, run: Run) -> Task | RejectReason:
        """Takes a message and at least the configured number of inputs, of which the first ones are kept. No two of
        them may be equal, ``1`` and ``1.0`` included: a repeat would show the solver a hidden answer."""
        messages = [s.text.strip() for s in proposal.sections if s.label == "message"]
        texts = [s.text for s in proposal.sections if s.label == "input"][: proposal.induction_inputs]
        fewest = proposal.fewest_induction_inputs
        fewest = proposal.induction_inputs if fewest is None else fewest
        if len(messages) != 1 or len(texts) < fewest:
            return RejectReason.MALFORMED
        message, program = messages[0], proposal.references[0].program
        if len(message) > MESSAGE_CHARS or len(program.encode("utf-8", "surrogatepass")) > proposal.source_bytes:
            return RejectReason.TOO_LARGE
        if not is_program(program):  # only a seed's
            return RejectReason.MALFORMED
        if "".join(program.split()) in "".join(message.split()):
            return RejectReason.NOT_ALLOWED
        given = [each for each in (read_input(text, program) for text in texts) if each is not None]
        if len(given) < len(texts):
            return RejectReason.MALFORMED
        stated = await base.evaluate_inputs(given, program, run, proposal.repeats)
        if isinstance(stated, RejectReason):
            return stated
        kept: dict[str, tuple[object, ...]] = {}
        for text in stated:
            arguments = values.parse_arguments(text)
            if not any(values.equal(arguments, known) for known in kept.values()):
                kept[text] = arguments
        inputs = tuple(kept)
        if len(inputs) < fewest:
            return RejectReason.MALFORMED
        result = await run(ExecutionRequest(program=program, inputs=inputs, repeats=proposal.repeats))
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


def _num_shown(task: Task) -> int:
    """Return the number of pairs that the solver sees."""
    return len(task.inputs) // 2


_ALL: tuple[TaskKind, ...] = (Deduction(), Abduction(), Induction(), Error())
KINDS = Registry("task kind", {kind.name: kind for kind in _ALL}, "selfplay.kinds may hold")


def missing_examples(kinds: Sequence[str], num_inputs: int) -> str | None:
    """Return why prompts of these kinds cannot be worked examples to continue; None if they can. ``num_inputs``: of an
    induction."""
    for kind in kinds:
        examples = KINDS[kind].examples(num_inputs)
        if not examples:
            return (
                f"The kind {kind} has no worked examples for the completion format: set model.prompt_format to chat, "
                "or remove the kind from selfplay.kinds."
            )
        longest = max(len(each.inputs) for each in examples)
        if not KINDS[kind].proposes_programs and num_inputs > longest:
            return (
                f"selfplay.induction_inputs is {num_inputs}, and the worked examples of the completion format have "
                f"{longest} inputs: lower it."
            )
    return None


def derived_tasks(task: Task, kinds: Sequence[str], most: int, rng: random.Random) -> list[Task]:
    """Return at most ``most`` random tasks of each kind, made from the known pairs of a task."""
    pairs = KINDS[task.kind].io_pairs(task)
    chosen: list[Task] = []
    for name in kinds:
        tasks = KINDS[name].derive_tasks(task, pairs)
        chosen += rng.sample(tasks, min(most, len(tasks)))
    return chosen
