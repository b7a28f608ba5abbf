import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from azr.errors import UserError
from azr.own_data import code_version
from azr.runs.trackers.base import NOTHING
from azr.runs.trackers.wandb import WandbTracker
from tests.runs.trackers.factory import METRICS, TABLES, clean_environment, config, silent_server
from tests.runs.trackers.wandb_file import files, history, records


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean_environment(monkeypatch, tmp_path)


def test_an_offline_run_holds_numbers_histograms_tables_and_config(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
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
    done = subprocess.run(
        [sys.executable, "-c", CHECK], env=os.environ | environment, capture_output=True, text=True, timeout=60
    )
    return done.stderr.strip().splitlines()[-1]


def test_without_a_key_the_run_does_not_begin() -> None:
    assert "has no key: run `wandb login`, set WANDB_API_KEY, or set WANDB_MODE=offline" in refusal()


@pytest.mark.long  # the library waits for ten seconds whatever it is told
def test_a_key_that_cannot_be_verified_is_refused() -> None:
    with silent_server() as address:
        told = refusal(WANDB_BASE_URL=address, WANDB_API_KEY="a" * 40)
    assert "UserError: Weights & Biases refuses the login (Failed to authenticate" in told


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("azr.runs.trackers.base.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"library is not installed: run pip install -e '\.\[wandb\]'"):
        WandbTracker.check(config(tmp_path, "wandb"))
