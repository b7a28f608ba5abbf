"""What is asked of a run's index, and what it answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

ANY_RULE = "any rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task that entered the buffer, without its texts."""

    n: int
    id: str
    kind: str
    step: int
    solve_rate: float | None
    lines: int
    nodes: int | None
    """Of the syntax tree."""
    inputs: int
    parents: str
    """A JSON list of ids."""
    head: str
    """The program's beginning."""

    @property
    def parent_ids(self) -> list[str]:
        return list(json.loads(self.parents))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTexts:
    program: str
    message: str
    inputs: list[str]
    outputs: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRow:
    """A trajectory, without prompt and response."""

    n: int
    step: int
    line: int
    """Its place among the step's trajectories, from 0."""
    member: int
    start: int
    size: int
    role: str
    kind: str
    task_id: str
    grp: str
    outcome: str
    detail: str
    answer: str | None
    reward: float | None
    accuracy: float | None
    advantage: float | None
    mismatch: float | None
    prompt_tokens: int | None
    response_tokens: int | None
    finish_reason: str
    first_version: int | None
    last_version: int | None
    trained: int
    flags: str | None
    """A JSON list, see `flagged`."""
    trace_tokens: int
    """How many of its first tokens another model wrote."""

    @property
    def origin(self) -> str:
        """``another model's trace``, ``goes on from a trace``, or nothing for the policy's own response."""
        if not self.trace_tokens:
            return ""
        return "another model's trace" if self.trace_tokens == self.response_tokens else "goes on from a trace"

    @property
    def flagged(self) -> list[tuple[str, int, int]]:
        """Rules of the safety screen, and where in the response their patterns begin and end."""
        return [] if self.flags is None else [(str(rule), start, end) for rule, start, end in json.loads(self.flags)]

    @property
    def sections(self) -> list[tuple[str, str]]:
        """Labels and texts, shortened, that were read from the response."""
        return [] if self.answer is None else [(label, text) for label, text in json.loads(self.answer)]

    @property
    def phase(self) -> str:
        """``propose``, ``estimate``, ``solve`` or, for a row of a file, ``data``."""
        return self.grp.partition(":")[0]

    @property
    def file_kind(self) -> str:
        """The kind of a row of a file; empty for a task of self-play."""
        return self.kind if self.phase == "data" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Response lengths in tokens of one kind and role in one step."""

    step: int
    kind: str
    role: str
    count: int
    truncated: int
    mean: float
    p10: int
    p50: int
    p90: int
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks; what is None or empty matches all."""

    kind: str = ""
    text: str = ""
    """Anywhere in the program, its inputs, outputs, message or id; letters in either case."""
    step_from: int | None = None
    step_to: int | None = None
    rate_from: float | None = None
    rate_to: float | None = None
    lines_from: int | None = None
    lines_to: int | None = None
    nodes_from: int | None = None
    nodes_to: int | None = None
    order: str = "newest"
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilter:
    """Which trajectories; what is None or empty matches all."""

    step: int | None = None
    role: str = ""
    kind: str = ""
    outcome: str = ""
    task_id: str = ""
    trained: Literal["", "yes", "no"] = ""
    flag: str = ""
    """A rule of the safety screen, or `ANY_RULE`."""
    order: str = "step"
    offset: int = 0
    limit: int = 50
