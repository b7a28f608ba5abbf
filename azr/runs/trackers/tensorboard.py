"""TensorBoard: event files in the run directory, made again from `metrics.jsonl` when a run goes back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import yaml

from azr.config import Config
from azr.config_tree import to_tree
from azr.own_data import code_version
from azr.runs.metrics import Metrics
from azr.runs.run_dir import RunDirectory
from azr.runs.trackers.base import NOTHING, Table, Tracker, bins, edges

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardTracker(Tracker):
    """Numbers as scalars, lists of counts as histograms, samples and config as text."""

    label: ClassVar[str] = "TensorBoard"

    def __init__(self) -> None:
        self._writer: SummaryWriter | None = None

    @classmethod
    def check(cls, config: Config) -> None:
        """Its library is always there."""

    def open(self, run: Path, config: Config) -> int:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(RunDirectory(run).tensorboard))
        text = yaml.safe_dump(to_tree(config), sort_keys=False)
        self._writer.add_text("config", _preformatted(f"# azr {code_version()}\n{text}"), 0)
        return NOTHING

    def write(self, step: int, metrics: Metrics) -> None:
        assert self._writer is not None
        for name, value in metrics.items():
            if isinstance(value, list):
                self._writer.add_histogram(name, np.repeat(bins(value), value), step, edges(value))
            else:
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def write_tables(self, step: int, tables: Mapping[str, Table]) -> None:
        assert self._writer is not None
        for name, table in tables.items():
            rows = ["\n".join(f"{key}: {cell}" for key, cell in row.items()) for row in table]
            self._writer.add_text(f"samples/{name}", _preformatted("\n\n".join(rows)), step)
        self._writer.flush()

    def close(self, *, complete: bool) -> None:
        if self._writer is not None:
            self._writer.close()


def _preformatted(text: str) -> str:
    """Return Markdown that shows the text unchanged."""
    return "\n".join(f"    {line}" for line in text.splitlines())
