"""Worked examples of prompts, as examples.toml states them. None of their programs may become a task."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from azr.tasks.prompts import Example, Section

_STATED = tomllib.loads(Path(__file__).with_name("examples.toml").read_text(encoding="utf-8"))


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


def response_example(kind: str, role: Literal["proposal", "solution"]) -> Example:
    """Return the whole response that the instructions of a kind show."""
    stated = _STATED[kind][role]
    shown, answer = (tuple(Section(*each) for each in stated.get(part, ())) for part in ("shown", "answer"))
    return Example(shown=shown, thought=stated["thought"], answer=answer)
