"""What is asked of a run's index, and what it answers."""

from __future__ import annotations

import json
from dataclasses import dataclass

ANY_RULE = "any rule"
ORIGINS = {"sampled": "", "prefix": "goes on from a trace", "trace": "another model's trace"}
"""Words for `azr.records.Sample.origin`."""


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
class SampleFilter:
    """Which samples; what is None or empty matches all."""

    step: int | None = None
    role: str = ""
    kind: str = ""
    verdict: str = ""
    problem_id: str = ""
    used: str = ""
    flag: str = ""
    """A rule of the safety screen, or `ANY_RULE`."""
    order: str = "step"
    offset: int = 0
    limit: int = 50
