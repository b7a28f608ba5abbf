"""Rows are read as docs/data.md states them; the first that is none is named with its number."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from azr.datasets.choice import keep_identity
from azr.datasets.rows import read_rows
from azr.errors import UserError
from azr.evaluation.graders.calls import Calls
from azr.evaluation.graders.choice import Choice
from azr.evaluation.graders.maths import MathGold
from azr.evaluation.graders.stdin import Tests as StdinTests
from azr.evaluation.graders.value import ProgramValue

MATH = {"prompt": "2 + 2?", "grader": "math", "answer": "4"}
CALLS = {"prompt": "?", "grader": "calls", "entry": "f", "inputs": [[1]], "outputs": [2]}
VALUE = {"prompt": "?", "grader": "value", "program": "def f(a):\n    return a", "input": "1", "output": "1"}
NO_ANSWERS: tuple[Any, ...] = (" ", ["4", ""], True, float("nan"))
HALVED = ({"prompt": "\ud800"}, {"answer": "\ud800"}, {"id": "\ud800"}, {"traces": ["\ud800"]})
TURNS = [{"role": "system", "content": "Think."}, {"role": "user", "content": "3 + 3?"}]


def write(path: Path, *rows: dict[str, Any]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet"])
def test_a_row_says_what_is_asked_how_it_is_graded_and_what_others_answered(tmp_path: Path, name: str) -> None:
    rows = [
        {
            "prompt": TURNS,
            "grader": "math",
            "answer": ["6", "six"],
            "source": "sums",
            "id": None,
            "traces": ["<think>3</think> 6"],
        },
        {"prompt": [{"role": "user", "content": "?"}], "grader": "math", "answer": ["7"], "source": None, "id": "x"},
    ]
    path = tmp_path / name
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        write(path, *rows)
    first, second = read_rows(path)
    assert first.turns == tuple(TURNS) and first.traces == ("<think>3</think> 6",)
    assert first.question.gold == MathGold(("6", "six")) and first.grader == "math"
    assert (first.question.suite, first.question.id, first.question.message) == ("sums", "1", "3 + 3?")
    assert (second.question.suite, second.question.id, second.traces) == ("data", "x", ())


def test_each_grader_gets_what_it_needs(tmp_path: Path) -> None:
    rows = [
        MATH,
        {"prompt": "?", "grader": "choice", "answer": "B", "options": ["a", "b"]},
        CALLS,
        {"prompt": "?", "grader": "stdin", "inputs": ["1"], "outputs": ["2"]},
        VALUE,
    ]
    golds = [type(row.question.gold) for row in read_rows(write(tmp_path / "rows.jsonl", *rows))]
    assert golds == [MathGold, Choice, Calls, StdinTests, ProgramValue]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "?", "grader": "math"}, "row 2: it has no field 'answer', which the grader math needs"),
        ({**MATH, "answer": ""}, "row 2: its answer is empty"),
        ({**MATH, "answer": {}}, "row 2: the answer {} is neither text nor a number"),
        ({"prompt": "?", "answer": "4"}, "row 2: it has no field 'grader'"),
        ({**MATH, "grader": "llm"}, "row 2: the grader 'llm' is none of value, calls, stdin, math, choice"),
        ({**MATH, "grader": "choice"}, "row 2: it has no field 'options', which the grader choice needs"),
        ({**MATH, "prompt": []}, "row 2: its prompt is neither text nor a list of turns"),
        ({**MATH, "prompt": [{"role": "human", "content": "?"}]}, "row 2: a turn of its prompt has no role of system"),
        ({**MATH, "prompt": [{"role": "assistant", "content": "?"}]}, "row 2: its prompt does not end with a user's"),
        ({**MATH, "source": "deduction"}, "row 2: the source 'deduction' is no name .* kind of self-play"),
        ({**MATH, "source": "a/b"}, "row 2: the source 'a/b' is no name"),
        ({**MATH, "traces": "<think>"}, "row 2: its traces are no list of texts"),
        ({**MATH, "id": "1"}, "row 2: the id '1' is that of row 1 too"),
        ([1], "row 2: it is no JSON object"),
        ({**MATH, "id": [1]}, r"row 2: its id \[1\] is neither text nor a whole number"),
        *[({**MATH, "answer": each}, "row 2: the answer .* is neither text nor a number") for each in NO_ANSWERS],
        *[({**MATH, **halved}, "row 2: its text holds half a character") for halved in HALVED],
        ({**MATH, "grader": "choice", "answer": "A", "options": "ab"}, "row 2: its options are no list of 2 to 26"),
        ({**MATH, "grader": "choice", "answer": "A", "options": ["a"]}, "row 2: its options are no list of 2 to 26"),
        ({**MATH, "grader": "choice", "answer": True, "options": ["a", "b"]}, "row 2: the answer True is none of A, B"),
        ({**CALLS, "inputs": [1]}, "row 2: its inputs are not lists, of the arguments of one call each"),
        ({**CALLS, "entry": "f(x)"}, r"row 2: its entry 'f\(x\)' is no name of a function"),
        ({**CALLS, "grader": "stdin", "inputs": [{}]}, "row 2: an input or output is neither text nor a number"),
        ({**VALUE, "program": "def f(:"}, "row 2: its program is no Python: invalid syntax"),
        ({**VALUE, "program": "g = 1"}, "row 2: its program does not define f"),
        ({**VALUE, "output": "g(1)"}, "row 2: its output is no plain data: "),
        ({**VALUE, "input": 1}, "row 2: its program, input and output are not all text"),
    ],
)
def test_the_first_row_that_is_none_is_named(tmp_path: Path, row: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_rows(write(tmp_path / "rows.jsonl", MATH, row, MATH))


def test_files_that_are_none(tmp_path: Path) -> None:
    for name, text, said in [
        ("rows.csv", "a,b", "is none of .jsonl, .jsonl.gz, .parquet"),
        ("rows.jsonl", "", "holds no rows"),
        ("rows.parquet", "PAR1", "row 1: "),
        ("rows.jsonl.gz", "{}", "is not compressed by gzip"),
    ]:
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            read_rows(path)
    with pytest.raises(UserError, match=r"There is no file .*gone.jsonl: `azr data prepare`"):
        read_rows(tmp_path / "gone.jsonl")


def test_a_run_goes_on_with_the_rows_it_began_with(tmp_path: Path) -> None:
    rows, record = write(tmp_path / "rows.jsonl", MATH), tmp_path / "data.json"
    keep_identity(record, rows)
    keep_identity(record, rows)
    write(rows, MATH, MATH)
    with pytest.raises(UserError, match="is not the file that the run began with"):
        keep_identity(record, rows)
    other = write(tmp_path / "other.jsonl", MATH)
    keep_identity(record, other)
    assert json.loads(record.read_text())["path"] == str(other)
