"""``azr data`` as a user meets it."""

import json

import pytest

from azr.cli.main import dispatch
from azr.datasets.rows import read_rows
from tests.cli.test_main import assert_light

ROWS = [
    {"prompt": "How many legs has a spider?", "grader": "math", "answer": "8"},
    {"prompt": "How many legs has an ANT?\nBox it.", "grader": "math", "answer": "6"},
]


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def suites(tmp_path):
    folder = tmp_path / "suites"
    folder.mkdir()
    stated = 'name = "bugs"\nfile = "bugs.jsonl"\ngrader = "math"\nprompt = "{problem} Be short."\n'
    (folder / "bugs.toml").write_text(stated)
    (folder / "bugs.jsonl").write_text('{"problem": "How many legs has an ant?", "answer": 6}\n')
    return folder


def test_what_suites_hold_is_left_out_and_said(rows, suites, tmp_path, capsys):
    out = tmp_path / "left.jsonl"
    assert dispatch(["data", str(rows), str(out), "--against", str(suites)]) == 0
    first, *said = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{rows}: 2 rows, compared with 801 questions of ")
    written = f"written to {out}: 1; a run trains on them with --data.path {out}"
    assert said == ["left out: 1", "  in bugs, exactly: 1 (rows 2)", written]
    assert [row.question.gold.answers for row in read_rows(out)] == [("8",)]
    assert_light(["data", str(rows), str(tmp_path / "again.jsonl"), "--against", str(suites)])
