import io
import json
import math
from pathlib import Path

import pytest

from azr.config import Config, DataConfig, RunConfig
from azr.errors import UserError
from azr.hashed_files import hash_file
from azr.records import Task
from azr.runs.progress import open_progress
from azr.runs.run_dir import RunDirectory
from azr.runs.run_logger import RunLogger
from azr.runs.sample_file import FileOffset, JsonLines, LogOffsets, read_metrics, read_tasks
from tests.runs.factory import largest_file

TASK = Task(
    id="a", kind="deduction", program="def f(x): return '\u2028\x85\n'", inputs=("'\ud800ü'",), outputs=("'\\ud800'",),
    fingerprint="f", message="m\u2029", parents=("b", "c"), step=3, solve_rate=0.5,
)  # fmt: skip


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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
    log = JsonLines(tmp_path / "log")
    with largest_file(1000), pytest.raises(OSError, match="could not be written"):
        log.write([{"text": "x" * 5000}])
    log.close()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_never_reach_a_file(tmp_path: Path, bad: float) -> None:
    lines = JsonLines(tmp_path / "lines.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        lines.write([{"nested": {"reward": bad}}])
    lines.close()
    assert (tmp_path / "lines.jsonl").read_bytes() == b""


def test_an_offset_knows_what_a_file_began_with(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("one\n")
    offset = FileOffset(file.stat().st_size, hash_file(file).digest)
    file.write_text("one\ntwo\n")
    offset.check(file)
    offset.truncate(file, tmp_path / "aside")
    assert file.read_text() == "one\n" and (tmp_path / "aside").read_text() == "two\n"
    for text in ("oNe\n", "on"):
        file.write_text(text)
        with pytest.raises(UserError, match="was altered"):
            offset.check(file)


def test_the_beginning_of_a_run_asks_for_no_file(tmp_path: Path) -> None:
    FileOffset().check(tmp_path / "missing")
    FileOffset().truncate(tmp_path / "missing", tmp_path / "aside")
    assert not (tmp_path / "aside").exists()
    (tmp_path / "log").write_text("one\n")
    FileOffset().truncate(tmp_path / "log", tmp_path / "aside")
    assert (tmp_path / "log").read_text() == "" and (tmp_path / "aside").read_text() == "one\n"


def test_a_run_is_cut_back_to_a_step_and_tensorboard_made_again(tmp_path: Path) -> None:
    data = DataConfig(path="rows.jsonl")  # no kind of self-play, whose funnel would be among the numbers
    config = Config(run=RunConfig(root=str(tmp_path), name="run", steps=9), data=data)
    logger = RunLogger.create(config, open_progress(io.StringIO()))
    offsets: dict[int, LogOffsets] = {}
    for step in (1, 2, 3):
        logger.log_tasks([TASK])
        logger.end_step(step, [], {"policy": {"loss": float(step)}}, {})
        logger.run.rollouts(step).write_bytes(b"...")
        offsets[step] = logger.offsets()
    logger.run.rollouts(4).with_name(".step_000004.jsonl.gz").write_bytes(b"half")
    logger.close()
    again = RunLogger.reopen(config, open_progress(io.StringIO()), 2, offsets[2])
    run = again.run
    assert read_metrics(run.metrics) == [(1, {"policy/loss": 1.0}), (2, {"policy/loss": 2.0})]
    assert read_tasks(run.tasks) == [TASK, TASK]
    assert sorted(path.name for path in run.rollouts(0).parent.iterdir()) == [
        "step_000001.jsonl.gz", "step_000002.jsonl.gz",
    ]  # fmt: skip
    (aside,) = (run.path / "passed_over").iterdir()
    assert read_metrics(aside / "metrics.jsonl") == [(3, {"policy/loss": 3.0})]
    assert read_tasks(aside / "tasks.jsonl") == [TASK] and (aside / "rollouts" / "step_000003.jsonl.gz").is_file()
    again.end_step(3, [], {"policy": {"loss": 7.0}}, {})
    again.close()
    assert scalars(run) == {1: 1.0, 2: 2.0, 3: 7.0}


def test_a_run_that_seeds_again_has_nothing_of_its_first_seeding(tmp_path: Path) -> None:
    config = Config(run=RunConfig(root=str(tmp_path), name="run", steps=9))
    logger = RunLogger.create(config, open_progress(io.StringIO()))
    logger.log_tasks([TASK])
    logger.run.rollouts(0).write_bytes(b"...")
    logger.close()
    run = RunLogger.reopen(config, open_progress(io.StringIO()), 0, LogOffsets()).run
    assert not run.rollouts(0).exists() and read_tasks(run.tasks) == []


def scalars(run: RunDirectory) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    return {event.step: event.value for event in events.Scalars("policy/loss")}
