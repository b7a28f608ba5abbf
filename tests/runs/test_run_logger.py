from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from azr.config import Config, RunConfig, TrackingConfig
from azr.records import Role
from azr.runs.display import open_progress
from azr.runs.metrics import Metrics
from azr.runs.run_dir import RunDirectory
from azr.runs.run_logger import Tracker
from azr.runs.summary import summary, tensorboard_command
from azr.tasks.base import RejectReason
from tests.runs.factory import Counts, trajectory


def config(root: Path, tracking: TrackingConfig) -> Config:
    return replace(Config(), run=RunConfig(root=str(root), name="run", steps=2), tracking=tracking)


def opened(of: Config) -> Tracker:
    return Tracker.create(of, open_progress(of.tracking.progress))


def decode(ids: Sequence[int]) -> str:
    return str(list(ids))


async def step(tracker: Tracker, number: int, loss: float = 0.5) -> Metrics:
    tracker.begin_step()
    with tracker.phase("solve"):
        await asyncio.sleep(0.01)
    trajectories = [trajectory(Role.SOLVER, accuracy=number - 1.0), trajectory(Role.PROPOSER)]
    lap = tracker.lap()
    await tracker.rollouts(number, trajectories, decode)
    return tracker.end_step(
        number,
        trajectories,
        {"deduction": Counts(4, Counter({RejectReason.FAILED: 2}), [0.5, 1.0])},
        {"policy": {"loss": loss}, "seconds": lap.seconds, "driver": {"cpu_share": lap.cpu_share}},
    )


async def test_a_run_leaves_everything_in_its_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = opened(config(tmp_path, TrackingConfig()))
    tracker.progress.start(2)
    steps = [await step(tracker, 1), await step(tracker, 2)]
    tracker.finish()
    tracker.close()
    run = tracker.run
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert lines == [{"step": number, **metrics} for number, metrics in enumerate(steps, 1)]
    assert lines[0]["seconds/solve"] >= 0.01 and lines[0]["driver/cpu_share"] >= 0
    assert {entry.name for entry in run.path.iterdir()} == {
        "config.yaml", "metrics.jsonl", "tensorboard", "rollouts", "tasks.jsonl", "checkpoints", "log.txt",
    }  # fmt: skip
    assert [entry.name for entry in sorted((run.path / "rollouts").iterdir())] == [
        "step_000001.jsonl.gz", "step_000002.jsonl.gz",
    ]  # fmt: skip
    printed = capsys.readouterr().out
    assert "step 1/2 · valid 50% · solve ded .00 · loss 0.5000" in printed
    assert printed.strip().endswith(tensorboard_command(run))
    assert "step 2/2 · valid 50%" in run.log.read_text()


async def test_what_is_switched_off_is_not_written(tmp_path: Path) -> None:
    tracker = opened(config(tmp_path, TrackingConfig(tensorboard=False, rollouts=False, progress=False)))
    await step(tracker, 1)
    tracker.close()
    assert not tracker.run.tensorboard.exists()
    assert not list((tracker.run.path / "rollouts").iterdir())


async def test_a_diverged_step_is_refused_and_leaves_no_line(tmp_path: Path) -> None:
    tracker = opened(config(tmp_path, TrackingConfig()))
    with pytest.raises(ValueError, match="policy/loss is nan in step 1"):
        await step(tracker, 1, float("nan"))
    tracker.close()
    assert tracker.run.metrics.read_text() == ""


async def test_an_exam_before_the_first_step_is_step_0(tmp_path: Path) -> None:
    tracker = opened(config(tmp_path, TrackingConfig()))
    tracker.began({})
    tracker.began({"mean/accuracy": 0.25})
    await step(tracker, 1)
    tracker.close()
    lines = [json.loads(line) for line in tracker.run.metrics.read_text().splitlines()]
    assert lines[0] == {"step": 0, "exam/mean/accuracy": 0.25} and lines[1]["step"] == 1


def test_the_final_table_shows_the_first_and_the_last_exam() -> None:
    exams: list[Metrics] = [
        {"exam/mean/accuracy": share, "exam/mean/accuracy_low": 0.0, "exam/mean/short/accuracy": 0.5}
        for share in (0.125, 0.5, 0.75)
    ]
    table = summary([{}], RunDirectory(Path("orz_ckpt/x")), exams=exams).splitlines()
    assert "held-out exam, mean   12.5%   75.0%" in table


def test_the_final_table_compares_start_and_end() -> None:
    def at(accuracy: float, valid: int) -> Metrics:
        return {
            "deduction/solver/accuracy": accuracy,
            "deduction/proposer/funnel/proposed": 10,
            "deduction/proposer/funnel/valid": valid,
            "deduction/proposer/funnel/lost": 0,
            "buffer/deduction": 40,
        }

    steps = [at(0.1, 4), at(0.3, 6), at(0.0, 0), at(0.5, 9), at(0.7, 10)]
    run = RunDirectory(Path("orz_ckpt/x"))
    assert summary(steps, run, window=2).splitlines() == [
        "5 steps; start and end: means of 2 steps each",
        "                                 start     end",
        "valid proposals                  50.0%   95.0%",
        "solve rate, deduction            20.0%   60.0%",
        "tasks in the buffer, deduction              40",
        "run directory: orz_ckpt/x",
        f"to see it:     {tensorboard_command(run)}",
    ]
    (title, *_) = summary(steps[:1], run).splitlines()
    assert title == "1 steps; start and end: means of 1 step each"
    assert tensorboard_command(run).endswith("tensorboard --logdir orz_ckpt/x/tensorboard")
