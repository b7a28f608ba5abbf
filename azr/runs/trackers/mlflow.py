"""MLflow: a tracking server, or a database file beside the run directories where MLFLOW_TRACKING_URI names none."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from azr.config import Config
from azr.config_tree import leaves
from azr.errors import UserError
from azr.own_data import code_version
from azr.runs.metrics import Metrics
from azr.runs.trackers.base import Bookmark, Table, Tracker, bins, failure, need, without_password

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}
"""Where the environment says nothing: no report to MLflow's makers, and short waits, since what failed comes again."""
FIRST_WAIT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
"""For the server to answer before a run begins."""
PARAM_CHARACTERS = 500
"""Longest value of an option that every server takes."""


class MlflowTracker(Tracker):
    """Numbers as metrics, lists of counts as a metric for each bin, samples as JSON files, options as parameters."""

    label: ClassVar[str] = "MLflow"

    def __init__(self) -> None:
        self._client: Any = None
        self._id: str | None = None
        self._first_tried = (0, 0)
        """Step, and when it was first handed over in ms: a repeated call repeats its rows, which the store knows."""

    @classmethod
    def check(cls, config: Config) -> None:
        need("mlflow")
        uri = _uri(config)
        scheme = urlsplit(uri).scheme
        if scheme in ("", "file") and os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() != "true":
            raise UserError(
                f"MLFLOW_TRACKING_URI is {uri}, a plain folder: give it a server or sqlite:///FILE, or unset it."
            )
        if scheme not in ("http", "https"):
            return
        mlflow = _library()
        later = {name: os.environ[name] for name in FIRST_WAIT}
        os.environ.update(FIRST_WAIT)
        try:
            mlflow.MlflowClient(uri).search_experiments(max_results=1)
        except mlflow.exceptions.MlflowException as error:
            raise UserError(
                f"The MLflow server {without_password(uri)} refuses the run ({failure(error)}): check "
                "MLFLOW_TRACKING_URI and its credentials, or remove mlflow from tracking.to."
            ) from error
        finally:
            os.environ.update(later)

    def open(self, run: Path, config: Config) -> int:
        mlflow = _library()
        self._uri = _uri(config)
        self._mark = Bookmark(run, "mlflow")
        self._client = mlflow.MlflowClient(self._uri)
        if self._mark.id is None:
            created = self._client.create_run(self._experiment(config), run_name=run.name)
            self._mark.save(created.info.run_id, self._mark.step)
        else:
            self._client.update_run(self._mark.id, status="RUNNING")
        self._id = self._mark.id
        self._client.set_tag(self._id, "azr_version", code_version())
        # A parameter is written once: an option that a resumed run has changed keeps its first value.
        known = self._client.get_run(self._id).data.params
        options = [(name, str(value)[:PARAM_CHARACTERS]) for name, value in leaves(config).items() if name not in known]
        self._client.log_batch(self._id, params=[mlflow.entities.Param(*option) for option in options])
        return self._mark.step

    def write(self, step: int, metrics: Metrics) -> None:
        if self._first_tried[0] != step or not self._first_tried[1]:
            self._first_tried = step, int(time.time() * 1000)
        entity, now = _library().entities.Metric, self._first_tried[1]
        numbers = [(metric_name(name), value) for name, value in metrics.items() if not isinstance(value, list)]
        for name, counts in metrics.items():
            if isinstance(counts, list):
                rates = zip(bins(counts), counts, strict=True)
                numbers += [(metric_name(f"{name}/{rate:.3f}"), count) for rate, count in rates]
        self._client.log_batch(self._id, metrics=[entity(name, value, now, step) for name, value in numbers])
        self._mark.save(self._id, step)

    def write_tables(self, step: int, tables: Mapping[str, Table]) -> None:
        for name, table in tables.items():
            content = {"columns": list(table[0]), "data": [list(row.values()) for row in table]}
            self._client.log_dict(self._id, content, f"samples/{name}_{step:06d}.json")

    def close(self, *, complete: bool) -> None:
        if self._id is not None:
            self._client.set_terminated(self._id, "FINISHED" if complete else "KILLED")

    def where(self) -> str | None:
        return f"run {self._id} in {without_password(self._uri)}"

    def _experiment(self, config: Config) -> str:
        """Its id; it is made if there is none. Files of a local one lie beside its database."""
        name = config.tracking.setting("mlflow", "azr")
        if (known := self._client.get_experiment_by_name(name)) is not None:
            return str(known.experiment_id)
        local = self._uri == _local_uri(config)
        where = os.path.abspath(os.path.join(config.run.root, "mlflow_artifacts")) if local else None
        return str(self._client.create_experiment(name, artifact_location=where))


def metric_name(name: str) -> str:
    """In the characters that MLflow allows: ``eval/mbpp+/mean@2`` is ``eval/mbpp_plus/mean_at_2``; others by number, so
    that names in other scripts stay apart."""
    name = name.replace("@", "_at_").replace("+", "_plus")
    return re.sub(r"[^\w\-. :/]", lambda found: f"_{ord(found[0]):x}", name, flags=re.ASCII)


def _uri(config: Config) -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or _local_uri(config)


def _local_uri(config: Config) -> str:
    return f"sqlite:///{os.path.abspath(os.path.join(config.run.root, 'mlflow.db'))}"


def _library() -> Any:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    mlflow = import_module("mlflow")
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return mlflow
