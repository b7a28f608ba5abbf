from __future__ import annotations

import gzip
import json
import math
import resource
import zlib
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from azr.hashed_files import hash_file
from azr.records import Learned, Role, Task
from azr.runs.run_state import FileOffset
from azr.runs.sinks import MEMBER_BYTES, JsonLines, read_tasks, write_rollouts
from tests.runs.factory import trajectory


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_record_is_one_line_that_is_on_disk_at_once(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "metrics.jsonl")
    log.write([{"step": 1, "policy/loss": 0.5, "x/hist": [1, 0]}])
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1, "policy/loss": 0.5, "x/hist": [1, 0]}]
    log.close()
    again = JsonLines(tmp_path / "metrics.jsonl", log.offset())
    again.write([{"step": 2}])
    again.close()
    assert [line["step"] for line in read(tmp_path / "metrics.jsonl")] == [1, 2]


def test_the_digest_grows_with_the_file_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = JsonLines(path)
    assert log.offset() == FileOffset()
    log.write([{"a": "ü"}, {"b": 1}])
    offset = log.offset()
    assert offset == FileOffset(path.stat().st_size, hash_file(path).digest)
    log.write([{"c": 1}])
    log.close()
    offset.truncate(path, tmp_path / "aside")
    again = JsonLines(path, offset)
    assert again.offset() == offset and len(read(path)) == 2
    again.write([{"d": 1}])
    again.close()
    assert again.offset() == FileOffset(path.stat().st_size, hash_file(path).digest)


def test_a_line_that_does_not_fit_on_the_disk_is_an_error(tmp_path: Path) -> None:
    free = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = JsonLines(tmp_path / "log")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, free[1]))
    try:
        with pytest.raises(OSError, match="could not be written"):
            log.write([{"text": "x" * 5000}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, free)
        log.close()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_never_reach_a_file(tmp_path: Path, bad: float) -> None:
    lines = JsonLines(tmp_path / "lines.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        lines.write([{"nested": {"reward": bad}}])
    lines.close()
    assert (tmp_path / "lines.jsonl").read_bytes() == b""


def test_tasks_read_back_as_they_were(tmp_path: Path) -> None:
    task = Task(
        id="1",
        kind="deduction",
        program="def f(s):\n    return s",
        inputs=("'\ud800ü'",),
        outputs=("'\ud800ü'",),
        fingerprint="f",
        parents=("0",),
        solve_rate=0.5,
    )
    log = JsonLines(tmp_path / "tasks.jsonl")
    log.write([asdict(task)])
    log.write([asdict(task), asdict(task)])
    log.close()
    assert read_tasks(tmp_path / "tasks.jsonl") == [task] * 3


def test_rollouts_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "step_000003.jsonl.gz"
    rollouts = [(trajectory(Role.SOLVER, accuracy=1.0), Learned(0.25, 0.125)), (trajectory(Role.PROPOSER), None)]
    write_rollouts(path, 3, rollouts, lambda ids: " ".join(map(str, ids)))
    with gzip.open(path, "rt") as file:
        solver, proposer = map(json.loads, file)
    assert solver == {
        "step": 3,
        "role": "solver",
        "kind": "deduction",
        "task_id": "000001-deduction-0001",
        "group": "solve:1:000001-deduction-0001",
        "prompt": "1 2 3",
        "response": "0 1",
        "reward": 1.0,
        "reward_parts": {"right": 1.0},
        "accuracy": 1.0,
        "finish_reason": "stop",
        "weight_versions": [[4, 2]],
        "schema": 3,
        "outcome": None,
        "detail": "",
        "answer": None,
        "prompt_tokens": 3,
        "response_tokens": 2,
        "trained": True,
        "advantage": 0.25,
        "mismatch": 0.125,
        "trace_tokens": 0,
        "flags": [],
    }
    assert proposer["accuracy"] is None and proposer["role"] == "proposer" and not proposer["trained"]


def test_a_record_says_what_a_trace_gave(tmp_path: Path) -> None:
    path = tmp_path / "step_000003.jsonl.gz"
    begun, whole = (replace(trajectory(Role.SOLVER), trace_tokens=tokens) for tokens in (1, 2))
    write_rollouts(path, 3, [(begun, Learned(0.5, 0.25)), (whole, Learned(0.5, None))], lambda ids: "")
    with gzip.open(path, "rt") as file:
        told = [
            [line[name] for name in ("trace_tokens", "weight_versions", "mismatch")] for line in map(json.loads, file)
        ]
    assert told == [[1, [[4, 1]], 0.25], [2, [], None]]


def test_a_reader_gets_at_the_middle_of_a_step_by_its_gzip_member(tmp_path: Path) -> None:
    path = tmp_path / "step_000001.jsonl.gz"
    write_rollouts(path, 1, [(trajectory(Role.SOLVER), None)] * 100, lambda ids: "x" * 10_000)
    with gzip.open(path) as file:
        lines = file.read().splitlines()
    assert len(lines) == 100
    member, rest = zlib.decompressobj(wbits=31), path.read_bytes()
    first = member.decompress(rest)
    assert MEMBER_BYTES <= len(first) < MEMBER_BYTES + len(lines[0]) + 1
    assert gzip.decompress(member.unused_data).startswith(lines[0])


def test_a_step_without_rollouts_is_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "step_000001.jsonl.gz"
    write_rollouts(path, 1, [], str)
    with gzip.open(path) as file:
        assert file.read() == b""


def test_rollouts_that_cannot_be_written_whole_do_not_appear(tmp_path: Path) -> None:
    path = tmp_path / "step_000001.jsonl.gz"
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_rollouts(path, 1, [(trajectory(Role.SOLVER, reward=math.nan), None)], str)
    assert not path.exists()
