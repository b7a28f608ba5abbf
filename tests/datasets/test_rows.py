"""Rows are read as docs/data.md states them; the first that is none is named with its number."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from azr.datasets.choice import keep_identity
from azr.datasets.rows import read_rows
from azr.errors import UserError
from azr.evaluation.graders.maths import MathGold

MATH = {"prompt": "2 + 2?", "grader": "math", "answer": "4"}
CALLS = {"prompt": "?", "grader": "calls", "entry": "f", "inputs": [[1]], "outputs": [2]}
VALUE = {"prompt": "?", "grader": "value", "program": "def f(a):\n    return a", "input": "1", "output": "1"}
NO_ANSWERS: tuple[Any, ...] = (" ", ["4", ""], True, float("nan"))
HALVED = ({"prompt": "\ud800"}, {"answer": "\ud800"}, {"id": "\ud800"}, {"traces": ["\ud800"]})
TURNS_AS_TEXT = (
    json.dumps([{"role": "user", "content": "?"}]),
    str([{"content": "Think.", "role": "system"}, {"content": "?", "role": "user"}]),
    " [{'content': 'Think.',\n  'role': 'system'}\n {'content': '?', 'role': 'user'}]\n",
    "array([{'content': '?', 'role': 'user'}], dtype=object)",
    '{"role": "user", "content": "?"}',
    '[{"from": "human", "value": "?"}]',
)
QUESTIONS = (
    "[Easy] 1 + 1?", "{1, 2} has how many elements?", "[{'a': 1}]", '{"role": "user"} is JSON?',
    "What is wrong with [{'role': 'user', 'content': '?'}]", "[1, 2]", '[{"value": 1, "content": 2}]',
)  # fmt: skip
"""Prompts that are text."""
TESTS = ('{"inputs": ["1"], "outputs": ["2"]}', '[{"input": "1", "output": "2"}]', '["assert f(1) == 2"]')
TURNS = [{"role": "system", "content": "Think."}, {"role": "user", "content": "3 + 3?"}]


def write(path: Path, *rows: dict[str, Any]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet"])
def test_a_row_says_what_is_asked_how_it_is_graded_and_what_others_answered(tmp_path: Path, name: str) -> None:
    first = {"prompt": TURNS, "grader": "math", "answer": ["6", "six"], "source": "sums", "id": None}
    second = {"prompt": TURNS[1:], "grader": "math", "answer": ["7"], "source": None, "id": "x"}
    rows = [first | {"traces": ["<think>3</think> 6"]}, second]
    path = tmp_path / name
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        write(path, *rows)
    first, second = read_rows(path)
    assert first.turns == tuple(TURNS) and first.traces == ("<think>3</think> 6",)
    assert first.question.gold == MathGold(("6", "six")) and [each.name for each in first.graders] == ["math"]
    assert (first.question.suite, first.question.id, first.question.message) == ("sums", "1", "3 + 3?")
    assert (second.question.suite, second.question.id, second.traces) == ("data", "x", ())


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
        ({**MATH, "answer": []}, "row 2: its answer is empty"),
        ({**MATH, "grader": "choice", "answer": -1, "options": ["a", "b"]}, "row 2: the answer '-1' is none of A, B"),
        ({**CALLS, "grader": "stdin", "inputs": "12"}, "row 2: inputs and outputs are not both lists"),
        ({**CALLS, "grader": "stdin", "inputs": ["1" * 2**24]}, "row 2: an input is longer than 16 MiB"),
        ({**CALLS, "inputs": [1]}, "row 2: its inputs are not lists, of the arguments of one call each"),
        ({**CALLS, "entry": "f(x)"}, r"row 2: its entry 'f\(x\)' is no name of a function"),
        ({**CALLS, "grader": "stdin", "inputs": [{}]}, "row 2: an input or output is neither text nor a number"),
        ({**VALUE, "program": "def f(:"}, "row 2: its program is no Python: invalid syntax"),
        ({**VALUE, "program": "g = 1"}, "row 2: its program does not define f"),
        ({**VALUE, "output": "g(1)"}, "row 2: its output is no plain data: "),
        ({**VALUE, "input": 1}, "row 2: its program, input and output are not all text"),
        *[({**MATH, "prompt": each}, "row 2: its prompt is the text of a list of turns") for each in TURNS_AS_TEXT],
        *[({**MATH, "answer": each}, "row 2: the answer .* is tests of a program") for each in TESTS],
        *[({**MATH, "tolerance": each}, "row 2: its tolerance .* is no number from 0") for each in ("1e-3", -1, True)],
    ],
)
def test_the_first_row_that_is_none_is_named(tmp_path: Path, row: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_rows(write(tmp_path / "rows.jsonl", MATH, row, MATH))


@pytest.mark.parametrize("prompt", QUESTIONS)
def test_a_question_may_begin_with_a_bracket(tmp_path: Path, prompt: str) -> None:
    (row,) = read_rows(write(tmp_path / "rows.jsonl", {**MATH, "prompt": prompt}))
    assert row.turns == ({"role": "user", "content": prompt},)


def test_a_row_may_have_a_tolerance(tmp_path: Path) -> None:
    stdin = {"prompt": "?", "grader": "stdin", "inputs": ["1"], "outputs": ["2"]}
    rows = [{**row, "tolerance": 1e-3} for row in (MATH, CALLS, stdin)] + [MATH, CALLS, stdin]
    golds = [row.question.gold for row in read_rows(write(tmp_path / "rows.jsonl", *rows))]
    assert [golds[0].tolerance, golds[1].atol, golds[2].tolerance] == [1e-3] * 3
    assert [golds[3].tolerance, golds[4].atol, golds[5].tolerance] == [None, 0.0, None]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_byte_order_mark_is_no_part_of_a_row(tmp_path: Path, end: str) -> None:
    path, line = tmp_path / "rows.jsonl", json.dumps(MATH)
    path.write_bytes(f"\ufeff{line}{end}{line}{end}\ufeff{line}".encode())
    assert len(read_rows(path)) == 3
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert len(read_rows(packed)) == 3


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.jsonl", json.dumps(MATH).encode("utf-16"), "is UTF-16 text: save it as UTF-8"),
        ("rows.jsonl", json.dumps(MATH).encode("utf-16-le"), "is UTF-16 text or no text"),
        ("rows.jsonl", json.dumps(MATH).encode("utf-32"), "is UTF-32 text: save it as UTF-8"),
        ("rows.jsonl", '{"prompt": "Café?"}'.encode("latin-1"), "row 1: .*not UTF-8: save the file as UTF-8"),
        ("rows.jsonl", json.dumps(MATH, indent=1).encode(), "row 1: its JSON takes several lines"),
        ("rows.jsonl", json.dumps([MATH, MATH], indent=1).encode(), "row 1: its JSON takes several lines"),
        ("rows.jsonl", json.dumps([MATH, MATH]).encode(), "row 1: it is no JSON object, but an array"),
        ("rows.jsonl", (json.dumps(MATH) * 2).encode(), "row 1: it is more than one JSON value"),
        ("rows.jsonl", b"Entry not found", "row 1: it is no JSON .*'Entry not found'"),
        ("rows.jsonl", b"version https://git-lfs.github.com/spec/v1\nsize 3\n", "is a Git LFS pointer"),
        ("rows.parquet", b"version https://git-lfs.github.com/spec/v1\nsize 3\n", "is a Git LFS pointer"),
        ("rows.jsonl.gz", b"version https://git-lfs.github.com/spec/v1\nsize 3\n", "is a Git LFS pointer"),
        ("rows.jsonl", b"\n <!DOCTYPE HTML><html></html>", "is an HTML page"),
        ("rows.parquet", b"\xef\xbb\xbf<html>", "is an HTML page"),
        ("rows.jsonl", b"<?xml version='1.0'?><Error/>", "is an XML page"),
        ("rows.jsonl", gzip.compress(b"{}", mtime=0), "is compressed by gzip: its name must end with .gz"),
        ("rows.jsonl", b"PAR1\0\0", "is a parquet file"), ("rows.parquet", b'{"a": 1}', "is JSON"),
        ("rows.jsonl", b"PK\x03\x04\0", "is a zip archive"), ("rows.jsonl", b"(\xb5/\xfd", "compressed by zstd"),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_called_what_it_is(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said) as raised:
        read_rows(tmp_path / name)
    assert "\n" not in str(raised.value)


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
    with pytest.raises(UserError, match=r"There is no file .*gone.jsonl: docs/data.md says"):
        read_rows(tmp_path / "gone.jsonl")


def test_a_run_goes_on_with_the_rows_it_began_with(tmp_path: Path) -> None:
    rows, record = write(tmp_path / "rows.jsonl", MATH), tmp_path / "data.json"
    keep_identity(record, str(rows))
    keep_identity(record, str(rows))
    write(rows, MATH, MATH)
    with pytest.raises(UserError, match="has changed since the run began"):
        keep_identity(record, str(rows))
    other = write(tmp_path / "other.jsonl", MATH)
    keep_identity(record, str(other))
    assert json.loads(record.read_text())["path"] == str(other)


def test_the_pages_lines_of_python_turn_published_files_into_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    pairs = [[{"value": "1 + 1?"}, {"ground_truth": {"value": answer}}] for answer in ("2", "")]
    (tmp_path / "orz_math_57k_collected.json").write_text(json.dumps(pairs))
    turns = [{"role": "system", "content": "Box it."}, {"role": "user", "content": "1 + 1?"}]
    traces = [{"role": "assistant", "content": "<think>Two.</think> \\boxed{2}"}]
    openr1 = [
        {"prompt": turns, "reward_model": {"ground_truth": "2"}, "target": given}
        for given in (traces, traces * 2, None)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(openr1), "openr1.parquet")
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, {})
    (asked,) = read_rows(Path("data/orz.jsonl"))
    assert asked.turns[0]["content"] == "1 + 1?\n\nGive the final answer in \\boxed{}."
    assert [(len(row.turns), len(row.traces)) for row in read_rows(Path("data/luffy.jsonl"))] == [
        (2, 1),
        (2, 1),
        (2, 0),
    ]
