"""Weights & Biases, online or with WANDB_MODE=offline. Nothing is sent but what is handed over here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from azr.config import Config
from azr.config_tree import to_tree
from azr.errors import UserError
from azr.own_data import code_version
from azr.runs.metrics import Metrics
from azr.runs.trackers.base import Bookmark, Table, Tracker, edges, failure, need

SETTINGS: dict[str, Any] = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "silent": True,
    "init_timeout": 60.0,
    "finish_timeout": 25.0,
}
"""Of the library, where the environment variable of the same name says nothing: no prints, code, commit, package list,
command line or host are taken."""
PLACES = 4
"""Values of W&B's own counter for each step: numbers, samples, and samples that come late."""
VERIFY_S = 15
"""Longest wait for the server to say that it knows the key."""


class WandbTracker(Tracker):
    """Numbers over a metric called ``step``, samples as tables."""

    label: ClassVar[str] = "Weights & Biases"

    def __init__(self) -> None:
        self._run: Any = None
        self._at = 0

    @classmethod
    def check(cls, config: Config) -> None:
        need("wandb")
        if os.environ.get("WANDB_MODE", "online") != "online":
            return
        wandb = _library()
        try:
            known = wandb.login(prompt=False, verify=True, timeout=VERIFY_S)
        except (wandb.errors.Error, ValueError) as error:
            raise UserError(
                f"Weights & Biases refuses the login ({failure(error)}): run `wandb login`, or set "
                "WANDB_MODE=offline and use `wandb sync` later."
            ) from error
        if not known:
            raise UserError(
                "Weights & Biases has no key: run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline."
            )

    def open(self, run: Path, config: Config) -> int:
        wandb = _library()
        self._mark = Bookmark(run, "wandb")
        self._mark.save(self._mark.id or secrets.token_hex(4), self._mark.step)
        project = config.tracking.setting("wandb", "azr")
        named = {"project": project, "id": self._mark.id, "name": run.name, "dir": str(run.absolute())}
        variables = {key: f"WANDB_{key.removeprefix('x').upper()}" for key in SETTINGS}  # x_save: WANDB__SAVE
        settings = wandb.Settings(**{key: SETTINGS[key] for key in SETTINGS if variables[key] not in os.environ})
        self._run = wandb.init(resume="allow", reinit="create_new", settings=settings, **named)
        self._run.config.update(to_tree(config) | {"azr_version": code_version()}, allow_val_change=True)
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        self._at = PLACES * self._mark.step + PLACES - 1
        return self._mark.step

    def write(self, step: int, metrics: Metrics) -> None:
        wandb = _library()
        lists = {name: value for name, value in metrics.items() if isinstance(value, list)}
        bars = {name: wandb.Histogram(np_histogram=(counts, edges(counts))) for name, counts in lists.items()}
        self._log({"step": step, **metrics, **bars}, PLACES * step + 1)
        self._mark.save(self._mark.id, step)

    def write_tables(self, step: int, tables: Mapping[str, Table]) -> None:
        wandb = _library()
        shown: dict[str, Any] = {"step": step}
        for name, table in tables.items():
            rows = [list(row.values()) for row in table]
            shown[f"samples/{name}"] = wandb.Table(columns=list(table[0]), data=rows)
        self._log(shown, PLACES * step)

    def close(self, *, complete: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if complete else 1)

    def where(self) -> str | None:
        folder = self._run.dir.removesuffix("/files")
        return self._run.url or f"kept in {folder}; `wandb sync` with that folder sends it"

    def _log(self, row: dict[str, Any], at: int) -> None:
        """W&B's own counter must grow, whether the samples of a step come before its numbers or after."""
        self._at = max(self._at + 1, at)
        self._run.log(row, step=self._at, commit=True)


def _library() -> Any:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_SILENT", "true")
    return import_module("wandb")
