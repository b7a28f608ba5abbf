"""Questions, suites and graders, as every module of evaluation knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from azr.errors import UserError
from azr.records import Judgement

GRADERS = ("value", "calls", "stdin", "math", "choice")
"""How an answer is judged: as plain data, by calling its function, by running it on standard input, as mathematics, or
as one of the labels of a choice."""
TASK = "task of self-play"
"""The grader of the exam: each task's kind judges the answers to it, under the limits of training. Suites and rows of
users cannot name it."""
GraderName = str
"""One of `GRADERS`, `TASK`, or a user's grader: ``module:function``, or a name that an installed package gives one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One row of a suite: what a model is asked, and what its answer is judged by."""

    id: str
    """Unique in its suite."""
    suite: str
    """Name of its suite."""
    group: str
    """Row of the table, such as a difficulty or a subject; ``kind/difficulty`` is a row within that of the kind."""
    message: str
    """Text of the user turn, before any chat template; the whole prompt if ``opened`` is set."""
    opened: str = ""
    """Beginning of the answer at the end of the message. The model continues such a message as it is."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end an answer, in addition to the stops of the model's format."""
    problem: str = ""
    """The problem statement without answer-format instructions; empty if the data does not separate them."""
    gold: Any
    """Arguments of the grader. No model sees it, and expected values in it never enter a sandbox."""
    programs: tuple[str, ...] = ()
    """Programs of the row, which the task buffer of a run rejects."""


class Grader(Protocol):
    """Judges answers; nothing that a model writes makes it raise."""

    async def grade(self, question: Question, response: str) -> Judgement:
        """Judge a response to a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A benchmark: its files and its grader."""

    name: str
    files: tuple[str, ...]
    """Files of its folder that it is read from."""
    rows: int
    """Number of questions in the complete suite; 0 if it depends on the file."""
    licence: str
    source: str
    """One sentence on where to get the files."""
    grader: GraderName
    read_file: Callable[[Path], Sequence[Question]]
    """Read the questions of a file, in their order. Raises UserError with file and row number for the first line that
    is not a row of this suite."""
    metric: str = "accuracy"
    """Name of the share of right answers in the suite's literature."""
    locate: Callable[[Path], Sequence[Path]] | None = None
    """Return the files of a folder to read; None stands for the first one of ``files`` that exists."""
    groups_alike: bool = False
    """Groups have equal weight in the suite's score, whatever their sizes."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 by file name, of the files that this project was tested with."""

    def located(self, folder: Path) -> Sequence[Path]:
        """Return the existing files that the suite is read from."""
        if self.locate is not None:
            return self.locate(folder)
        return [path for name in self.files if (path := folder / name).is_file()][:1]

    def read(self, folder: Path) -> list[Question]:
        """Read the questions from the files in a folder. Raises UserError if there are none, and as `read_file`."""
        if not (paths := self.located(folder)):
            raise UserError(f"{folder} has no {' or '.join(self.files)}: `azr eval --list` says where it comes from.")
        return [question for path in paths for question in self.read_file(path)]
