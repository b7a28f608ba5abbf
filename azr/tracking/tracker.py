"""One run's records behind one object: the experiment says what happened, this knows where it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from azr.config import Config
from azr.records import Task, Trajectory
from azr.tracking.display import Progress
from azr.tracking.metrics import EXAM, FunnelCounts, Metrics, has_exam, step_metrics
from azr.tracking.run_dir import RunDirectory, log_to, stop_logging
from azr.tracking.sinks import Decode, MetricsLog, TaskLog, TensorBoardMirror, write_rollouts
from azr.tracking.summary import summary
from azr.tracking.timing import Lap, PhaseClock


class Tracker:
    """Creates the run directory and writes everything that goes into it but checkpoints.

    Raises:
        ValueError: the run directory is taken or cannot be made.
    """

    def __init__(self, config: Config, progress: Progress) -> None:
        self.run = RunDirectory.create(config)
        self.progress = progress
        self._config = config
        self._clock = PhaseClock(hidden=("validate", "verify"))
        self._log = log_to(self.run.log)
        self._metrics = MetricsLog(self.run.metrics)
        self._tasks = TaskLog(self.run.tasks)
        self._mirror = TensorBoardMirror(self.run.tensorboard) if config.tracking.tensorboard else None
        self._steps: list[Metrics] = []
        self._exams: list[Metrics] = []

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
        """Texts of a step, if they are kept."""
        if self._config.tracking.rollouts:
            await write_rollouts(self.run.rollouts(step), step, trajectories, decode)

    def end_step(
        self,
        step: int,
        trajectories: Sequence[Trajectory],
        funnels: Mapping[str, FunnelCounts],
        parts: Mapping[str, Mapping[str, float | None]],
    ) -> Metrics:
        """Writes the step's metrics (`azr.tracking.metrics.step_metrics`) and its summary line.

        Raises:
            ValueError: a metric is NaN or infinite.
        """
        metrics = step_metrics(trajectories, funnels, self._config.selfplay.estimate_samples, parts)
        self._write(step, metrics)
        self._steps.append(metrics)
        self.progress.step_done(step, metrics)
        return metrics

    def _write(self, step: int, metrics: Metrics) -> None:
        self._metrics.write(step, metrics)
        if self._mirror is not None:
            self._mirror.write(step, metrics)
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
