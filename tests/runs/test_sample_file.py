"""Samples are written as they are declared and read back as they were."""

import gzip
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest

from azr.records import NO_TOKENS, Judgement, Sample
from azr.runs.sample_file import FIELDS, SCHEMA, read_sample, sample_line, token_texts, write_samples
from tests import tables
from tests.runs.factory import sample


def lines(path: Path) -> list[bytes]:
    with gzip.open(path) as file:
        return file.read().splitlines()


def test_samples_are_written_as_they_are_with_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "step_000003.jsonl.gz"
    judgement = Judgement(verdict="right", detail="why", answer=(("output", "4"),), parts={"base": True})
    solver = sample("solver", accuracy=1.0, judgement=judgement, advantage=0.25, mismatch=0.125)
    solver.flags, solver.tokens = [("harm", 0, 1)], [("", -0.5, -0.25), ("", None, None)]
    write_samples(path, 3, [solver, sample("proposer", used="recorded")], lambda ids: " ".join(map(str, ids)))
    written, proposer = map(json.loads, lines(path))
    assert written == {
        "step": 3, "role": "solver", "kind": "deduction", "problem_id": "000001-deduction-0001", "index": None,
        "group": "solve:1:000001-deduction-0001", "prompt": "1 2 3", "response": "0 1", "prompt_tokens": 3,
        "response_tokens": 2, "finish_reason": "stop", "weight_versions": [[4, 2]], "trace_tokens": 0,
        "observed": [],
        "judgement": {
            "verdict": "right", "detail": "why", "answer": [["output", "4"]], "parts": {"base": True}, "score": None,
            "reason": "",
        },
        "accuracy": 1.0, "solve_rate": None, "reward": 1.0, "reward_parts": {"right": 1.0}, "used": "trained",
        "advantage": 0.25, "mismatch": 0.125, "tokens": [["0", -0.5, -0.25], [" 1", None, None]],
        "flags": [["harm", 0, 1]], "schema": 4,
    }  # fmt: skip
    assert proposer["accuracy"] is proposer["judgement"] is None
    assert (proposer["role"], proposer["used"]) == ("proposer", "recorded")
    assert read_sample(lines(path)[0]) == replace(
        solver, completion=NO_TOKENS, prompt_tokens=3, response_tokens=2, weight_versions=[(4, 2)]
    )


def test_prompts_of_a_group_are_decoded_once_and_texts_of_tokens_add_up(tmp_path: Path) -> None:
    first = sample("solver")
    group, decoded = [first, replace(first), sample("solver")], list[int]()
    write_samples(tmp_path / "a.gz", 1, group, lambda ids: decoded.append(len(ids)) or "text")
    assert decoded == [3, 2, 2, 3, 2]

    def decode(ids: Sequence[int]) -> str:  # like a tokenizer of bytes that drops a first space
        return bytes(ids).decode("utf-8", "replace").removeprefix(" ")

    text = " a ü €  b"
    pieces = list(token_texts(list(text.encode()), decode))
    assert "".join(pieces).replace("\ufffd", "") == text[1:]
    assert pieces[2:6] == [" ", "\ufffd", "ü", " "]


def test_a_line_says_what_a_trace_gave_and_samples_that_are_not_whole_do_not_appear(tmp_path: Path) -> None:
    path = tmp_path / "step_000003.jsonl.gz"
    write_samples(path, 3, [sample("solver", trace_tokens=tokens) for tokens in (0, 2)], lambda ids: "")
    said = [[line[name] for name in ("trace_tokens", "weight_versions")] for line in map(json.loads, lines(path))]
    assert said == [[0, [[4, 2]]], [2, []]]
    assert [read_sample(line).origin for line in lines(path)] == ["sampled", "trace"]
    path = tmp_path / "step_000001.jsonl.gz"
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_samples(path, 1, [sample("solver", reward=math.nan)], str)
    assert not path.exists()
    write_samples(path, 1, [], str)
    assert lines(path) == []


def test_half_a_surrogate_pair_is_read_as_its_escape() -> None:
    odd = sample("solver", judgement=Judgement(verdict="wrong", detail="'\ud800'"))
    odd.response = "\ud800 is it"
    read = read_sample(sample_line(odd))
    assert (read.response, read.schema) == ("\\ud800 is it", SCHEMA)
    assert read.judgement is not None and read.judgement.detail == "'\\ud800'"


def test_what_is_no_sample_is_a_sentence() -> None:
    for line in (b"no json", b"\xff", b"[]", b"[" * 100_000, b'{"step": 3}', sample_line(sample("judge"))):
        with pytest.raises(ValueError, match="it is not a Sample"):
            read_sample(line)
    for schema in (3, 5):
        with pytest.raises(ValueError, match=f"it has schema {schema}, and this version of azr reads schema 4"):
            read_sample(sample_line(sample("solver", schema=schema)))
    assert {each.name for each in fields(Sample)} - set(FIELDS) == {"completion"}, "ids and log-probabilities stay out"


MORE_FIELDS = tables.programs(Path(__file__).with_name("programs.txt"), "process")["more fields"]


def test_a_field_that_is_added_is_in_the_file_and_in_the_index_without_another_edit(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MORE_FIELDS, str(tmp_path / "run")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second, _, *rows = done.stdout.splitlines()
    assert '"colour": "blue", "is_new": true, "marks": {"a": 1}' in first and '"confidence": 0.5' in first
    assert '"colour": "red", "is_new": false, "marks": {}' in second
    assert rows == ["blue True {'a': 1} 0.5", "red False {} None"]
