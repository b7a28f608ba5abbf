"""Weights & Biases, MLflow and TensorBoard, by themselves and in a run through the logger that the experiment uses."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from azr.errors import UserError
from azr.own_data import code_version
from azr.runs.sample_file import read_metrics
from azr.runs.trackers import mlflow as module
from azr.runs.trackers.base import NOTHING
from azr.runs.trackers.mlflow import MlflowTracker, metric_name
from azr.runs.trackers.tensorboard import TensorBoardTracker
from azr.runs.trackers.wandb import WandbTracker
from tests.runs.trackers.factory import METRICS, TABLES, Play, clean_environment, config, silent_server
from tests.runs.trackers.wandb_file import files, history, records


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
    all_three = config(tmp_path, "tensorboard", "wandb", "mlflow")
    second = Play(all_three, saved)
    await second.step(2, 20.0)
    saved = await second.step(3, 30.0)
    await second.step(4, 40.0)
    await second.step(5, 50.0)
    second.logger.close()
    assert "Weights & Biases: kept in" in second.out.getvalue()

    third = Play(all_three, saved)
    for step in (4, 5, 6):
        await third.step(step, 100.0 * step)
    printed = third.end()
    for name in ("Weights & Biases", "MLflow"):
        assert f"{name} keeps steps 4 to 5 of before the run went back" in printed

    run = third.logger.run
    losses = {1: 1.0, 2: 20.0, 3: 30.0, 4: 400.0, 5: 500.0, 6: 600.0}
    assert {step: metrics["policy/loss"] for step, metrics in read_metrics(run.metrics)} == losses
    events = EventAccumulator(str(run.tensorboard)).Reload()
    assert {event.step: event.value for event in events.Scalars("policy/loss")} == losses
    rows = [row for file in files(run.path) for row in history(file) if "policy/loss" in row]
    assert {row["step"]: row["policy/loss"] for row in rows} == losses | {4: 40.0, 5: 50.0}
    places = [row["_step"] for file in files(run.path) for row in history(file)]
    assert places == sorted(set(places)), "W&B drops a row that is not behind those before it"
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (found,) = client.search_runs(["1"])
    points = client.get_metric_history(found.info.run_id, "policy/loss")
    assert {point.step: point.value for point in points} == losses | {4: 40.0, 5: 50.0}
    assert len(points) == 6 and found.info.status == "FINISHED"
    assert len(rows) == 6 and len({file.name for file in files(run.path)}) == 1


async def test_samples_of_a_step_are_shown(tmp_path: Path) -> None:
    play = Play(config(tmp_path, "tensorboard"))
    await play.step(1, 1.0)
    await play.step(2, 2.0)
    play.end()
    events = EventAccumulator(str(play.logger.run.tensorboard)).Reload()
    (rollouts,) = events.Tensors("samples/rollouts/text_summary")
    assert rollouts.step == 1 and b"prompt: 3 tokens" in rollouts.tensor_proto.string_val[0]


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
    assert list(first.bucket) == [0.0, 1.0, 0.0, 2.0] and list(first.bucket_limit) == [-0.25, 0.25, 0.75, 1.25]
    assert (second.min, second.max, list(second.bucket)) == (0.5, 0.5, [0.0, 3.0])

    def text(tag: str) -> str:
        (event,) = events.Tensors(tag)
        return bytes(event.tensor_proto.string_val[0]).decode()

    assert text("samples/tasks/text_summary") == "    step: 1\n    program: def f(x): return '<b>'"
    assert text("config/text_summary").startswith(f"    # azr {code_version()}\n    run:\n      name: run")


def told(root: Path) -> tuple[Any, str]:
    """A client of the local database, and the id of the only run in it."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{root}/mlflow.db")
    experiment = client.get_experiment_by_name("azr")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run.info.run_id


def test_a_run_is_kept_in_a_database_beside_the_run_directories(tmp_path: Path) -> None:
    of = config(tmp_path, "mlflow")
    MlflowTracker.check(of)
    tracker, path = MlflowTracker(), tmp_path / "run"
    path.mkdir()
    assert tracker.open(path, of) == NOTHING
    tracker.write(0, {"eval/exam/mean@2": 0.125})
    for _ in range(2):  # a piece that comes again is there once
        tracker.write(1, METRICS)
        time.sleep(0.01)
    tracker.write(2, {f"many/{number}": float(number) for number in range(2500)})
    tracker.write_tables(1, TABLES)
    tracker.close(complete=True)
    client, id = told(tmp_path)
    run = client.get_run(id)
    assert (run.info.run_name, run.info.status, run.data.tags["azr_version"]) == ("run", "FINISHED", code_version())
    assert run.data.params["run.steps"] == "9" and run.data.params["algorithm.estimator"] == "trrpp"
    assert run.data.params["selfplay.kinds"] == "('deduction', 'abduction', 'induction')"
    history = client.get_metric_history(id, "eval/exam/mean_at_2")
    assert [(each.step, each.value) for each in history] == [(0, 0.125), (1, 0.25)]
    assert run.data.metrics["policy/loss"] == 0.5 and run.data.metrics["many/2499"] == 2499.0
    bins = {name: value for name, value in run.data.metrics.items() if "solve_rate_hist" in name}
    assert {name.rpartition("/")[2]: value for name, value in bins.items()} == {"0.000": 1, "0.500": 0, "1.000": 2}
    (file,) = tmp_path.glob(f"mlflow_artifacts/{id}/artifacts/samples/tasks_000001.json")
    assert json.loads(file.read_text())["data"] == [[1, "def f(x): return '<b>'"]]
    assert not Path("mlruns").exists() and not Path("mlflow.db").exists()


def test_a_server_that_does_not_answer_is_found_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.FIRST_WAIT, "MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with silent_server() as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("//", "//me:secret@"))
        with pytest.raises(UserError, match=f"The MLflow server {address} refuses the run") as refused:
            MlflowTracker.check(config(tmp_path, "mlflow"))
    assert "secret" not in str(refused.value) and os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] != "1"


def test_an_offline_run_holds_numbers_histograms_tables_and_config(tmp_path: Path) -> None:
    WandbTracker.check(config(tmp_path, "wandb"))
    tracker = WandbTracker()
    assert tracker.open(tmp_path, config(tmp_path, "wandb")) == NOTHING
    assert "wandb sync" in (tracker.where() or "")
    tracker.write(0, {"eval/exam/mean@2": 0.125})
    tracker.write(1, METRICS)
    tracker.write(2, {"policy/loss": 0.25})
    tracker.write_tables(1, TABLES)  # late
    tracker.write(3, {"policy/loss": 0.125})
    tracker.close(complete=True)
    (file,) = files(tmp_path)
    rows = history(file)
    assert [(row.get("step"), row.get("policy/loss")) for row in rows] == [
        (0, None), (1, 0.5), (2, 0.25), (1, None), (3, 0.125),
    ]  # fmt: skip
    assert [row["_step"] for row in rows] == sorted({row["_step"] for row in rows})
    assert rows[1]["deduction/proposer/solve_rate_hist/values"] == [1, 0, 2]
    assert rows[1]["deduction/proposer/solve_rate_hist/bins"] == [-0.25, 0.25, 0.75, 1.25]
    (table,) = file.parent.glob("files/media/table/samples/*.json")
    assert json.loads(table.read_text())["data"] == [[1, "def f(x): return '<b>'"]]
    told = {item.key: item.value_json for r in records(file) if r.HasField("config") for item in r.config.update}
    assert json.loads(told["azr_version"]) == code_version() and json.loads(told["run"])["steps"] == 9
    # What nobody asked for is not there: host, command line, commit, packages.
    for record in records(file):
        assert not record.HasField("environment") and not record.HasField("output_raw")
    assert not list(file.parent.glob("files/*.txt"))


CHECK = """
from azr.config import Config
from azr.runs.trackers.wandb import WandbTracker
WandbTracker.check(Config())
"""


def refusal(**environment: str) -> str:
    """The last line of a process of its own: the library reads its environment once."""
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"} | environment
    done = subprocess.run([sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True, timeout=60)
    return done.stderr.strip().splitlines()[-1]


def test_without_a_key_the_run_does_not_begin() -> None:
    assert "has no key: run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline" in refusal()


@pytest.mark.long  # the library waits for ten seconds whatever it is told
def test_a_key_that_cannot_be_verified_is_refused() -> None:
    with silent_server() as address:
        told = refusal(WANDB_BASE_URL=address, WANDB_API_KEY="a" * 40)
    assert "UserError: Weights & Biases refuses the login (Failed to authenticate" in told


def test_a_plain_folder_and_a_missing_library_are_named_and_names_are_mlflows(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
    with pytest.raises(UserError, match="a plain folder: give it a server or sqlite:///FILE"):
        MlflowTracker.check(config(tmp_path, "mlflow"))
    assert metric_name("eval/mbpp+/mean@2") == "eval/mbpp_plus/mean_at_2"
    assert metric_name("seconds/critic values") == "seconds/critic values"
    assert metric_name("数/é(1)") == "_6570/_e9_281_29"
    monkeypatch.setattr("azr.runs.trackers.base.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"wandb, which is not installed: run pip install -e '\.\[wandb\]'"):
        WandbTracker.check(config(tmp_path, "wandb"))
