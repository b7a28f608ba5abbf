"""What suites, graders and the harness share: a question, a judgement, and what a suite and a grader are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from azr.records import Judgement as Judgement
from azr.tasks.base import Verdict as Verdict

GRADERS = ("value", "calls", "stdin", "math", "choice")
"""How an answer is judged: as plain data, by calling its function, by running it on standard input, as mathematics, or
as one of the labels of a choice."""
GraderName = str
"""One of `GRADERS`, or a grader of the user's own: ``module:function``, or what an installed package calls one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One row of a suite, as a model is asked it and as its answer is judged."""

    id: str
    """Unique in its suite."""
    suite: str
    """Name of its suite."""
    group: str
    """Difficulty, subject or kind: a row of the table; ``kind/difficulty`` is a row within that of the kind."""
    message: str
    """Text of the user turn, before any chat template."""
    problem: str = ""
    """What is asked about, without the words that say how to answer; empty where they are not told apart."""
    gold: Any
    """What its grader needs; never shown to a model, and what is expected of it never enters a sandbox."""
    programs: tuple[str, ...] = ()
    """Programs that the row holds, which the task buffer of a run refuses."""


class Grader(Protocol):
    """Judges answers; nothing that a model writes makes it raise."""

    async def grade(self, question: Question, response: str) -> Judgement:
        """The verdict on a response to a question."""


GraderContext = AbstractAsyncContextManager[Grader]
"""``async with make_grader(name, executor) as grader``: what it started ends with the block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A benchmark: where its rows come from and how answers to them are judged."""

    name: str
    files: tuple[str, ...]
    """Files of its folder that it is read from."""
    rows: int
    """Questions of the complete suite; 0 where that is the file's own affair."""
    licence: str
    source: str
    """Where its files come from, in one sentence for somebody who has none."""
    grader: GraderName
    read: Callable[[Path], Sequence[Question]]
    """The questions that the files in a folder hold, in their order.

    Raises UserError with file and row number for the first line that is no row of this suite.
    """
    metric: str = "accuracy"
    """What the share of right answers is called in the suite's own literature."""
    locate: Callable[[Path], Sequence[Path]] | None = None
    """The files of a folder that it is read from, where that is not the first one of ``files`` that is there."""
    groups_alike: bool = False
    """In the whole suite its groups weigh alike, whatever their sizes."""
    of_tasks: bool = False
    """Its questions are tasks of self-play, whose programs run under the limits of training."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Known-good SHA-256 by file name, of those files that this project was tested with."""
