"""Parts of prompts: labelled sections, facts, instructions and worked examples, whose texts prompts.toml states."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from azr.execution import ADMITTED_SHARE
from azr.executor.protocol import MAX_PROGRAM_BYTES, MAX_VALUE_BYTES, REQUEST_VALUES

LABELS = ("program", "input", "output", "message")
"""Labels of sections; a kind may have others, see `azr.tasks.base.TaskKind.labels`."""
_STATED = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
ProposalOrSolution = Literal["proposal", "solution"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """A program with calls.

    Example: ``Worked(program="def f(a):\\n    b = a + 1\\n    return b", calls=(("1", "2"),), message="Count.")``
    """

    program: str
    calls: tuple[tuple[str, str], ...]
    """Canonical argument texts with what the call gives: a value, or for the error kind the name of an exception."""
    message: str = ""
    """Hint for the solver of an induction."""


WORKED, FAILING = (
    tuple(Worked(**each | {"calls": tuple(map(tuple, each["calls"]))}) for each in _STATED[name])
    for name in ("worked", "failing")
)
"""Examples in front of prompts that a model continues. None of their programs may become a task."""


def instructions(
    kind: str, role: ProposalOrSolution, facts: PromptFacts, example: Example | None = None, **named: object
) -> Instructions:
    """Return the instructions of a chat model that proposes or solves tasks of one of the project's kinds. ``example``:
    a whole response, in place of that of prompts.toml. ``named``: more names in the texts."""
    stated = _STATED[kind][role]
    whole = stated if "task" in stated else _STATED["propose"] | stated
    named |= {"cpu_s": facts.cpu_s, "count": facts.induction_inputs, "goal": stated.get("goal")}
    named |= {"program_rules": program_rules(facts), "input_rules": _STATED["input_rules"], "note": stated.get("note")}
    named |= {"value_bytes": MAX_VALUE_BYTES, "values_bytes": REQUEST_VALUES * MAX_VALUE_BYTES}
    task, blocks, heading = (whole[part].format(**named) for part in ("task", "blocks", "heading"))
    return Instructions(task=task, blocks=blocks, example=example or _example(kind, role), heading=heading)


@lru_cache
def _example(kind: str, role: ProposalOrSolution) -> Example:
    stated = _STATED[kind][role]
    shown, answer = (tuple(Section(*each) for each in stated.get(part, ())) for part in ("shown", "answer"))
    return Example(shown=shown, thought=stated["thought"], answer=answer)


def program_rules(facts: PromptFacts) -> str:
    """Return English rules for programs, as the static check and the sandbox enforce them."""
    imports = f"Imports come first, and only of these modules: {', '.join(facts.modules)}. " if facts.modules else ""
    refused = f"Refused names are {', '.join(facts.refused_names)}. " if facts.refused_names else ""
    named = {"cpu_s": facts.cpu_s, "program_bytes": MAX_PROGRAM_BYTES, "value_bytes": MAX_VALUE_BYTES}
    return str(_STATED["program_rules"].format(imports=imports, refused=refused, **named).rstrip())
