"""``azr data prepare`` as a user meets it."""

import json
import sys

import pytest

from azr.cli.main import dispatch
from azr.datasets.rows import read_rows
from tests.cli.test_main import assert_light
from tests.executor import public_data

QUESTIONS = [
    {"question": "How many legs\x1b[2J has a spider?", "answer": "Four pairs.\n#### 8"},
    {"question": "How many legs has an ant?", "answer": "Three pairs.\n#### 6"},
    {"question": "How many legs has an ANT?", "answer": "Three pairs.\n#### 6"},
    {"question": "How many stars are there?", "answer": "Nobody knows."},
]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    return path


@pytest.fixture
def suites(tmp_path):
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "bugs.toml").write_text(
        'name = "bugs"\nfile = "bugs.jsonl"\ngrader = "math"\nprompt = "{problem} Be short."\n'
    )
    (folder / "bugs.jsonl").write_text('{"problem": "How many legs has an ant?", "answer": 6}\n')
    return folder


def test_what_was_left_out_is_said_and_shown_without_control_characters(source, tmp_path, capsys):
    out = tmp_path / "rows.parquet"
    assert dispatch(["data", "prepare", "gsm8k", str(source), str(out)]) == 0
    said = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[0] == f"{source}: 4 rows"
    assert {"written 2", "left out: no answer 1", "left out: repeats an earlier prompt 1", "with traces 0"} < set(lines)
    assert "Nothing was compared with evaluation suites: --against DIR does that." in lines
    assert "The grader of mathematics reads 2 of 2 answers as more than text (100.0%)." in lines
    assert "\x1b" not in said and "legs\\x1b[2J has" in said and "answer: 8" in lines
    assert f"--data.path {out}" in lines[-1]
    assert [row.question.gold.answers for row in read_rows(out)] == [("8",), ("6",)]


def test_what_suites_hold_is_left_out_and_said(source, suites, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    assert dispatch(["data", "prepare", "gsm8k", str(source), str(out), "--against", str(suites)]) == 0
    said = capsys.readouterr().out
    assert "Compared with 801 questions of exam, bugs." in said or "Compared with 801 questions of bugs, exam." in said
    assert "in bugs, exactly: 1 (rows 2)" in said
    assert [row.question.id for row in read_rows(out)] == ["1"]


def test_a_broken_line_is_named_and_the_old_file_stays(source, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    out.write_text("mine")
    assert dispatch(["data", "prepare", "gsm8k", str(source), str(out)]) == 2
    assert "exists already: name another file, or replace it by --overwrite" in capsys.readouterr().err
    source.write_text(source.read_text() + "{broken\n")
    assert dispatch(["data", "prepare", "gsm8k", str(source), str(out), "--overwrite"]) == 2
    assert "row 5: it is no JSON" in capsys.readouterr().err
    assert out.read_text() == "mine" and sorted(tmp_path.iterdir()) == [out, source]
    source.write_text(json.dumps(QUESTIONS[0]))
    assert dispatch(["data", "prepare", "gsm8k", str(source), str(out), "--overwrite"]) == 0
    assert len(read_rows(out)) == 1


def test_a_missing_package_is_named_with_its_command(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert dispatch(["data", "prepare", "gsm8k", str(source), str(tmp_path / "rows.parquet")]) == 2
    assert "takes pyarrow, which is missing: run pip install -e '.[eval]'" in capsys.readouterr().err


def test_it_loads_nothing_heavy(source, suites, tmp_path):
    out = tmp_path / "rows.parquet"
    assert_light(["data", "prepare", "gsm8k", str(source), str(out), "--against", str(suites)])


def test_gsm8ks_own_questions_are_all_found(tmp_path, capsys):
    source = public_data.file("gsm8k.jsonl")
    out = tmp_path / "rows.jsonl"
    assert dispatch(["data", "prepare", "gsm8k", str(source), str(out), "--against", str(source.parent)]) == 2
    assert "is left (1,319 in an evaluation suite), so" in capsys.readouterr().err
    assert not out.exists()
