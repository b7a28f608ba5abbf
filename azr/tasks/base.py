"""Interface of a reasoning kind: how a proposal becomes a task, and how an answer to a task is graded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from azr import values
from azr.execution import ADMITTED_SHARE, CallStatus, ExecutionRequest, ExecutionResult
from azr.executor.protocol import MAX_PROGRAM_BYTES, REPEATS
from azr.records import Sample, Task
from azr.tasks.inputs import Expressions, evaluated_inputs, evaluation_request
from azr.tasks.normalize import fingerprint

Run = Callable[[ExecutionRequest], Awaitable[ExecutionResult]]
"""Executes a program behind isolation; no code that a model wrote runs anywhere else."""

LABELS = ("program", "input", "output", "message")
"""Labels of sections; a kind may have others, see `TaskKind.labels`."""


@dataclass(frozen=True, slots=True)
class Section:
    """One labelled piece of a prompt or a response."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """Facts in prompts about the checks that a response will meet."""

    induction_inputs: int = 10
    """Inputs that an induction proposal must give."""
    wall_s: float = 1.0
    """Time limit of one call, seconds."""
    modules: tuple[str, ...] = ()
    """Modules that a program may import."""
    refused_names: tuple[str, ...] = ()
    """Builtin functions that a program must not use."""
    program_is_given: bool = False
    """A proposal is about a program that the prompt gives, for which it states an input."""
    easy_to_hard: bool = False
    """References go from easy to hard, so prompts of examples ask for a program that is harder than theirs."""
    tools: str = "none"
    """`selfplay.tools`."""

    @property
    def cpu_s(self) -> float:
        """CPU time within which a call is neither refused nor late."""
        return self.wall_s * ADMITTED_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A short thought and the answer after it, as a good response would give them."""

    shown: tuple[Section, ...] = ()
    """The question that it answers; empty for proposals."""
    thought: str
    answer: tuple[Section, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """Instructions of one role of a kind, in English."""

    task: str
    """The task, and the rules for the answer."""
    blocks: str
    """The fenced blocks that the answer must hold, such as "one ```output block with the returned value"."""
    example: Example
    heading: str = ""
    """The line above the numbered examples of the completion format; empty for a kind that it cannot write."""


class Verdict(StrEnum):
    """Grade of one solution."""

    RIGHT = "right"
    WRONG = "wrong"
    MALFORMED = "malformed"
    UNGRADED = "ungraded"
    """The executor lost the call: no reward, no training."""


class RejectReason(StrEnum):
    """First check that a proposal did not pass."""

    MALFORMED = "malformed"
    NOT_ALLOWED = "not_allowed"
    FAILED = "failed"
    NON_DETERMINISTIC = "non_deterministic"
    TOO_LARGE = "too_large"
    DUPLICATE = "duplicate"
    IN_BENCHMARK = "in_benchmark"
    """The program is one of the held-out benchmark: not stored, and trained on only as far as `reward.repeat` has a
    price for it."""
    LOST = "lost"
    """The executor lost a call: no reward, no training."""


REPEATED = RejectReason.DUPLICATE, RejectReason.IN_BENCHMARK
"""Rejections of programs that run well, but are in the buffer or in an evaluation."""


def teaches_nothing(sample: Sample) -> bool:
    """Whether a sample is a proposal that repeats what is there, or a task that is always or never solved."""
    return sample.role == "proposer" and (sample.verdict in REPEATED or sample.solve_rate in (0.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Sections written by a proposer, the tasks that its prompt showed, and the bounds that it has to keep."""

    id: str
    """Id of the task that it may become."""
    sections: Sequence[Section]
    references: Sequence[Task] = ()
    """Past tasks of the prompt: the parents of the task."""
    step: int = 0
    source_bytes: int = MAX_PROGRAM_BYTES
    """Longest program, UTF-8."""
    induction_inputs: int = 10
    """Most inputs of an induction task; of longer lists the first ones are kept."""
    fewest_induction_inputs: int | None = None
    """Number of different inputs required, if not all of them: repeated ones are then dropped."""
    repeats: int = REPEATS
    """Runs that must agree."""


class TaskKind(ABC):
    """A kind of reasoning: a class in `azr.tasks.registry`, or one in a plug-in. Prompts, answers
    and pretraining documents are all built from the same sections of a task, so they cannot differ."""

    name: ClassVar[str]
    reference_kinds: ClassVar[tuple[str, ...]]
    """Kinds whose tasks may be shown as references to a proposer of this kind."""
    labels: ClassVar[tuple[str, ...]] = LABELS
    """Labels of sections in its prompts and responses; a response with others is malformed."""
    proposes_programs: ClassVar[bool] = False
    """Whether a proposal holds a program."""
    plays_corpus: ClassVar[bool] = False
    """Whether its proposals may be about functions of `selfplay.corpus`. One that proposes programs then also takes an
    input alone; another has a program as its only reference."""
    can_be_chained: ClassVar[bool] = False
    """Whether two of its tasks can make another, whose program gives the first one's output to the second."""

    @abstractmethod
    def seed(self) -> Task:
        """Return the identity program as a task of this kind."""

    @abstractmethod
    def reference(self, task: Task) -> tuple[Section, ...]:
        """Return a past task as shown to a proposer."""

    def references_per_prompt(self, count: int) -> int:
        """Return the number of past tasks in a proposal prompt when ``count`` are configured."""
        return count

    @abstractmethod
    def proposal(self, task: Task) -> tuple[Section, ...]:
        """Return the sections of a proposal of this task."""

    def examples(self, induction_inputs: int) -> tuple[Task, ...]:
        """Return worked examples for the completion format, which are never accepted as tasks; none if the kind cannot
        be played in it. ``induction_inputs``: number of inputs of an induction."""
        return ()

    def working(self, example: Task) -> tuple[Section, ...]:
        """Return the blocks that work out the answer to one of the `examples`; none if it is stated at once."""
        return ()

    @abstractmethod
    async def validate(self, proposal: Proposal, run: Run) -> Task | RejectReason:
        """Return the proposal's task, or the first check that it fails. Raises nothing of its own."""

    @abstractmethod
    def proposer_instructions(self, facts: PromptFacts) -> Instructions:
        """Return the instructions of a chat model that proposes a task."""

    @abstractmethod
    def solver_instructions(self, facts: PromptFacts) -> Instructions:
        """Return the instructions of a chat model that solves a task."""

    @abstractmethod
    def solver_view(self, task: Task) -> tuple[Section, ...]:
        """Return what the solver sees."""

    @abstractmethod
    def solution(self, task: Task) -> tuple[Section, ...]:
        """Return a right answer."""

    @abstractmethod
    async def grade(self, task: Task, answer: Sequence[Section], run: Run) -> Verdict:
        """Return the verdict on an answer. The expected output is compared here and never sent to a sandbox."""

    def io_pairs(self, task: Task) -> tuple[tuple[str, str], ...]:
        """Return inputs of the task's program with the values that it returned; none without a program."""
        return tuple(zip(task.inputs, task.outputs, strict=True)) if task.program else ()

    def derive_tasks(self, task: Task, pairs: Sequence[tuple[str, str]]) -> tuple[Task, ...]:
        """Return other tasks of this kind that known pairs of the task's program make."""
        return ()

    def fingerprint(self, program: str, inputs: Sequence[str]) -> str:
        """Return a hash that tasks share which count as equal."""
        return fingerprint(program)

    def make_task(
        self,
        id: str,
        program: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        *,
        message: str = "",
        parents: Sequence[Task] = (),
        step: int = 0,
    ) -> Task:
        """Return a task of this kind."""
        return Task(
            id=id,
            kind=self.name,
            program=program,
            inputs=inputs,
            outputs=outputs,
            fingerprint=self.fingerprint(program, inputs),
            message=message,
            parents=tuple(task.id for task in parents),
            step=step,
        )


def section_texts(sections: Sequence[Section], *labels: str) -> tuple[str, ...] | None:
    """Return the sections' texts if they carry exactly these labels, in any order; else None."""
    if sorted(s.label for s in sections) != sorted(labels):
        return None
    by_label = {s.label: s.text for s in sections}
    return tuple(by_label[label] for label in labels)


async def evaluate_inputs(
    inputs: Sequence[str | Expressions], program: str, run: Run, repeats: int
) -> tuple[str, ...] | RejectReason:
    """Return canonical arguments of all inputs, or why expressions among them give none. ``program``: whose names they
    may use; empty for answers, which may use none."""
    computed = [each for each in inputs if not isinstance(each, str)]
    found: tuple[str, ...] | None = ()
    if computed:
        result = await run(evaluation_request(computed, program, repeats))
        reason = reject_reason(result)
        if reason is not None:
            return reason
        found = evaluated_inputs(result, len(computed))
    if found is None:
        return RejectReason.MALFORMED
    evaluated = iter(found)
    return tuple(each if isinstance(each, str) else next(evaluated) for each in inputs)


def reject_reason(result: ExecutionResult, accepted: Sequence[CallStatus] = (CallStatus.OK,)) -> RejectReason | None:
    """Return why a program that was run with repeats makes no task. None if all calls ended in an accepted status and
    were found to be deterministic."""
    if result.static_check:
        return RejectReason.NOT_ALLOWED
    if result.lost:
        return RejectReason.LOST
    if result.deterministic is False:
        return RejectReason.NON_DETERMINISTIC
    bad = next((call.status for call in result.outputs if call.status not in accepted), None)
    if bad is None:
        return None if result.deterministic else RejectReason.NON_DETERMINISTIC
    return RejectReason.TOO_LARGE if bad is CallStatus.OUTPUT_TOO_LARGE else RejectReason.FAILED


def grade_outputs(result: ExecutionResult, expected: Sequence[str]) -> Verdict:
    """Return right if every call returned the expected plain value, ungraded if the executor lost one."""
    if result.lost:
        return Verdict.UNGRADED
    for call, wanted in zip(result.outputs, expected, strict=True):
        if call.value is None or not values.equal(values.parse(call.value), values.parse(wanted)):
            return Verdict.WRONG
    return Verdict.RIGHT
