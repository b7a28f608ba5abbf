"""The suites by name, loaded from a folder of data: their questions and the hashes of their files."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from azr.errors import UserError, unknown
from azr.evaluation.suites import code_generation, exam, own, short_answers
from azr.evaluation.suites.files import questions
from azr.evaluation.suites.short_answers import CHAT, FORMATS
from azr.graders.question import Question, Suite
from azr.records import grouped


def _shipped() -> Iterator[Suite]:
    """Yield the suites of suites.toml; one about values is followed by those that ask in the other `FORMATS`."""
    stated = tomllib.loads(Path(__file__).with_name("suites.toml").read_text(encoding="utf-8"))
    rows = short_answers.READERS | code_generation.READERS
    for name, about in stated.items():
        about["files"] = tuple(about["files"])
        if name in rows:
            locate = code_generation.livecodebench_files if name == "livecodebench" else None
            read_file = partial(questions, read=partial(rows[name], name), repeats=name == "luffy")
            yield Suite(name=name, read_file=read_file, locate=locate, **about)
        else:
            for each in FORMATS:
                named = name if each == CHAT else f"{name}:{each}"
                read_row = partial(short_answers.VALUE_READERS[name], named, each)
                yield Suite(name=named, read_file=partial(questions, read=read_row), **about)


SUITES: dict[str, Suite] = {suite.name: suite for suite in (*_shipped(), exam.SUITE)}
"""Public benchmarks and the project's own exam."""


def to_be_continued(names: Sequence[str], form: str) -> tuple[str, ...]:
    """Return the suites that ask the same in one of the other `FORMATS`; one that has no such form as it is named."""
    return tuple(f"{name}:{form}" if f"{name}:{form}" in SUITES else name for name in names)


def suites_of(folder: Path | None) -> dict[str, Suite]:
    """Return `SUITES` and the suites that TOML files in the folder declare. Raises UserError for an invalid TOML, or
    if there is no such folder."""
    if folder is not None and not folder.is_dir():
        raise UserError(f"There is no folder {folder}: give the one that holds the files of the suites.")
    return SUITES | own.declared(folder, SUITES) if folder is not None else SUITES


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSuite:
    """A suite with the questions to ask."""

    suite: Suite
    questions: tuple[Question, ...]
    all_questions: tuple[Question, ...]
    """All questions, with those that a limit left out."""
    sha256: Mapping[str, str]
    """SHA-256 by name of the files that were read."""

    @property
    def on_record(self) -> dict[str, Any]:
        """Entry of the suite in a protocol, with the SHA-256 of all user turns, which may change while files do not."""
        turns = "".join(f"{question.id}\0{question.message}\0" for question in self.all_questions)
        of_turns = hashlib.sha256(turns.encode("utf-8", "surrogatepass")).hexdigest()
        stops = sorted({string for question in self.questions for string in question.stop_strings})
        digests: dict[str, Any] = {"sha256": dict(self.sha256), "messages_sha256": of_turns}
        counts = {"questions": len(self.questions), "of": len(self.all_questions)}
        return digests | counts | ({"stop_strings": stops} if stops else {})


def load_suites(
    names: Sequence[str], folder: Path | None, limit: int | None = None, *, altered: bool = False
) -> list[LoadedSuite]:
    """Load suites in the order of ``names``.

    ``folder``: of their files; the exam needs none. ``limit``: most questions of each, see `subset`. ``altered``: take
    files other than those this project was tested with.

    Raises UserError for a suite that does not exist, that the folder has no files for, or whose file is another one or
    damaged.
    """
    known = suites_of(folder)
    check_names(names, known)
    needing = [name for name in names if name != exam.NAME]
    if folder is None and needing:
        raise UserError(f"The suite {needing[0]} is read from files: give their folder by --data.")
    return [_load(known[name], folder or exam.OWN.parent, limit, altered=altered) for name in names]


def check_names(names: Sequence[str], known: Mapping[str, Suite]) -> None:
    """Raise UserError for an unknown or repeated name."""
    for name in names:
        if name not in known:
            raise unknown("suite", name, known, "azr eval --list names all.")
    if len(set(names)) < len(names):
        raise UserError(f"A suite is named twice in {','.join(names)}: name each once.")


def _load(suite: Suite, folder: Path, limit: int | None, *, altered: bool) -> LoadedSuite:
    sha256 = {}
    for path in suite.located(folder):
        sha256[path.name] = hash_of(path)
        if not altered and suite.sha256.get(path.name, sha256[path.name]) != sha256[path.name]:
            # A row that cannot be read says more about what happened to the file.
            suite.read(folder)
            raise UserError(
                f"{path} is not the tested file of the suite {suite.name} (SHA-256 {sha256[path.name][:12]}, not "
                f"{suite.sha256[path.name][:12]}): get it again from {suite.source}, or accept it by --altered."
            )
    return _limited(suite, suite.read(folder), limit, sha256)


def load_exam(folder: Path, limit: int) -> LoadedSuite:
    """Load the exam in this folder as `load_suites` does. Raises UserError when there is none, or it is not an exam."""
    sha256 = {path.name: hash_of(path) for path in exam.exam_files(folder).values()}
    return _limited(SUITES[exam.NAME], exam.exam_questions(folder), limit, sha256)


def _limited(suite: Suite, read: Sequence[Question], limit: int | None, sha256: Mapping[str, str]) -> LoadedSuite:
    asked = tuple(read) if limit is None else subset(read, limit, groups_alike=suite.groups_alike)
    return LoadedSuite(suite=suite, questions=asked, all_questions=tuple(read), sha256=sha256)


def hash_of(path: Path) -> str:
    """Return the SHA-256 hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def subset(questions: Sequence[Question], limit: int, *, groups_alike: bool = False) -> tuple[Question, ...]:
    """Return at most ``limit`` questions, spread evenly over the suite's order; always the same ones. ``groups_alike``:
    as many of each group, whatever their sizes, as far as they have them; at least one."""
    groups = grouped((top(question.group) if groups_alike else "", question) for question in questions)
    share = max(1, limit // len(groups))
    taken = ((of_group, min(share, len(of_group))) for of_group in groups.values())
    return tuple(of_group[index * len(of_group) // most] for of_group, most in taken for index in range(most))


def top(group: str) -> str:
    """Return the top-level group of a group."""
    return group.partition("/")[0]


def listing(folder: Path | None) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Yield name, state, SHA-256, licence, rows and source of every suite, for people."""
    for suite in suites_of(folder).values():
        place = folder if folder is not None else exam.OWN.parent
        paths = suite.located(place) if folder is not None or suite.name == exam.NAME else []
        rows, state, digests = str(suite.rows or "?"), "not found", "-"
        if paths:
            hashes = {path.name: hash_of(path) for path in paths}
            digests = " ".join(digest[:12] for digest in hashes.values())
            state = "found"
            if any(suite.sha256.get(name, digest) != digest for name, digest in hashes.items()):
                state = "another file"
            try:
                rows = str(len(suite.read(place)))
            except UserError as error:
                state = f"damaged: {error}"
        files = " or ".join(suite.files) if suite.locate is None else ", ".join(suite.files)
        yield suite.name, state, digests, suite.licence, rows, f"{files}: {suite.source}"
