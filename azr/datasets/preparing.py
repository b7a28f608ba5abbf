"""Turn a source's file into a file of rows, count what became of each example, and leave out questions of suites."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from azr.concurrency import gather
from azr.datasets.rows import FORMATS, read_row
from azr.datasets.sources import Example, Options, Source
from azr.errors import UserError
from azr.evaluation.graders.maths import MathGrader
from azr.evaluation.question import Question
from azr.evaluation.suites import exam, load_suites, suites_of
from azr.evaluation.suites.files import ROW_ERRORS, Row, pyarrow, read_rows
from azr.files import atomic_write
from azr.hardware import cache_folder
from azr.runs.model_folder import HUB_S, hub_errors, must_be_local

PREVIEW = 5
NO_ANSWER, REPEATED, IN_SUITE = "no answer", "repeats an earlier prompt", "in an evaluation suite"
OTHER = "a program is asked for"
READ = (".parquet", ".jsonl", ".jsonl.gz", ".json", ".json.gz")
_BATCH = 1_000
"""Rows of a parquet file that are written at once."""
Match = Literal["exactly", "13 words", "13 words of a trace"]
WORDS = 13
"""The authors of GPT-3 took as many."""
STOCK = 3
"""A run of words in so many different questions of the suites, such as "where m and n are relatively prime positive
integers", says nothing about where a question is from."""
_WORD = re.compile(r"[^\W_]+")
_DATA_SET = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?(?::(?P<split>[\w.-]+))?")


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
    names = [name for name, suite in suites_of(folder).items() if suite.located(folder)]
    if not [name for name in names if name != exam.NAME]:
        raise UserError(f"{folder} holds no file of a suite: `azr eval --list` names those that are read.")
    # Whatever the user evaluates with is what must not be trained on.
    return Overlap({each.suite.name: each.all_questions for each in load_suites(names, folder, altered=True)})


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

    def rows() -> Iterator[Row]:
        for number, example in _examples(source, path, options, done):
            if not _is_wanted(source, example, number, prompts, overlap, done):
                continue
            row = _row(source, example, number)
            try:
                read_row(row, number)
            except ValueError as error:
                raise UserError(f"{path}, row {number}: {error}.") from error
            yield row
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

    write_rows(out, rows(), source.columns)
    return done


def _examples(source: Source, path: Path, options: Options, done: Prepared) -> Iterator[tuple[int, Example]]:
    """Each with the number of its row, from 1."""
    for number, row in enumerate(read_rows(path, arrays=True), 1):
        done.read += 1
        if isinstance(row, list):  # a pair of Open-Reasoner-Zero's, its elements by their places
            row = dict(zip(map(str, range(len(row))), row, strict=True))
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
    """How many of these answers the grader of mathematics compares as more than text. Raises UserError when math-verify
    is missing."""
    async with MathGrader() as grader:
        said = await gather(*(grader.compare((answer,), answer) for answer in answers))
    return sum(each is not None and each.get("parsed", False) for each in said)


def is_on_hub(named: str) -> bool:
    """Whether a path can only be a data set of the hub: OWNER/NAME or OWNER/NAME/CONFIG, with or without :SPLIT."""
    match = _DATA_SET.fullmatch(named)
    return match is not None and not named.endswith(READ) and not must_be_local(match["name"])


@cache
def rows_file(named: str) -> Path:
    """Return the file that is named, or the rows of a folder or a data set of the hub as JSON lines in the cache.
    Raises UserError if the package `datasets` or the data set is missing, or the hub does not answer."""
    place, _, split = named.partition(":")
    if is_on_hub(named):
        owner, name, *subset = place.split("/")
        source = [f"{owner}/{name}", *subset]
    elif Path(place).is_dir():
        source = [str(Path(place).resolve())]
    else:
        return Path(named)
    if find_spec("datasets") is None:
        raise UserError(f"{named} takes the package datasets: run pip install -e '.[hub]' in the clone.")
    from huggingface_hub import HfApi, constants

    with hub_errors(f"{named} is no file, and no data set that can be read (HF_HUB_OFFLINE=1 uses the cache alone)"):
        if is_on_hub(named) and not constants.HF_HUB_OFFLINE:
            HfApi().dataset_info(source[0], timeout=HUB_S)  # `datasets` would try for half a minute
        rows = importlib.import_module("datasets").load_dataset(*source, split=split or "train")
    name = "--".join([*source, split or "train", rows._fingerprint]).replace("/", "--")
    out = cache_folder() / "rows" / f"{name}.jsonl"
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        write_rows(out, rows)
    return out


def check_files(source: Path, out: Path, *, overwrite: bool) -> None:
    """Raises UserError when one cannot be read or the other not written, as far as that is known beforehand."""
    if not source.is_file():
        raise UserError(f"There is no file {source}: give the published one that is to be prepared.")
    for path, known in ((source, READ), (out, FORMATS)):
        if not path.name.endswith(known):
            raise UserError(f"{path} is of no known form: its name must end with {', '.join(known)}.")
        if path.name.endswith(".parquet"):
            pyarrow("pyarrow", path)
    if not out.parent.is_dir():
        raise UserError(f"There is no folder {out.parent} to write {out.name} into: make it, or name another file.")
    if out.exists() and out.samefile(source):
        raise UserError(f"{out} is the file that is to be prepared: name another one to write.")
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists already: name another file, or replace it by --overwrite.")


def write_rows(out: Path, rows: Iterable[Row], columns: tuple[str, ...] = ()) -> None:
    """Write a file, which appears under its name when all rows are in it.

    ``columns``: fields of rows that are text, beside ``id``, ``source``, ``prompt``, ``grader`` and ``traces``.
    Raises UserError when there is no room.
    """
    try:
        with atomic_write(out) as staging:
            if out.name.endswith(".parquet"):
                _write_parquet(staging, iter(rows), columns)
                return
            with staging.open("wb") as plain:
                # Without name and time the same rows are the same bytes.
                is_packed = out.name.endswith(".gz")
                with gzip.GzipFile("", "wb", 6, plain, 0) if is_packed else contextlib.nullcontext(plain) as file:
                    file.writelines(f"{json.dumps(row, ensure_ascii=False, default=str)}\n".encode() for row in rows)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): name another file.") from error


def _write_parquet(staging: Path, rows: Iterator[Row], columns: tuple[str, ...]) -> None:
    arrow, parquet = pyarrow("pyarrow", staging), pyarrow("pyarrow.parquet", staging)
    text = arrow.string()
    turns = arrow.list_(arrow.struct({"role": text, "content": text}))
    fields = {"id": text, "source": text, "prompt": turns, "grader": text} | dict.fromkeys(columns, text)
    schema = arrow.schema(fields | {"traces": arrow.list_(text)})
    with parquet.ParquetWriter(staging, schema) as writer:
        while batch := list(islice(rows, _BATCH)):
            writer.write_table(arrow.Table.from_pylist(batch, schema))
