"""Leave out the rows of a file whose questions evaluation suites hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from azr.config import DataConfig
from azr.datasets.hub import write_rows
from azr.datasets.rows import BY_NAME, stored_rows
from azr.errors import UserError
from azr.evaluation.suites import exam, load_suites, suites_of
from azr.evaluation.suites.files import Row
from azr.graders.question import Question
from azr.records import grouped

OUT = (".jsonl", ".jsonl.gz")
Match = Literal["exactly", "13 words", "13 words of a trace"]
WORDS = 13
"""The authors of GPT-3 took as many."""
STOCK = 3
"""A run of words in so many different questions of the suites, such as "where m and n are relatively prime positive
integers", says nothing about where a question is from."""
_WORD = re.compile(r"[^\W_]+")


def normal(text: str) -> str:
    """Return the text without differences of case and white space."""
    return " ".join(text.casefold().split())


class Overlap:
    """All questions of some suites."""

    def __init__(self, suites: Mapping[str, Sequence[Question]]) -> None:
        """``suites``: questions by the name of their suite."""
        self.counts = {name: len(questions) for name, questions in suites.items()}
        pairs = [(each.problem or each.message, name) for name, questions in suites.items() for each in questions]
        self._exact = grouped((normal(text), name) for text, name in pairs)
        # What differs in its punctuation alone is the same question.
        texts = grouped((" ".join(_WORD.findall(text.casefold())), name) for text, name in pairs)
        by_run = grouped((run, names) for text, names in texts.items() for run in set(_runs(text)))
        self._runs = {run: set[str]().union(*found) for run, found in by_run.items() if len(found) < STOCK}

    def find(self, *texts: str, traces: Iterable[str] = ()) -> dict[str, Match]:
        """Return the suites that hold one of the texts or a line of it, or a question with a run of words that a text
        or a trace has."""
        found: dict[str, Match] = dict.fromkeys(self._share_run(traces), "13 words of a trace")
        found |= dict.fromkeys(self._share_run(texts), "13 words")
        lines = (line for text in texts for line in (text, *text.split("\n")))
        return found | dict.fromkeys((name for line in lines for name in self._exact.get(normal(line), ())), "exactly")

    def _share_run(self, texts: Iterable[str]) -> set[str]:
        """Return the suites with a question of which a text has a run of words."""
        return {name for text in texts for run in _runs(text.casefold()) for name in self._runs.get(run, ())}


def _runs(text: str) -> Iterator[int]:
    """Yield hashes, of 64 bits, of all runs of `WORDS` words."""
    words = _WORD.findall(text)
    return map(hash, zip(*(words[at:] for at in range(WORDS)), strict=False))


def load_overlap(folder: Path) -> Overlap:
    """Return all suites that the folder has files of, and the project's exam. Raises UserError when it has none."""
    names = [name for name, suite in suites_of(folder).items() if suite.located(folder)]
    if not [name for name in names if name != exam.NAME]:
        raise UserError(f"{folder} holds no file of a suite: `azr eval --list` names those that are read.")
    # Whatever the user evaluates with is what must not be trained on.
    return Overlap({each.suite.name: each.all_questions for each in load_suites(names, folder, altered=True)})


@dataclass(slots=True, kw_only=True)
class Counts:
    """Rows of a file that were read and written, and why the others were left out."""

    read: int = 0
    written: int = 0
    matches: dict[tuple[str, Match], list[int]] = field(default_factory=dict)
    """Numbers of rows, from 1, by suite and kind of match; a row may be in several suites."""


def leave_out(path: Path, out: Path, overlap: Overlap, data: DataConfig = BY_NAME) -> Counts:
    """Write the rows of a file that no suite holds, as they are.

    Raises UserError, and writes nothing, for a file that is none of rows, one of which nothing is left, and a file that
    cannot be written.
    """
    counts = Counts()

    def kept() -> Iterator[Row]:
        for counts.read, (row, fields) in enumerate(stored_rows(path, data), 1):
            asked = "\n".join(turn["content"] for turn in row.turns if turn["role"] == "user")
            # Suites of programs are compared by the program that they ask about.
            program = [fields["program"]] if isinstance(fields.get("program"), str) else []
            found = overlap.find(asked, *program, traces=row.traces)
            for match in found.items():
                counts.matches.setdefault(match, []).append(counts.read)
            if not found:
                counts.written += 1
                yield fields
        if not counts.written:
            raise UserError(f"None of the {counts.read:,} rows of {path} is left, so {out} was not written.")

    write_rows(out, kept())
    return counts


def check_out(source: Path, out: Path) -> None:
    """Raise UserError when the file cannot be written, as far as that is known beforehand."""
    if not out.name.endswith(OUT):
        raise UserError(f"{out} is of no known form: its name must end with {' or '.join(OUT)}.")
    if not out.parent.is_dir():
        raise UserError(f"There is no folder {out.parent} to write {out.name} into: make it, or name another file.")
    if out.exists():
        what = "is the file of rows itself" if out.samefile(source) else "exists already"
        raise UserError(f"{out} {what}: name another file to write.")
