"""One run's records behind one object: the experiment says what happened, this knows where it is kept."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Self

from azr.config import Config
from azr.records import Sample, Task
from azr.runs.checkpoint_store import CheckpointStore
from azr.runs.metrics import EVAL, Metrics, PhaseClock, StepParts, StepTiming, check_finite, has_eval, step_metrics
from azr.runs.progress import Progress, logging_to, summary
from azr.runs.run_dir import RunDirectory
from azr.runs.sample_file import Decode, JsonLines, LogOffsets, read_metrics, write_samples
from azr.runs.trackers import Trackers, is_due, sample_tables

MOST_WAITING = 2
"""Pieces of work that are under way or wait, each with a step's responses in memory."""
log = logging.getLogger(__name__)


class RunLogger:
    """Writes everything that goes into a run's directory but checkpoints."""

    def __init__(
        self,
        run: RunDirectory,
        config: Config,
        progress: Progress,
        offsets: LogOffsets,
        history: Sequence[tuple[int, Metrics]] = (),
    ) -> None:
        """For a directory that exists, with the steps that its logs have; see `create` and `reopen`."""
        self.run = run
        self.progress = progress
        self._config = config
        self._clock = PhaseClock()
        self._metrics = JsonLines(self.run.metrics, offsets.metrics)
        self._tasks = JsonLines(self.run.tasks, offsets.tasks)
        self._beside = BackgroundWriter()
        self._logging = ExitStack()
        log_file = logging.FileHandler(self.run.log, encoding="utf-8")
        log_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._logging.enter_context(logging_to(log_file))
        self._trackers = Trackers(run.path, config, history, progress.log)
        self._history = [*history]
        self._start_seconds: dict[str, float] = {}
        self._new_tasks: Sequence[Task] = ()
        self._complete = False

    @classmethod
    def create(cls, run: RunDirectory, config: Config, progress: Progress) -> Self:
        """Raises UserError when the run directory is taken or cannot be made."""
        return cls(run.create(config), config, progress, LogOffsets())

    @classmethod
    def reopen(cls, run: RunDirectory, config: Config, progress: Progress, step: int, offsets: LogOffsets) -> Self:
        """Continue in the directory of a run as it was after ``step``; what came later is set aside. Reads the logs: do
        not call it on an event loop. Raises UserError if they were altered since."""
        run.check_logs(offsets)
        for folder in (run.checkpoints, run.rollouts(step).parent):
            folder.mkdir(exist_ok=True)  # a copy may lack those that were empty
        later = CheckpointStore(run.checkpoints).later(step)
        if (aside := run.set_aside_after(step, offsets, later)) is not None:
            progress.log(f"what the run wrote after step {step} is kept in {aside}")
        return cls(run, config, progress, offsets, read_metrics(run.metrics) if run.metrics.exists() else ())

    def offsets(self) -> LogOffsets:
        """How far the logs have come."""
        return LogOffsets(metrics=self._metrics.offset(), tasks=self._tasks.offset())

    async def flush(self) -> None:
        """Returns when all texts that were logged are written. Raises when some could not be."""
        await self._beside.flush()

    def sync(self) -> None:
        """Returns when the logs are on the disk as far as they have come. Blocks."""
        self._metrics.sync()
        self._tasks.sync()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase, and show it in the progress display."""
        with self.progress.busy(name), self._clock.phase(name):
            yield

    def log_baseline(self, results: Mapping[str, float]) -> None:
        """Write the evaluation before the first step, if there was one, as step 0."""
        if results:
            self._write(0, {f"{EVAL}{name}": value for name, value in results.items()})

    def log_start(self, seconds: dict[str, float]) -> None:
        """Log how long the start took: a line now, and metrics of the next step."""
        self._start_seconds = seconds
        longest = sorted(((took, name) for name, took in seconds.items() if name != "all"), reverse=True)[:4]
        parts = ", ".join(f"{name} {took:.0f} s" for took, name in longest)
        self.progress.log(f"started in {seconds['all']:.0f} s, some of it side by side: {parts}")

    def begin_step(self) -> None:
        """Begin a step's times, without those of start-up and seeding."""
        self._clock.step_timing()
        self.progress.step_begun()

    def step_timing(self) -> StepTiming:
        """Times since the step began."""
        return self._clock.step_timing()

    def log_tasks(self, tasks: Sequence[Task]) -> None:
        """Append tasks that entered the buffer."""
        self._tasks.write(task.record() for task in tasks)
        self._new_tasks = tasks

    async def log_rollouts(self, step: int, samples: Sequence[Sample], decode: Decode) -> None:
        """Write a step's samples beside the next step, which fills in their texts. Raises when those of an earlier step
        could not be written."""
        tasks = self._new_tasks

        def write() -> None:
            write_samples(self.run.rollouts(step), step, samples, decode)
            if is_due(step):
                self._trackers.write_tables(step, sample_tables(step, samples, tasks))

        await self._beside.put(write)

    async def log_answers(self, step: int, write: Callable[[Path], None]) -> None:
        """Answers of an evaluation after a step, which ``write`` puts into a file beside what comes next."""
        await self._beside.put(partial(write, self.run.answers(step)))

    def end_step(
        self, step: int, samples: Sequence[Sample], parts: StepParts, watched_metrics: Mapping[str, float]
    ) -> Metrics:
        """Write the step's metrics (`azr.runs.metrics.step_metrics`) and its summary line.

        ``watched_metrics``: those of `azr.monitoring.monitor.Monitor.watch`.

        Raises:
            RuntimeError: a metric is NaN or infinite; nothing is written.
        """
        config, started = self._config, self._start_seconds
        self._start_seconds = {}
        kinds = config.kinds if config.data.uses_selfplay(step) else ()
        metrics = step_metrics(samples, kinds, config.selfplay.group_size, {"start": started, **parts})
        metrics |= watched_metrics
        self._write(step, metrics)
        self.progress.step_done(step, metrics)
        return metrics

    def _write(self, step: int, metrics: Metrics) -> None:
        check_finite(step, metrics)
        self._metrics.write([{"step": step, **metrics}])
        self._trackers.write(step, metrics)
        self._history.append((step, metrics))

    def finish(self, gains: Sequence[str]) -> None:
        """The run came to its end: prints the final table, if there was a step, and what evaluations gained."""
        self._complete = True
        if steps := [metrics for step, metrics in self._history if step]:
            evals = [metrics for _, metrics in self._history if has_eval(metrics)]
            tensorboard = "tensorboard" in self._config.tracking.names
            self.progress.log(summary(steps, self.run, evals, gains, tensorboard=tensorboard))

    def close(self) -> None:
        """Closes every file once what was logged is in it; safe after an error."""
        self._beside.close()
        self._trackers.close(complete=self._complete)
        self.progress.close()
        self._metrics.close()
        self._tasks.close()
        self._logging.close()


class BackgroundWriter:
    """One thread that writes beside the next step, one piece of work after the other. After one has failed, which is
    logged, none is begun any more, and the failure is raised before the run continues without what it lacks."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "writer")
        self._waiting: deque[Future[None]] = deque()
        self._failure: Exception | None = None

    async def put(self, work: Callable[[], None]) -> None:
        """Begins with it when those before it are done; waits while there are too many. Raises as `flush`."""
        await self.flush(MOST_WAITING - 1)
        self._waiting.append(self._thread.submit(self._run, work))

    async def flush(self, most: int = 0) -> None:
        """Returns when at most so many pieces are left to write. Raises what one has raised, each time it is called."""
        while len(self._waiting) > most:
            await asyncio.shield(asyncio.wrap_future(self._waiting[0]))
            self._waiting.popleft()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Ends when everything is written; blocks."""
        self._thread.shutdown()

    def _run(self, work: Callable[[], None]) -> None:
        if self._failure is None:
            try:
                work()
            except Exception as error:
                self._failure = error
                log.error("something could not be written: %s", error, exc_info=error)
