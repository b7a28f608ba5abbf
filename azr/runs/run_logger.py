"""One run's records behind one object: the experiment says what happened, this knows where it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from azr.config import Config
from azr.records import Task, Trajectory
from azr.runs.display import Progress
from azr.runs.log_offsets import Position
from azr.runs.metrics import EXAM, Metrics, ProposalCounts, has_exam, step_metrics
from azr.runs.run_dir import RunDirectory, folder, log_to, stop_logging
from azr.runs.sinks import Decode, MetricsLog, TaskLog, TensorBoardMirror, read_metrics, write_rollouts
from azr.runs.summary import summary
from azr.runs.timing import Lap, PhaseClock


class Tracker:
    """Writes everything that goes into a run's directory but checkpoints."""

    def __init__(self, run: RunDirectory, config: Config, progress: Progress) -> None:
        """For a directory that exists; see `create` and `reopen`."""
        self.run = run
        self.progress = progress
        self._config = config
        self._clock = PhaseClock(hidden=("validate", "verify"))
        self._log = log_to(self.run.log)
        self._metrics = MetricsLog(self.run.metrics)
        self._tasks = TaskLog(self.run.tasks)
        self._mirror = TensorBoardMirror(self.run.tensorboard)
        self._steps: list[Metrics] = []
        self._exams: list[Metrics] = []

    @classmethod
    def create(cls, config: Config, progress: Progress) -> Self:
        """Raises ValueError when the run directory is taken or cannot be made."""
        return cls(RunDirectory.create(config), config, progress)

    @classmethod
    def reopen(cls, config: Config, progress: Progress, step: int, position: Position) -> Self:
        """Goes on in the directory of a run as it was after ``step``; what came later is taken away.

        Raises ValueError when the logs were altered since.
        """
        run = RunDirectory(folder(config.run))
        run.check(position)
        run.cut_back(step, position)
        run.rewrite_config(config)
        tracker = cls(run, config, progress)
        for number, metrics in read_metrics(run.metrics):
            tracker._remember(number, metrics)
        return tracker

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Something is going on in this phase: timed, and seen in the progress display."""
        with self.progress.busy(name), self._clock.phase(name):
            yield

    def began(self, exam: Mapping[str, float]) -> None:
        """Writes what the policy knew before its first step, if it was asked, as step 0."""
        if exam:
            self._write(0, {f"{EXAM}{name}": value for name, value in exam.items()})

    def begin_step(self) -> None:
        """Times from before, such as start-up and seeding, are no part of the step."""
        self._clock.lap()
        self.progress.step_begun()

    def lap(self) -> Lap:
        """Times since the step began."""
        return self._clock.lap()

    def stored(self, tasks: Sequence[Task]) -> None:
        """Tasks entered the buffer."""
        self._tasks.write(tasks)

    async def rollouts(self, step: int, trajectories: Sequence[Trajectory], decode: Decode) -> None:
        """Texts of a step."""
        await write_rollouts(self.run.rollouts(step), step, trajectories, decode)

    def end_step(
        self,
        step: int,
        trajectories: Sequence[Trajectory],
        funnels: Mapping[str, ProposalCounts],
        parts: Mapping[str, Mapping[str, float | None]],
    ) -> Metrics:
        """Writes the step's metrics (`azr.runs.metrics.step_metrics`) and its summary line.

        Raises:
            ValueError: a metric is NaN or infinite.
        """
        metrics = step_metrics(trajectories, funnels, self._config.selfplay.group_size, parts)
        self._write(step, metrics)
        self.progress.step_done(step, metrics)
        return metrics

    def _write(self, step: int, metrics: Metrics) -> None:
        self._metrics.write(step, metrics)
        self._remember(step, metrics)

    def _remember(self, step: int, metrics: Metrics) -> None:
        if self._mirror is not None:
            self._mirror.write(step, metrics)
        if step:
            self._steps.append(metrics)
        if has_exam(metrics):
            self._exams.append(metrics)

    def finish(self) -> None:
        """Prints the final table, if there was a step."""
        if self._steps:
            self.progress.note(summary(self._steps, self.run, exams=self._exams))

    def close(self) -> None:
        """Closes every file; safe after an error."""
        self.progress.close()
        self._metrics.close()
        self._tasks.close()
        if self._mirror is not None:
            self._mirror.close()
        stop_logging(self._log)
