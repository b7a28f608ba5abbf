from __future__ import annotations

from pathlib import Path

import pytest

from azr.config import Config, RunConfig, TrackingConfig
from azr.records import Task
from azr.runs.display import open_progress
from azr.runs.log_offsets import Mark, Position
from azr.runs.run_dir import RunDirectory
from azr.runs.run_logger import Tracker
from azr.runs.sinks import read_metrics, read_tasks

TASK = Task(
    id="a", kind="deduction", program="def f(x): return '\u2028\x85\n'", inputs=("1",), outputs=("'\\ud800'",),
    fingerprint="f", message="m\u2029", parents=("b", "c"), step=3, solve_rate=0.5,
)  # fmt: skip


def test_a_mark_knows_what_a_file_began_with(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("one\n")
    mark = Mark.of(file)
    file.write_text("one\ntwo\n")
    mark.check(file)
    mark.cut(file)
    assert file.read_text() == "one\n"
    for text in ("oNe\n", "on"):
        file.write_text(text)
        with pytest.raises(ValueError, match="was altered"):
            mark.check(file)


def test_the_beginning_of_a_run_asks_for_no_file(tmp_path: Path) -> None:
    Mark().check(tmp_path / "missing")
    Mark().cut(tmp_path / "missing")
    (tmp_path / "log").write_text("one\n")
    Mark().cut(tmp_path / "log")
    assert (tmp_path / "log").read_text() == ""


def test_a_run_is_cut_back_to_a_step_and_its_mirror_made_again(tmp_path: Path) -> None:
    config = Config(run=RunConfig(root=str(tmp_path), name="run", steps=9), tracking=TrackingConfig(progress=False))
    tracker = Tracker.create(config, open_progress(False))
    places: dict[int, Position] = {}
    for step in (1, 2, 3):
        tracker.stored([TASK])
        tracker.end_step(step, [], {}, {"policy": {"loss": float(step)}})
        tracker.run.rollouts(step).write_bytes(b"...")
        places[step] = tracker.run.position()
    tracker.run.rollouts(4).with_name(".step_000004.jsonl.gz").write_bytes(b"half")
    tracker.close()
    again = Tracker.reopen(config, open_progress(False), 2, places[2])
    run = again.run
    assert read_metrics(run.metrics) == [(1, {"policy/loss": 1.0}), (2, {"policy/loss": 2.0})]
    assert read_tasks(run.tasks) == [TASK, TASK]
    assert sorted(path.name for path in run.rollouts(0).parent.iterdir()) == [
        "step_000001.jsonl.gz", "step_000002.jsonl.gz",
    ]  # fmt: skip
    again.end_step(3, [], {}, {"policy": {"loss": 7.0}})
    again.close()
    assert scalars(run) == {1: 1.0, 2: 2.0, 3: 7.0}


def scalars(run: RunDirectory) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    return {event.step: event.value for event in events.Scalars("policy/loss")}
