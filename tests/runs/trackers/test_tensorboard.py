from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from azr.runs.trackers.base import NOTHING, TrackedRun
from azr.runs.trackers.tensorboard import TensorBoardTracker
from tests.runs.trackers.factory import TABLES, config


def test_tensorboard_shows_the_same_numbers(tmp_path: Path) -> None:
    tracker = TensorBoardTracker()
    assert tracker.open(TrackedRun(path=tmp_path, config=config(tmp_path), version="1 (abc)")) == NOTHING
    tracker.write(1, {"policy/loss": 0.5, "deduction/proposer/solve_rate_hist": [1, 0, 2], "executor/calls": 7})
    tracker.write(2, {"policy/loss": 0.25, "deduction/proposer/solve_rate_hist": [0, 3, 0]})
    tracker.write_tables(1, TABLES)
    tracker.close(complete=True)
    guidance = {"scalars": 0, "histograms": 0, "tensors": 0}
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance=guidance).Reload()
    assert [(event.step, event.value) for event in events.Scalars("policy/loss")] == [(1, 0.5), (2, 0.25)]
    assert [event.value for event in events.Scalars("executor/calls")] == [7.0]
    first, second = (event.histogram_value for event in events.Histograms("deduction/proposer/solve_rate_hist"))
    assert (first.min, first.max, first.num, first.sum, first.sum_squares) == (0.0, 1.0, 3.0, 2.0, 2.0)
    assert list(first.bucket) == [1.0, 0.0, 2.0] and list(first.bucket_limit) == [0.25, 0.75, 1.25]
    assert (second.min, second.max, list(second.bucket)) == (0.5, 0.5, [0.0, 3.0, 0.0])

    def text(tag: str) -> str:
        (event,) = events.Tensors(tag)
        return bytes(event.tensor_proto.string_val[0]).decode()

    assert text("samples/tasks/text_summary") == "    step: 1\n    program: def f(x): return '<b>'"
    assert text("config/text_summary").startswith("    # azr 1 (abc)\n    run:\n      name: run")
