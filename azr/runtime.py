"""A run from its config to its end: start it or put it back where it was, play, save, restart, stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from ray.exceptions import RayTaskError

from azr.actor_system import ActorSystem
from azr.cluster.ray_start import start_ray
from azr.cluster.supervisor import root_cause
from azr.config import Config
from azr.datasets.choice import keep_identity, load_rows
from azr.datasets.play import DataPlay, open_graders
from azr.errors import RunEnded
from azr.evaluation.periodic import PeriodicEval
from azr.experiment import SelfPlayExperiment
from azr.monitoring.monitor import Monitor, SafetyStop
from azr.monitoring.reader import TextReader
from azr.monitoring.screen import Screen, patterns_of
from azr.plugins import plugin_processes
from azr.prompts.codec import PromptCodec
from azr.runs.checkpoint_store import CheckpointStore, Staging
from azr.runs.checkpointer import AsyncCheckpointer
from azr.runs.malformed_alarm import MalformedAlarm
from azr.runs.metrics import start_metrics
from azr.runs.progress import Progress, open_progress
from azr.runs.prompt_form import PromptForm
from azr.runs.resume import ResumeState, find_checkpoint
from azr.runs.run_dir import RunDirectory, run_path, write_config
from azr.runs.run_logger import RunLogger
from azr.runs.run_state import INITIAL, RunState
from azr.runs.sinks import read_tasks
from azr.runs.stop_signal import StopRequested, StopSignal
from azr.runs.timing import PhaseClock
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.in_flight import InFlight
from azr.train.learner import Learner
from azr.train.worker_group import RankDied, WorkerGroup

TRAINERS = "trainers"
"""Folder in a checkpoint: weights, optimisers and random states of policy and critic."""
POLICY = "policy"
"""Folder in a checkpoint: the policy as Hugging Face's libraries read it."""
MAX_RESTARTS_WITHOUT_PROGRESS = 2
"""Restarts in a row after the death of a trainer, without a checkpoint in between; the next death ends the run."""

log = logging.getLogger(__name__)


class Driver:
    """One run, or its continuation."""

    def __init__(self, config: Config, resume: ResumeState | None = None) -> None:
        """``resume``: where a run that exists goes on, from `azr.runs.resume.find_checkpoint`."""
        self._config = config
        self._codec = PromptCodec.load(config)
        self._prompt_form = PromptForm(self._codec.template, self._codec.stops)
        self._evaluation = PeriodicEval(config, self._codec)
        self._screen = Screen.read(patterns_of(config.safety))
        self._rows, self._notes = load_rows(config, self._codec) if config.data.path is not None else ([], [])
        self._resume = resume
        self._stop_signal = StopSignal()
        self._run = RunDirectory(run_path(config.run))
        if resume is not None:
            self._prompt_form.keep(self._run.prompt_form)
            self._keep_data()
        self._store = CheckpointStore(self._run.checkpoints, config.checkpoint.keep)

    def _keep_data(self) -> None:
        if self._config.data.path is not None:
            keep_identity(self._run.data, Path(self._config.data.path))

    async def run(self) -> None:
        """Starts everything, runs the experiment, and ends what it started.

        When a trainer's process dies, everything is restarted and goes on from the last checkpoint.

        Raises UserError for a user's mistake, RunEnded, with the last step saved, when going on is of no use,
        TimeoutError when a wait passed its deadline, OSError when the last step could not be saved, and StopRequested
        after a signal; in each case nothing is left running, and unless the actors were up nothing was written.
        """
        progress = open_progress()
        try:
            with progress.showing_warnings(), self._stop_signal.listening(progress.log):
                async with plugin_processes():
                    await self._run_with_restarts(progress)
        except RayTaskError as error:
            # Ray wraps what an actor raised; the driver's reader wants the error, not the way it came.
            raise error.cause from error
        finally:
            progress.close()

    async def _run_with_restarts(self, progress: Progress) -> None:
        resume, futile = self._resume, 0
        while True:
            started_at = resume.state.step if resume else 0
            try:
                return await self._attempt(progress, resume)
            except RankDied as death:
                if not self._run.config.exists():
                    raise
                resume = await asyncio.to_thread(find_checkpoint, self._config, None)
                futile = 0 if resume.state.step > started_at else futile + 1
                if futile > MAX_RESTARTS_WITHOUT_PROGRESS:
                    raise
                log.warning("%s; everything is restarted", root_cause(death))

    async def _attempt(self, progress: Progress, resume: ResumeState | None) -> None:
        state = resume.state if resume else INITIAL
        started = time.monotonic() - state.elapsed_s
        progress.start(self._config.run.steps, state.step + 1, self._config.run.max_minutes, state.elapsed_s)
        clock = PhaseClock()

        @contextmanager
        def phase(name: str) -> Iterator[None]:
            with progress.busy(name), clock.phase(name):
                yield

        with phase("start Ray"):
            start_ray(self._config.cluster, self._config.num_gpus)
        # Ray's own handler of SIGTERM, which it has just installed, would abort the process.
        self._stop_signal.install_handlers()
        system = await self._stop_signal.cancel_on_stop(
            ActorSystem.start(self._config, self._codec.stops, phase, state.step)
        )
        started_in = start_metrics(clock.step_timing(), system.engines.start_seconds)
        try:
            if state.step:
                await system.trainers_turn(progress.busy)
                await self._load_checkpoint(system, state.step)
            async with self._open_logger(progress, resume) as logger:
                limit = self._config.timeout.start_s
                how = await system.policy.call("computes_with", timeout_s=limit, to="say how it computes")
                progress.log(f"networks compute in {system.placement.dtype}; the policy with {how[0]}")
                progress.log(f"an engine's KV cache holds {system.engines.kv_cache_tokens:,} tokens")
                logger.log_start(started_in)
                progress.log(f"model-written code runs behind {system.executor.isolation}")
                for note in [*self._evaluation.notes, *self._notes]:
                    progress.log(note)
                # What there is now stays until the end; looking through it again and again is a tenth of a step's work.
                gc.collect()
                gc.freeze()
                async with self._open_data() as data, TextReader(patterns_of(self._config.safety)) as reader:
                    monitor = Monitor(self._codec, reader, [rule.name for rule in self._screen.rules])
                    elapsed_s = lambda: time.monotonic() - started  # noqa: E731
                    await self._play(self._experiment(system, logger, data, monitor, state.step, elapsed_s))
        finally:
            await system.stop()

    @asynccontextmanager
    async def _open_data(self) -> AsyncIterator[DataPlay | None]:
        """What answers rows of the run's file, while the block lasts; None without one."""
        if not self._rows:
            yield None
            return
        async with open_graders(self._rows, self._config) as graders:
            yield DataPlay(config=self._config, codec=self._codec, rows=self._rows, graders=graders)

    @asynccontextmanager
    async def _open_logger(self, progress: Progress, resume: ResumeState | None) -> AsyncIterator[RunLogger]:
        """Of a new run directory, or of one that is taken back to the step that the run goes on from."""
        if resume is None:
            logger = RunLogger.create(self._config, progress)
        else:
            state = resume.state
            logger = await asyncio.to_thread(RunLogger.reopen, self._config, progress, state.step, state.offsets)
        try:
            self._prompt_form.keep(self._run.prompt_form)
            self._keep_data()
            if resume is not None:
                for note in resume.notes:
                    progress.log(note)
            yield logger
        except (StopRequested, RankDied):
            raise
        except RunEnded as ended:
            log.info("%s", ended)
            raise
        except Exception:
            log.exception("the run ended early")
            raise
        finally:
            logger.close()

    def _experiment(
        self,
        system: ActorSystem,
        logger: RunLogger,
        data: DataPlay | None,
        monitor: Monitor,
        done: int,
        elapsed_s: Callable[[], float],
    ) -> SelfPlayExperiment:
        config = self._config
        buffer = TaskBuffer(config.kinds, benchmark=self._evaluation.programs)
        buffer.refill(read_tasks(self._run.tasks))
        in_flight = InFlight.read(self._store.path(done)) if done else InFlight()
        write = partial(self._save_checkpoint, system, logger, in_flight, elapsed_s)
        return SelfPlayExperiment(
            config=config,
            codec=self._codec,
            evaluation=self._evaluation,
            data=data,
            buffer=buffer,
            system=system,
            learner=Learner(config, system.policy, system.critic, system.reference, logger.phase),
            logger=logger,
            checkpointer=AsyncCheckpointer(self._store, config.checkpoint.every, write, logger.progress.log, done),
            in_flight=in_flight,
            stop_signal=self._stop_signal,
            alarm=MalformedAlarm(self._codec.decode, logger.progress.log, stop=config.run.stop_when_malformed),
            monitor=monitor,
            safety_stop=SafetyStop(config.safety.stop_at, f"azr show {self._run.path} --flagged"),
            elapsed_s=elapsed_s,
        )

    async def _play(self, experiment: SelfPlayExperiment) -> None:
        checkpointer = experiment.checkpointer
        try:
            if checkpointer.done:
                await experiment.system.engines_turn(checkpointer.done, experiment.logger.phase)
            await experiment.run()
            await checkpointer.finish_last()
            experiment.logger.finish()
        except (StopRequested, RunEnded):
            await checkpointer.finish_last()
            raise
        finally:
            await checkpointer.cancel()

    async def _load_checkpoint(self, system: ActorSystem, step: int) -> None:
        folder = str((self._store.path(step) / TRAINERS).absolute())
        for group in _trained(system):
            await group.call("load_checkpoint", folder, timeout_s=self._config.timeout.train_s, to="load their state")

    async def _save_checkpoint(
        self,
        system: ActorSystem,
        logger: RunLogger,
        in_flight: InFlight,
        elapsed_s: Callable[[], float],
        step: int,
        staging: Staging,
    ) -> None:
        """Writes a checkpoint. Logs and weights stay as they are meanwhile."""
        folder, deadline_s = staging.folder, self._config.timeout.train_s
        await logger.flush()  # the texts of every step up to this one are no part of what a resumed run writes again
        RunState(step=step, elapsed_s=elapsed_s(), offsets=logger.offsets()).write(folder)
        write_config(self._config, folder / self._run.config.name)
        await asyncio.to_thread(in_flight.copy().write, folder)
        await asyncio.to_thread(logger.sync)
        trainers, policy = folder / TRAINERS, folder / POLICY
        trainers.mkdir()
        for group in _trained(system):
            doing = "save their state"
            staging.written.extend(await group.call("save_checkpoint", str(trainers), timeout_s=deadline_s, to=doing))
        by_rank = await system.policy.call("save_hf", str(policy), timeout_s=deadline_s, to="save the model")
        staging.written.extend(file for files in by_rank for file in files)


def _trained(system: ActorSystem) -> list[WorkerGroup]:
    return [group for group in (system.policy, system.critic) if group is not None]
