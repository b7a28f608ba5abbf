"""Rows are read as docs/data.md states them; the first that is none is named with its number."""

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from azr.config import DataConfig
from azr.datasets.choice import keep_identity
from azr.datasets.rows import read_rows
from azr.errors import UserError
from azr.graders.mathematics import MathGold

MATH = {"prompt": "2 + 2?", "grader": "math", "answer": "4"}
CALLS = {"prompt": "?", "grader": "calls", "entry": "f", "inputs": [[1]], "outputs": [2]}
VALUE = {"prompt": "?", "grader": "value", "program": "def f(a):\n    return a", "input": "1", "output": "1"}
NO_ANSWERS: tuple[Any, ...] = (" ", ["4", ""], True, float("nan"), {})
HALVED = ({"prompt": "\ud800"}, {"answer": "\ud800"}, {"id": "\ud800"}, {"traces": ["\ud800"]})
TURNS_AS_TEXT = (
    json.dumps([{"role": "user", "content": "?"}]),
    str([{"content": "Think.", "role": "system"}, {"content": "?", "role": "user"}]),
    " [{'content': 'Think.',\n  'role': 'system'}\n {'content': '?', 'role': 'user'}]\n",
    "array([{'content': '?', 'role': 'user'}], dtype=object)", '{"role": "user", "content": "?"}',
    '[{"from": "human", "value": "?"}]',
)  # fmt: skip
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
    empty = {"name": None, "tool_calls": [], "function_call": {"name": None, "arguments": ""}}
    turns = [turn | empty for turn in TURNS]
    first = {"prompt": turns, "grader": "math", "answer": ["6", "six"], "source": "sums", "id": None}
    second = {"prompt": turns[1:], "grader": "math", "answer": ["7"], "source": None, "id": "x"}
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


CHOICE = {**MATH, "grader": "choice", "answer": "A", "options": ["a", "b"]}
STDIN = {**CALLS, "grader": "stdin", "inputs": ["1"], "outputs": ["2"]}
NO_TURN, NO_USER = ([{"role": role, "content": "?"}] for role in ("human", "assistant"))
NO_ROWS: dict[str, list[Any]] = {
    "it is not a JSON object": [[1]],
    "it has no field 'grader': name one for all rows by --data.grader math or": [{"prompt": "?", "answer": "4"}],
    "it has no field 'answer', which the grader math needs: take one of prompt, grader, gold by --data.fields answer": [
        {"prompt": "?", "grader": "math", "gold": "4"}
    ],
    "it has no field 'prompt': take one of q, grader by --data.fields prompt=": [{"q": "?", "grader": "math"}],
    "it has no field 'options', which the grader choice needs": [{**MATH, "grader": "choice"}],
    "its answer is empty": [{**MATH, "answer": ""}, {**MATH, "answer": []}],
    "the answer .* is neither text nor a number": [{**MATH, "answer": each} for each in NO_ANSWERS],
    "the grader 'llm' is none of value, calls, stdin, math, choice": [{**MATH, "grader": "llm"}],
    "its prompt is neither text nor a list of turns": [{**MATH, "prompt": []}],
    "a turn of its prompt has no role of system": [{**MATH, "prompt": NO_TURN}],
    "a turn of its prompt has (tool_calls|images|reasoning_content), and a prompt shows its content alone": [
        {**MATH, "prompt": [{**TURNS[1], **each}]}
        for each in ({"tool_calls": [{"id": 1}]}, {"images": ["a.png"]}, {"reasoning_content": "?", "audio": None})
    ],
    "the source .* is not text, or names a kind or eval: take another by --data.fields source=NAME": [
        {**MATH, "source": each} for each in ("eval", "deduction", "", ["a"])
    ],
    "its prompt does not end with a user's": [{**MATH, "prompt": NO_USER}],
    "its prompt is the text of a list of turns": [{**MATH, "prompt": each} for each in TURNS_AS_TEXT],
    "the id '1' is that of": [{**MATH, "id": "1"}],
    "its traces are not a list of texts": [{**MATH, "traces": "<think>"}],
    r"its id \[1\] is neither text nor a whole number": [{**MATH, "id": [1]}],
    "its text holds half a character": [{**MATH, **halved} for halved in HALVED],
    "its options are not a list of 2 to 26": [{**CHOICE, "options": each} for each in ("ab", ["a"])],
    "the answer '?(True|-1)'? is none of A, B": [{**CHOICE, "answer": each} for each in (True, -1)],
    "inputs and outputs are not both lists": [{**STDIN, "inputs": "12"}],
    "an input is longer than 16 MiB": [{**STDIN, "inputs": ["1" * 2**24]}],
    r"an input or output is (\{\}|5|5\.0|True|None): write as text": [
        *({**STDIN, "outputs": [each]} for each in (5, 5.0, True)),
        *({**STDIN, "inputs": [each]} for each in ({}, 5, None)),
    ],
    "its inputs are not lists, of the arguments of one call each": [{**CALLS, "inputs": [1]}],
    r"its entry 'f\(x\)' is not a name of a function": [{**CALLS, "entry": "f(x)"}],
    "its program is refused: line 1: (invalid syntax|imports os|uses open)": [
        {**VALUE, "program": each} for each in ("def f(:", "import os\ndef f(a): return 1", "def f(a): return open(a)")
    ],
    "its program does not define f": [{**VALUE, "program": "g = 1"}],
    "its output is not plain data: ": [{**VALUE, "output": "g(1)"}],
    "its program, input and output are not all text": [{**VALUE, "input": 1}],
    "the answer .* is tests of a program": [{**MATH, "answer": each} for each in TESTS],
    "its tolerance .* is not a number from 0": [{**MATH, "tolerance": each} for each in ("1e-3", -1, True)],
}  # fmt: skip


@pytest.mark.parametrize("said", NO_ROWS)
def test_the_first_row_that_is_none_is_named(tmp_path: Path, said: str) -> None:
    for row in NO_ROWS[said]:
        with pytest.raises(UserError, match=f"row 2: {said}"):
            read_rows(write(tmp_path / "rows.jsonl", MATH, row, MATH))


def test_a_question_may_begin_with_a_bracket_and_a_row_have_a_tolerance(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "rows.jsonl", *({**MATH, "prompt": prompt} for prompt in QUESTIONS)))
    assert [row.turns for row in rows] == [({"role": "user", "content": prompt},) for prompt in QUESTIONS]
    stdin = {"prompt": "?", "grader": "stdin", "inputs": ["1"], "outputs": ["2"]}
    rows = [{**row, "tolerance": 1e-3} for row in (MATH, CALLS, stdin)] + [MATH, CALLS, stdin]
    golds = [row.question.gold for row in read_rows(write(tmp_path / "rows.jsonl", *rows))]
    assert [golds[0].tolerance, golds[1].atol, golds[2].tolerance] == [1e-3] * 3
    assert [golds[3].tolerance, golds[4].atol, golds[5].tolerance] == [None, 0.0, None]


VERL = {
    "data_source": "openai/gsm8k", "prompt": TURNS, "ability": "math", "extra_info": {"index": 0}, "split": None,
    "reward_model": {"style": "rule", "ground_truth": "6"},
}  # fmt: skip
GSM8K = {"question": "3 + 3?", "answer": "It is 3 more than 3.\n#### 6", "level": 1}


@pytest.mark.parametrize(("stored", "options", "grader", "source", "unread"), [
    (VERL, {}, {"math": 1.0}, "openai-gsm8k", {"extra_info"}),
    (VERL, {"grader": ("examples.verl_reward:compute_score",)}, {"examples.verl_reward:compute_score": 1.0},
     "openai-gsm8k", set()),
    ({**VERL, "grader": "math", "source": "own"}, {"grader": ("choice",)}, {"math": 1.0}, "own", {"extra_info"}),
    (GSM8K, {"grader": ("math",), "fields": ("prompt=question",)}, {"math": 1.0}, "data", {"level"}),
    ({**GSM8K, "prompt": 1}, {"grader": ("math=0.5", "examples.near_enough:grade=2"), "fields": ("prompt=question",)},
     {"math": 0.5, "examples.near_enough:grade": 2.0}, "data", set()),
])  # fmt: skip
def test_rows_of_others_are_read_as_they_are(tmp_path, stored, options, grader, source, unread) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([stored]), tmp_path / "rows.parquet")
    for path in (write(tmp_path / "rows.jsonl", stored), tmp_path / "rows.parquet"):
        (row,) = read_rows(path, DataConfig(**options))
        assert {each.name: each.weight for each in row.graders} == grader
        assert (row.question.suite, row.turns[-1]["content"], row.unread) == (source, "3 + 3?", unread)
        if "prompt" not in stored:
            assert row.question.gold == MathGold((GSM8K["answer"],))


@pytest.mark.parametrize(("options", "said"), [
    ({"fields": ("prompt",)}, "data.fields is prompt: write NAME=VALUE"),
    ({"fields": ("prompt=a", "prompt=b")}, "data.fields is prompt=a,prompt=b: write .* no name twice"),
    ({"fields": ("prompt=ask",)}, "row 1: it has no field 'ask': take one of prompt, grader, answer by --data"),
])  # fmt: skip
def test_options_that_name_nothing_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_rows(write(tmp_path / "rows.jsonl", MATH), DataConfig(**options))
    for given, why in (("llm", "the grader 'llm' is none"), ("math=no", "could not"), ("math=0", "the weight 0.0 of")):
        with pytest.raises(UserError, match=f"^data.grader is {given}: {why}"):
            read_rows(write(tmp_path / "rows.jsonl", {"prompt": "?", "answer": "4"}), DataConfig(grader=(given,)))


def test_long_and_decimal_numbers_are_answers(tmp_path: Path) -> None:
    path, answers = tmp_path / "rows.parquet", [Decimal("2.50"), Decimal("3")]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{**MATH, "answer": each} for each in answers]), path)
    long = write(tmp_path / "rows.jsonl", {**MATH, "answer": 10**400})
    golds = [row.question.gold for row in (*read_rows(path), *read_rows(long))]
    assert golds == [MathGold((text,)) for text in ("2.50", "3.00", f"1{'0' * 400}")]


def test_a_byte_order_mark_is_no_part_of_a_row(tmp_path: Path) -> None:
    path, packed, line = tmp_path / "rows.jsonl", tmp_path / "rows.jsonl.gz", json.dumps(MATH)
    for end in ("\n", "\r\n"):
        path.write_bytes(f"\ufeff{line}{end}{line}{end}\ufeff{line}".encode())
        packed.write_bytes(gzip.compress(path.read_bytes()))
        assert len(read_rows(path)) == len(read_rows(packed)) == 3


JSONL, PARQUET, PACKED, LINE = "rows.jsonl", "rows.parquet", "rows.jsonl.gz", json.dumps(MATH)
LFS = b"version https://git-lfs.github.com/spec/v1\nsize 3\n"


@pytest.mark.parametrize(("name", "content", "said"), [
    (JSONL, LINE.encode("utf-16"), "is UTF-16 text: save it as UTF-8"), ("rows.csv", b"a", "is none of .jsonl, "),
    (JSONL, f'{LINE[:-1]}, "answer": "7"}}'.encode(), "row 1: it has the key 'answer' twice: leave one of them out"),
    (JSONL, LINE.encode("utf-16-le"), "is UTF-16 text or no text"), (JSONL, LINE.encode("utf-32"), "is UTF-32 text: "),
    (JSONL, '{"prompt": "Café?"}'.encode("latin-1"), "row 1: .*not UTF-8: save the file as UTF-8"),
    (JSONL, json.dumps(MATH, indent=1).encode(), "row 1: its JSON takes several lines"),
    (JSONL, json.dumps([MATH, MATH], indent=1).encode(), "row 1: its JSON takes several lines"),
    (JSONL, f"[{LINE}, {LINE}]".encode(), "row 1: it is not a JSON object, but an array"),
    (JSONL, b"", "holds no rows"),
    (JSONL, (LINE * 2).encode(), "row 1: it is more than one JSON value"), (PARQUET, b"PAR1", "row 1: "),
    (JSONL, b'{"answer": ' + b"1" * 5_000 + b"}", "row 1: it holds a number of over 4,300 digits: write it as text"),
    (JSONL, b"Entry not found", "row 1: it is not JSON .*'Entry not found'"), (PACKED, b"{}", "not compressed by gzip"),
    *((name, LFS, "is a Git LFS pointer") for name in (JSONL, PARQUET, PACKED)),
    (JSONL, b"\n <!DOCTYPE HTML><html></html>", "is an HTML page"), (PARQUET, b"\xef\xbb\xbf<html>", "is an HTML page"),
    (JSONL, b"<?xml version='1.0'?><Error/>", "is an XML page"), (JSONL, b"PAR1\0\0", "is a parquet file"),
    (JSONL, gzip.compress(b"{}", mtime=0), "is compressed by gzip: its name must end with .gz"),
    (JSONL, b"PK\x03\x04\0", "is a zip archive"), (JSONL, b"(\xb5/\xfd", "compressed by zstd"),
    (PARQUET, b'{"a": 1}', "is JSON"), (JSONL, None, "There is no file .*rows.jsonl: docs/data.md says"),
])  # fmt: skip
def test_a_file_of_another_kind_is_called_what_it_is(tmp_path: Path, name: str, content: bytes | None, said: str):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said) as raised:
        read_rows(tmp_path / name)
    assert "\n" not in str(raised.value)


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
    row = {"prompt": turns, "reward_model": {"ground_truth": "2"}}
    openr1 = [row | {"target": given} for given in (traces, traces * 2, None)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(openr1), "openr1.parquet")
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, {})
    (asked,) = read_rows(Path("data/orz.jsonl"))
    assert asked.turns[0]["content"] == "1 + 1?\n\nGive the final answer in \\boxed{}."
    counts = [(len(row.turns), len(row.traces)) for row in read_rows(Path("data/luffy.jsonl"))]
    assert counts == [(2, 1), (2, 1), (2, 0)]
