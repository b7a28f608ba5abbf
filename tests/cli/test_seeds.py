"""``azr seeds`` as a user meets it: conversion with the real sandbox, and mistakes."""

import json

import pytest

from azr.cli.main import dispatch
from azr.selfplay.seeds import read_seeds

ONE_CALL = [
    {"snippet": "def f(a):\n    return math.sqrt(a)", "input": "4", "output": "2.0", "imports": ["import math"]},
    {"snippet": "import math\ndef f(a):\n    return math.pi > a", "input": "9", "output": "True",
     "imports": ["import math"], "_input_type": "int"},
    {"snippet": "def f(a):\n    return a", "inputs": ["1", "'x'"], "outputs": ["1", "'x'"], "message": "Same.",
     "imports": []},
    {"snippet": "def f(a):\n    return a"},
    {"snippet": "import random\ndef f(a):\n    return random.random()", "input": "1", "output": "''", "imports": []},
]  # fmt: skip
RAISES = {"snippet": "def f(a):\n    return a // 0", "input": "1", "output": "ZeroDivisionError", "imports": []}


@pytest.fixture
def authors(tmp_path):
    path = tmp_path / "authors.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in ONE_CALL) + "no JSON\n")
    return path


def test_the_authors_files_become_tasks_of_ours_and_every_refusal_names_its_line(authors, tmp_path, capsys):
    out = tmp_path / "new" / "seeds.jsonl"
    assert dispatch(["seeds", "--convert", str(authors), "--out", str(out), "--executor.workers", "2"]) == 0
    seeds = [task for _, task in read_seeds(out)]
    assert [(seed.kind, seed.outputs) for seed in seeds] == [
        ("deduction", ("2.0",)), ("abduction", ("2.0",)), ("deduction", ("False",)), ("abduction", ("False",)),
        ("induction", ("1", "'x'")),
    ]  # fmt: skip
    assert seeds[0].program == "import math\ndef f(a):\n    return math.sqrt(a)"
    assert seeds[2].program.count("import math") == 1 and seeds[4].message == "Same."
    refused = [json.loads(line) for line in (tmp_path / "new" / "seeds_rejected.jsonl").read_text().splitlines()]
    assert [(each["line"], each["reason"]) for each in refused] == [
        (4, "broken"), (5, "not_allowed"), (5, "not_allowed"), (6, "broken"),
    ]  # fmt: skip
    assert "`input`" in refused[0]["detail"] and {each["file"] for each in refused} == {str(authors)}
    said = capsys.readouterr().out
    assert "seeds: 5 of 9 tasks of" in said and "2 with another output than stated" in said
    assert f"with --selfplay.seeds {out}" in said


def test_records_of_their_error_kind_and_several_files(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(RAISES))
    out = tmp_path / "seeds.jsonl"
    files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    assert dispatch(["seeds", "--convert", *files, "--kinds", "error", "--out", str(out)]) == 0
    ((_, seed),) = read_seeds(out)
    assert (seed.kind, seed.outputs) == ("error", ("ZeroDivisionError",))
    (refused,) = map(json.loads, (tmp_path / "seeds_rejected.jsonl").read_text().splitlines())
    assert (refused["file"], refused["reason"]) == (files[1], "duplicate")


def test_a_file_of_which_nothing_passes_is_not_written(tmp_path, capsys):
    source, out = tmp_path / "authors.jsonl", tmp_path / "seeds.jsonl"
    source.write_text(json.dumps(RAISES))
    assert dispatch(["seeds", "--convert", str(source), "--out", str(out)]) == 2
    assert "None of the tasks passed" in capsys.readouterr().err
    assert not out.exists() and (tmp_path / "seeds_rejected.jsonl").exists()
