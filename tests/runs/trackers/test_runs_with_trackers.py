"""A run with its trackers, through the logger that the experiment uses."""

import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from azr.own_data import code_version
from azr.runs.sample_file import read_metrics
from azr.runs.trackers.base import NOTHING
from azr.runs.trackers.tensorboard import TensorBoardTracker
from tests.runs.trackers.factory import TABLES, Play, clean_environment, config
from tests.runs.trackers.wandb_file import files, history


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: Path) -> None:
    clean_environment(monkeypatch, tmp_path)
    shutil.copy(database, tmp_path / "mlflow.db")
    monkeypatch.setenv("WANDB_MODE", "offline")


async def test_a_run_that_goes_back_to_an_earlier_step_has_each_step_once_everywhere(tmp_path: Path) -> None:
    first = Play(config(tmp_path, "tensorboard"))
    saved = await first.step(1, 1.0)
    await first.step(2, 2.0)
    first.logger.close()

    # A tracker that comes later gets what the run has behind it.
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    all_four = config(tmp_path, "tensorboard", "wandb", "mlflow", "prometheus")
    all_four = replace(all_four, tracking=replace(all_four.tracking, address=address))
    second = Play(all_four, saved)
    await second.step(2, 20.0)
    saved = await second.step(3, 30.0)
    await second.step(4, 40.0)
    await second.step(5, 50.0)
    second.logger.close()
    assert "Weights & Biases: kept in" in second.out.getvalue()

    third = Play(all_four, saved)
    for step in (4, 5, 6):
        await third.step(step, 100.0 * step)
    printed = third.end()
    for name in ("Weights & Biases", "MLflow"):
        assert f"{name} keeps what it holds of steps 4 to 5, from before the run went back" in printed

    run = third.logger.run
    losses = {1: 1.0, 2: 20.0, 3: 30.0, 4: 400.0, 5: 500.0, 6: 600.0}
    assert {step: metrics["policy/loss"] for step, metrics in read_metrics(run.metrics)} == losses
    events = EventAccumulator(str(run.tensorboard)).Reload()
    assert {event.step: event.value for event in events.Scalars("policy/loss")} == losses
    rows = [row for file in files(run.path) for row in history(file) if "policy/loss" in row]
    assert {row["step"]: row["policy/loss"] for row in rows} == losses | {4: 40.0, 5: 50.0}
    places = [row["_step"] for file in files(run.path) for row in history(file)]
    assert places == sorted(set(places)), "W&B drops a row that is not behind those before it"
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (found,) = client.search_runs(["1"])
    points = client.get_metric_history(found.info.run_id, "policy/loss")
    assert {point.step: point.value for point in points} == losses | {4: 40.0, 5: 50.0}
    assert len(points) == 6 and found.info.status == "FINISHED"
    assert len(rows) == 6 and len({file.name for file in files(run.path)}) == 1


async def test_samples_of_a_step_are_shown(tmp_path: Path) -> None:
    play = Play(config(tmp_path, "tensorboard", "wandb"))
    await play.step(1, 1.0)
    await play.step(2, 2.0)
    play.end()
    run = play.logger.run
    events = EventAccumulator(str(run.tensorboard)).Reload()
    (rollouts,) = events.Tensors("samples/rollouts/text_summary")
    assert rollouts.step == 1 and b"prompt: 3 tokens" in rollouts.tensor_proto.string_val[0]
    (file,) = files(run.path)
    history(file)
    tables = {path.name.split("_")[0]: json.loads(path.read_text()) for path in file.parent.rglob("*.table.json")}
    assert len(tables["rollouts"]["data"]) == 3 and tables["tasks"]["data"][0][2] == "000001-deduction-0001"


def test_tensorboard_shows_the_same_numbers(tmp_path: Path) -> None:
    tracker = TensorBoardTracker()
    assert tracker.open(tmp_path, config(tmp_path)) == NOTHING
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
    assert text("config/text_summary").startswith(f"    # azr {code_version()}\n    run:\n      name: run")
