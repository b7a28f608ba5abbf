"""Suites by name: limits, hashes, what is missing, and the list for people."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from azr.errors import UserError
from azr.evaluation.suites import SUITES, files, hash_of, listing, load_suites, subset
from azr.evaluation.suites.exam import OWN
from tests.executor.public_data import file

ROW = {"code": "def f(a):\n    return a", "input": "1", "output": "1"}


def crux(folder: Path, rows: int = 10, damaged: int | None = None) -> Path:
    lines = [json.dumps(ROW | {"id": f"sample_{i}"}) for i in range(rows)]
    if damaged is not None:
        lines[damaged - 1] = lines[damaged - 1][:20]
    (folder / "cruxeval.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_the_exam_needs_no_folder_and_others_do(tmp_path: Path):
    (loaded,) = load_suites(["exam"], None, 30)
    assert len(loaded.questions) == 30 and len(loaded.all_questions) == 800
    assert loaded.sha256 == {path.name: hash_of(path) for path in sorted(OWN.glob("*.jsonl"))}
    assert load_suites(["exam"], tmp_path)[0].questions == loaded.all_questions
    with pytest.raises(UserError, match="gsm8k is read from files: give their folder by --data"):
        load_suites(["exam", "gsm8k"], None)


def test_a_folder_may_have_an_exam_of_its_own(tmp_path: Path):
    (tmp_path / "exam").mkdir()
    lines = (OWN / "deduction.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "exam" / "deduction.jsonl").write_text("".join(lines[:5]))
    assert len(load_suites(["exam"], tmp_path)[0].questions) == 5


def test_another_file_is_refused_unless_it_is_wanted(tmp_path: Path):
    folder = crux(tmp_path)
    with pytest.raises(UserError, match=r"is not the tested file of the suite cruxeval-o \(SHA-256 \w{12}, not"):
        load_suites(["cruxeval-o"], folder)
    (loaded,) = load_suites(["cruxeval-o"], folder, altered=True)
    assert len(loaded.questions) == 10 and loaded.sha256["cruxeval.jsonl"] == hash_of(folder / "cruxeval.jsonl")


def test_a_damaged_row_is_named_rather_than_the_hash(tmp_path: Path):
    with pytest.raises(UserError, match=r"cruxeval\.jsonl, row 7"):
        load_suites(["cruxeval-i"], crux(tmp_path, damaged=7))


def test_a_subset_is_spread_evenly_and_small_groups_give_what_they_have():
    questions = load_suites(["exam"], None)[0].all_questions
    half = subset(questions, 400)
    assert half == tuple(questions[::2])
    few = subset(questions[:20] + questions[790:], 30, groups_alike=True)
    assert [sum(question.group.startswith(kind) for question in few) for kind in ("deduction", "induction")] == [15, 10]
    assert subset(questions, 10_000, groups_alike=True) == questions


def test_the_list_says_what_is_there(tmp_path: Path):
    found = {row[0]: row for row in listing(crux(tmp_path, damaged=3))}
    assert set(found) == set(SUITES)
    assert found["cruxeval-o"][1].startswith("damaged: ") and "row 3" in found["cruxeval-o"][1]
    assert found["exam"][1::3] == ("found", "800") and found["gsm8k"][1:3] == ("not found", "-")
    assert "gsm8k.jsonl: gsm8k of" in found["gsm8k"][5]
    assert {row[0]: row for row in listing(crux(tmp_path))}["cruxeval-o"][1] == "another file"
    assert {row[0]: row for row in listing(None)}["exam"][1] == "found"
    public = {row[0]: row for row in listing(file("cruxeval.jsonl").parent)}
    assert public["cruxeval-o"][1::3] == ("found", "800") == public["cruxeval-i"][1::3]


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json.gz"])
@pytest.mark.parametrize("content", [b"0" * 10**6, b"{}\n" * 10**6], ids=["one line", "many lines"])
def test_a_bomb_of_gzip_is_refused(tmp_path, monkeypatch, name, content):
    (tmp_path / name).write_bytes(gzip.compress(content))
    monkeypatch.setattr(files, "_MOST_UNPACKED", 10**5)
    with pytest.raises(UserError, match=r"unpacks to over 100 times its size|row 1: it is no JSON"):
        list(files.read_rows(tmp_path / name))
