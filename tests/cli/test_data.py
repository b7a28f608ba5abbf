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
    (folder / "bugs.toml").write_text(
        'name = "bugs"\nfile = "bugs.jsonl"\ngrader = "math"\nprompt = "{problem} Be short."\n'
    )
    (folder / "bugs.jsonl").write_text('{"problem": "How many legs has an ant?", "answer": 6}\n')
    return folder


def test_what_suites_hold_is_left_out_and_said(rows, suites, tmp_path, capsys):
    out = tmp_path / "left.jsonl"
    assert dispatch(["data", str(rows), str(out), "--against", str(suites)]) == 0
    first, *said = capsys.readouterr().out.splitlines()
    assert first in (
        f"{rows}: 2 rows, compared with 801 questions of {names}" for names in ("exam, bugs", "bugs, exam")
    )
    assert said == [
        "left out: 1",
        "  in bugs, exactly: 1 (rows 2)",
        f"written to {out}: 1; a run trains on them with --data.path {out}",
    ]
    assert [row.question.gold.answers for row in read_rows(out)] == [("8",)]


def test_it_loads_nothing_heavy(rows, suites, tmp_path):
    assert_light(["data", str(rows), str(tmp_path / "left.jsonl"), "--against", str(suites)])
