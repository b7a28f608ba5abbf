"""A run of a few steps as a tracker sees it."""

import io
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from azr.config import Config, RunConfig, TrackingConfig
from azr.records import Task
from azr.runs.progress import Progress
from azr.runs.run_dir import RunDirectory
from azr.runs.run_logger import RunLogger
from azr.runs.sample_file import LogOffsets
from azr.tasks.base import RejectReason
from tests.runs.factory import proposals, sample

METRICS = {"policy/loss": 0.5, "deduction/proposer/solve_rate_hist": [1, 0, 2], "eval/exam/mean@2": 0.25}
TABLES = {"tasks": [{"step": 1, "program": "def f(x): return '<b>'"}]}
TASK = Task(
    id="000001-deduction-0001", kind="deduction", program="def f(x): return x", inputs=("1",), outputs=("1",),
    fingerprint="f", step=1, solve_rate=0.5,
)  # fmt: skip


def config(root: Path, *to: str) -> Config:
    return replace(Config(), run=RunConfig(root=str(root), name="run", steps=9), tracking=TrackingConfig(to=to))


class Play:
    """The logger of a run, and what was printed."""

    def __init__(self, of: Config, go_on_after: tuple[int, LogOffsets] | None = None) -> None:
        self.out = io.StringIO()
        progress = Progress(self.out)
        run = RunDirectory.of(of.run)
        self.logger = (
            RunLogger.create(run, of, progress)
            if go_on_after is None
            else RunLogger.reopen(run, of, progress, *go_on_after)
        )

    async def step(self, number: int, loss: float) -> tuple[int, LogOffsets]:
        """Plays a step; returns what `go_on_after` takes."""
        played = [sample("solver", accuracy=1.0), sample("proposer"), sample("solver", reward=-1.0)]
        self.logger.begin_step()
        self.logger.log_tasks([replace(TASK, step=number)])
        await self.logger.log_rollouts(number, played, lambda ids: f"{len(ids)} tokens")
        samples = played + proposals(4, Counter({RejectReason.FAILED: 2}), [0.5, 1.0])
        self.logger.end_step(number, samples, {"policy": {"loss": loss}, "seconds": {"step": 2.0}}, {})
        await self.logger.flush()
        return number, self.logger.offsets()

    def end(self) -> str:
        """Closes it as at the end of a run; returns what was printed."""
        self.logger.finish([])
        self.logger.close()
        return self.out.getvalue()


@contextmanager
def silent_server() -> Iterator[str]:
    """Address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"  # the kernel accepts


def clean_environment(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """No credentials and no settings of whoever runs the tests; what a library puts there is taken away again."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_")):
            monkeypatch.delenv(name)
    for name in ("WANDB_ERROR_REPORTING", "WANDB_SILENT", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "true" if name.endswith(("SILENT", "TELEMETRY")) else "false")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / ".netrc"))
