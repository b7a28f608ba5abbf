"""Finds questions of evaluation suites among those that are to be trained on: exactly, and by runs of 13 words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from azr.errors import UserError
from azr.evaluation.question import Question
from azr.evaluation.suites import exam, load_suites, located, suites_of

Match = Literal["exactly", "13 words", "13 words of a trace"]
WORDS = 13
"""The authors of GPT-3 took as many."""
STOCK = 3
"""A run of words in so many different questions of the suites, such as "where m and n are relatively prime positive
integers", says nothing about where a question is from."""
_WORD = re.compile(r"[^\W_]+")


def normal(text: str) -> str:
    """The text without differences of case and white space."""
    return " ".join(text.casefold().split())


class Overlap:
    """All questions of some suites."""

    def __init__(self, suites: Mapping[str, Iterable[Question]]) -> None:
        """``suites``: by name."""
        self.counts: dict[str, int] = {}
        self._exact: dict[str, set[str]] = {}
        texts: dict[str, set[str]] = {}
        for name, questions in suites.items():
            self.counts[name] = 0
            for question in questions:
                text = question.problem or question.message
                self.counts[name] += 1
                self._exact.setdefault(normal(text), set()).add(name)
                # What differs in its punctuation alone is the same question.
                texts.setdefault(" ".join(_WORD.findall(text.casefold())), set()).add(name)
        self._runs: dict[int, set[str]] = {}
        times: dict[int, int] = {}
        for text, names in texts.items():
            for run in set(_runs(text)):
                self._runs.setdefault(run, set()).update(names)
                times[run] = times.get(run, 0) + 1
        for run, count in times.items():
            if count >= STOCK:
                del self._runs[run]

    def find(self, question: str, traces: Iterable[str] = ()) -> dict[str, Match]:
        """The suites that hold the question, or a question with a run of words that this one or a trace of it has."""
        found: dict[str, Match] = {}
        for trace in traces:
            found |= dict.fromkeys(self._share_run(trace), "13 words of a trace")
        found |= dict.fromkeys(self._share_run(question), "13 words")
        return found | dict.fromkeys(self._exact.get(normal(question), ()), "exactly")

    def _share_run(self, text: str) -> set[str]:
        """The suites with a question of which the text has a run of words."""
        return {name for run in _runs(text.casefold()) if run in self._runs for name in self._runs[run]}


def _runs(text: str) -> Iterator[int]:
    """Hashes, of 64 bits, of all runs of `WORDS` words."""
    words = _WORD.findall(text)
    return map(hash, zip(*(words[at:] for at in range(WORDS)), strict=False))


def load_overlap(folder: Path) -> Overlap:
    """All suites that the folder has files of, and the project's exam. Raises UserError when it has none."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}: give the one that holds the files of the suites.")
    names = [name for name, suite in suites_of(folder).items() if located(suite, folder)]
    if not [name for name in names if name != exam.NAME]:
        raise UserError(f"{folder} holds no file of a suite: `azr eval --list` names those that are read.")
    # Whatever the user evaluates with is what must not be trained on.
    return Overlap({each.suite.name: each.all_questions for each in load_suites(names, folder, altered=True)})
