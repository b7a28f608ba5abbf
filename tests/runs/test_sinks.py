from __future__ import annotations

import json
import math
import resource
from dataclasses import asdict
from pathlib import Path

import pytest

from azr.hashed_files import hash_file
from azr.records import Task
from azr.runs.sample_file import FileOffset, JsonLines, read_tasks


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
