"""What a reasoning kind is: the seam between the tasks and everything that plays them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from azr.records import ExecutionRequest, ExecutionResult, Task
from azr.tasks.prompts import Instructions, Section


class Verdict(StrEnum):
    """Grade of one solution."""

    RIGHT = "right"
    WRONG = "wrong"
    MALFORMED = "malformed"
    UNGRADED = "ungraded"
    """The executor lost the call: no reward, no training."""


class RejectReason(StrEnum):
    """First step of the proposal funnel that a proposal did not pass."""

    MALFORMED = "malformed"
    NOT_ALLOWED = "not_allowed"
    FAILED = "failed"
    NON_DETERMINISTIC = "non_deterministic"
    TOO_LARGE = "too_large"
    DUPLICATE = "duplicate"
    IN_BENCHMARK = "in_benchmark"
    """The program is one of the held-out exam: neither stored nor trained on."""
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A parsed proposal that has not run yet."""

    program: str
    inputs: tuple[str, ...]
    """Canonical argument texts."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalLimits:
    """Bounds that a proposal is held to."""

    source_bytes: int
    induction_inputs: int
    repeats: int


class TaskKind(Protocol):
    """One file in this folder and one line in the registry. Nothing else knows the kinds by name.

    Sections a prompt or response consists of are built from a task, so that prompts, pretraining
    documents and parsing cannot drift apart.
    """

    @property
    def name(self) -> str: ...

    @property
    def instructions(self) -> Instructions: ...

    @property
    def reference_kinds(self) -> tuple[str, ...]:
        """Kinds whose tasks may be shown as references to a proposer of this kind."""
        ...

    def seed(self) -> Task:
        """The identity program as a task of this kind."""
        ...

    def reference(self, task: Task) -> tuple[Section, ...]:
        """A past task as shown to a proposer."""
        ...

    def proposal(self, task: Task) -> tuple[Section, ...]:
        """What a proposer would have written to propose this task."""
        ...

    def solver_view(self, task: Task) -> tuple[Section, ...]:
        """What the solver sees."""
        ...

    def solution(self, task: Task) -> tuple[Section, ...]:
        """A right answer."""
        ...

    def io_pairs(self, task: Task) -> tuple[tuple[str, str], ...]:
        """Inputs of the task's program, each with the value that it returned."""
        ...

    def derive_tasks(self, task: Task, pairs: Sequence[tuple[str, str]]) -> tuple[Task, ...]:
        """Tasks of this kind, other than the task itself, that these runs of its program make."""
        ...

    def references_per_prompt(self, wanted: int) -> int:
        """How many past tasks a proposal prompt of this kind shows when ``wanted`` are configured."""
        ...

    def read_proposal(
        self, sections: Sequence[Section], references: Sequence[Task], rules: ProposalLimits
    ) -> Proposal | RejectReason:
        """The proposal a response states."""
        ...

    def validation(self, proposal: Proposal, rules: ProposalLimits) -> ExecutionRequest:
        """What must be run to learn the proposal's outputs."""
        ...

    def admit(
        self, proposal: Proposal, result: ExecutionResult, *, id: str, step: int, parents: tuple[str, ...]
    ) -> Task | RejectReason:
        """The task that the proposal becomes, given what running it showed."""
        ...

    def verification(self, task: Task, sections: Sequence[Section]) -> ExecutionRequest | Verdict:
        """What must be run to grade a solution, or its verdict when nothing has to run."""
        ...

    def verdict(self, task: Task, result: ExecutionResult) -> Verdict:
        """The grade, given what running the verification showed. The expected value never left this process."""
        ...
