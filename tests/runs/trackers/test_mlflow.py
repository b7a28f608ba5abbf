import json
import os
import shutil
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from azr.errors import UserError
from azr.own_data import code_version
from azr.runs.trackers import mlflow as module
from azr.runs.trackers.base import NOTHING
from azr.runs.trackers.mlflow import MlflowTracker, metric_name
from tests.runs.trackers.factory import METRICS, TABLES, clean_environment, config, silent_server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: Path) -> None:
    clean_environment(monkeypatch, tmp_path)
    shutil.copy(database, tmp_path / "mlflow.db")


def told(root: Path) -> tuple[MlflowClient, str]:
    """A client of the local database, and the id of the only run in it."""
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
    tracker.write(1, METRICS)
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


def test_a_piece_that_comes_again_is_there_once(tmp_path: Path) -> None:
    tracker, path = MlflowTracker(), tmp_path / "run"
    path.mkdir()
    tracker.open(path, config(tmp_path, "mlflow"))
    for _ in range(2):
        tracker.write(1, METRICS)
        time.sleep(0.01)
    client, id = told(tmp_path)
    assert len(client.get_metric_history(id, "policy/loss")) == 1


def test_a_server_that_does_not_answer_is_found_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.FIRST_WAIT, "MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with silent_server() as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("//", "//me:secret@"))
        with pytest.raises(UserError, match=f"The MLflow server {address} refuses the run") as refused:
            MlflowTracker.check(config(tmp_path, "mlflow"))
    assert "secret" not in str(refused.value) and os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] != "1"


def test_a_plain_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
    with pytest.raises(UserError, match="no longer writes into plain folders: give it a server or sqlite:///FILE"):
        MlflowTracker.check(config(tmp_path, "mlflow"))


def test_names_keep_to_what_mlflow_allows() -> None:
    assert metric_name("eval/mbpp+/mean@2") == "eval/mbpp_plus/mean_at_2"
    assert metric_name("seconds/critic values") == "seconds/critic values"
    assert metric_name("é(1)") == "__1_"
