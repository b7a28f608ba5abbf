"""Turns a source's file into a file of rows, and counts what became of each example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azr.concurrency import gather
from azr.datasets.prepare.example import Example, Options, Source
from azr.datasets.prepare.files import rows_of, written
from azr.datasets.prepare.overlap import Match, Overlap, normal
from azr.datasets.rows import read_row
from azr.errors import UserError
from azr.evaluation.graders.maths import MathGrader
from azr.evaluation.suites.files import ROW_ERRORS, Row

PREVIEW = 5
NO_ANSWER, REPEATED, IN_SUITE = "no answer", "repeats an earlier prompt", "in an evaluation suite"
OTHER = "a program is asked for"


@dataclass(slots=True, kw_only=True)
class Prepared:
    """Counts of a prepared file."""

    read: int = 0
    """Rows of the source's file."""
    examples: int = 0
    """Examples made of them: one or more of each."""
    written: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Examples by reason."""
    matches: dict[tuple[str, Match], list[int]] = field(default_factory=dict)
    """By suite and kind, the numbers of the source's rows; a row may be in several suites."""
    with_traces: int = 0
    """Rows that were written with traces."""
    traces: int = 0
    answers: list[str] = field(default_factory=list)
    """Gold answers of mathematical rows that were written."""
    preview: list[Row] = field(default_factory=list)
    """The first rows that were written."""


def prepare(source: Source, path: Path, out: Path, options: Options, overlap: Overlap | None) -> Prepared:
    """Writes the rows that are left of a file.

    ``overlap``: the suites whose questions are left out.
    Raises UserError, and writes nothing, for a file that is not of this source, an empty one, one of which nothing is
    left, and a file that cannot be written.
    """
    done, prompts = Prepared(), set[str]()
    with written(out, source.columns) as write:
        for number, example in _examples(source, path, options, done):
            if not _is_wanted(source, example, number, prompts, overlap, done):
                continue
            row = _row(source, example, number)
            try:
                read_row(row, number)
            except ValueError as error:
                raise UserError(f"{path}, row {number}: {error}.") from error
            write(row)
            done.written += 1
            done.with_traces += bool(example.traces)
            done.traces += len(example.traces)
            if len(done.preview) < PREVIEW:
                done.preview.append(row)
            if source.grader == "math":
                done.answers.append(row["answer"])
        if not done.read:
            raise UserError(f"{path} holds no rows: get the file again.")
        if not done.written:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in done.dropped.most_common())
            raise UserError(f"No row of {path} is left ({reasons}), so {out} was not written.")
    return done


def _examples(source: Source, path: Path, options: Options, done: Prepared) -> Iterator[tuple[int, Example]]:
    """Each with the number of its row, from 1."""
    for number, row in enumerate(rows_of(path), 1):
        done.read += 1
        missing = [name for name in source.fields if name not in row]
        if missing:
            raise UserError(f"{path}, row {number}: it lacks {missing[0]!r}; a row of {source.name} is {source.form}.")
        try:
            examples = list(source.read(row, options))
        except ROW_ERRORS as error:
            what = f"no field {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(f"{path}, row {number}: this is no row of {source.name} ({what[:300]}).") from error
        done.examples += len(examples)
        yield from ((number, example) for example in examples)


def _is_wanted(
    source: Source, example: Example, number: int, prompts: set[str], overlap: Overlap | None, done: Prepared
) -> bool:
    """Counts the reason where it is not; adds its prompt to those that were seen where it is."""
    if example.answer is None or example.is_other:
        done.dropped[OTHER if example.is_other else NO_ANSWER] += 1
        return False
    # Case and white space may be what tells two programs apart.
    form = normal if source.grader == "math" else str
    prompt = "\0".join(f"{turn['role']}\0{form(turn['content'])}" for turn in example.prompt)
    if prompt in prompts:
        done.dropped[REPEATED] += 1
        return False
    prompts.add(prompt)
    found = overlap.find(example.question, example.traces) if overlap is not None else {}
    for match in found.items():
        done.matches.setdefault(match, []).append(number)
    if found:
        done.dropped[IN_SUITE] += 1
    return not found


def _row(source: Source, example: Example, number: int) -> Row:
    assert example.answer is not None
    row: dict[str, Any] = {
        "id": f"{number}-{example.part}" if example.part else str(number),
        "source": example.source,
        "prompt": [dict(turn) for turn in example.prompt],
        "grader": source.grader,
        **example.answer,
    }
    return row | {"traces": list(example.traces)} if example.traces else row


async def count_parsed(answers: Sequence[str]) -> int:
    """How many of these answers the grader of mathematics compares as more than text.

    Raises UserError when math-verify is missing.
    """
    async with MathGrader() as grader:
        said = await gather(*(grader.compare((answer,), answer) for answer in answers))
    return sum(each is not None and each.get("parsed", False) for each in said)
