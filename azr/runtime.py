"""A run from its config to its end: started, put back where it was, played, saved, started anew, stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ray.exceptions import RayTaskError

from azr.actor_system import ActorSystem
from azr.cluster.ray_start import start_ray
from azr.config import Config
from azr.evaluation.periodic import InRunExam
from azr.experiment import SelfPlayExperiment
from azr.runs.checkpoint_store import CheckpointStore
from azr.runs.checkpointer import Saver
from azr.runs.display import Progress, open_progress
from azr.runs.resume import Resumption, find
from azr.runs.run_dir import RunDirectory, folder, write_config
from azr.runs.run_logger import Tracker
from azr.runs.run_state import BEGINNING, Point
from azr.runs.sinks import read_tasks
from azr.runs.stop_signal import Interrupt, Stopped
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.prompt_codec import PromptCodec
from azr.train.learner import Learner
from azr.train.worker_group import RankDied, WorkerGroup

TRAINERS = "trainers"
"""Folder in a checkpoint: weights, optimisers and random states of policy and critic."""
POLICY = "policy"
"""Folder in a checkpoint: the policy as Hugging Face's libraries read it."""
FUTILE_DEATHS = 3
"""Deaths of trainers in a row, without a step done in between, that a run puts up with."""

log = logging.getLogger(__name__)


class Driver:
    """One run, or its continuation."""

    def __init__(self, config: Config, resumption: Resumption | None = None) -> None:
        """``resumption``: where a run that exists goes on, from `azr.runs.resume.find`."""
        self._config = config
        self._codec = PromptCodec.load(config.model)
        self._exam = InRunExam(config, self._codec)
        self._resumption = resumption
        self._interrupt = Interrupt()
        self._store = CheckpointStore(RunDirectory(folder(config.run)).checkpoints, config.checkpoint.keep)

    async def run(self) -> None:
        """Starts everything, runs the experiment, and ends what it started.

        When a trainer's process dies, everything is started anew and goes on from the last checkpoint.

        Raises ValueError for what a user can mend, TimeoutError when somebody waited too long for somebody, OSError
        when the end could not be saved, and Stopped after a signal; in each case nothing is left running, and unless
        the system was up nothing was written.
        """
        progress = open_progress()
        try:
            with progress.showing_warnings(), self._interrupt.listening(progress.note):
                await self._run(progress)
        except RayTaskError as error:
            # Ray wraps what an actor raised; the driver's reader wants the mistake, not the way it came.
            raise error.cause from error
        finally:
            progress.close()

    async def _run(self, progress: Progress) -> None:
        resumption, futile = self._resumption, 0
        while True:
            began_at = resumption.point.step if resumption else 0
            try:
                return await self._attempt(progress, resumption)
            except RankDied as death:
                if not RunDirectory(folder(self._config.run)).config.exists():
                    raise
                resumption = find(self._config, None)
                futile = 0 if resumption.point.step > began_at else futile + 1
                if futile == FUTILE_DEATHS:
                    raise
                log.warning("%s; everything is started anew", _first_line(death))

    async def _attempt(self, progress: Progress, resumption: Resumption | None) -> None:
        point = resumption.point if resumption else BEGINNING
        began = time.monotonic() - point.elapsed_s
        progress.start(self._config.run.steps, point.step + 1, self._config.run.max_minutes, point.elapsed_s)
        with progress.busy("start Ray"):
            start_ray(self._config.cluster, self._config.num_gpus)
        # Ray's own handler of SIGTERM, which it has just installed, would abort the process.
        self._interrupt.listen()
        system = await self._interrupt.unless_asked(ActorSystem.start(self._config, progress.busy))
        try:
            if point.step:
                await self._restore(system, point.step)
            with self._records(progress, resumption) as tracker:
                experiment = self._experiment(system, tracker, point.step, lambda: time.monotonic() - began)
                progress.note(f"networks compute in {system.placement.dtype}")
                progress.note(f"model-written code runs behind {system.executor.walls}")
                await self._play(experiment)
        finally:
            await system.stop()

    async def _restore(self, system: ActorSystem, step: int) -> None:
        place = str((self._store.path(step) / TRAINERS).absolute())
        for role in _trained(system):
            await role.call("load_checkpoint", place, timeout_s=self._config.timeout.train_s, to="load their state")

    @contextmanager
    def _records(self, progress: Progress, resumption: Resumption | None) -> Iterator[Tracker]:
        """The run directory, new or as it was; what came after the step that the run goes on from is taken away."""
        if resumption is None:
            tracker = Tracker.create(self._config, progress)
        else:
            point = resumption.point
            tracker = Tracker.reopen(self._config, progress, point.step, point.position)
        try:
            if resumption is not None:
                self._store.forget_after(resumption.point.step)
                for note in resumption.notes:
                    progress.note(note)
            yield tracker
        except (Stopped, RankDied):
            raise
        except Exception:
            log.exception("the run ended early")
            raise
        finally:
            tracker.close()

    def _experiment(
        self, system: ActorSystem, tracker: Tracker, done: int, elapsed_s: Callable[[], float]
    ) -> SelfPlayExperiment:
        config, play = self._config, self._config.selfplay
        buffer = TaskBuffer(play.kinds, exam=self._exam.programs)
        buffer.refill(read_tasks(tracker.run.tasks))
        fill = partial(self._fill, system, tracker.run, elapsed_s)
        return SelfPlayExperiment(
            config=config,
            codec=self._codec,
            exam=self._exam,
            buffer=buffer,
            system=system,
            learner=Learner(config, system.policy, system.critic, system.reference, tracker.phase),
            tracker=tracker,
            saver=Saver(self._store, config.checkpoint.every, fill, tracker.progress.note, done),
            interrupt=self._interrupt,
            elapsed_s=elapsed_s,
        )

    async def _play(self, experiment: SelfPlayExperiment) -> None:
        try:
            if experiment.saver.done:
                await experiment.system.weights.push(version=experiment.saver.done)
            await experiment.run()
            await experiment.saver.finish_last()
            experiment.tracker.finish()
        except Stopped:
            await experiment.saver.finish_last()
            raise
        finally:
            await experiment.saver.cancel()

    async def _fill(
        self, system: ActorSystem, run: RunDirectory, elapsed_s: Callable[[], float], step: int, draft: Path
    ) -> None:
        """Writes a checkpoint. Logs and weights stay as they are meanwhile."""
        Point(step=step, elapsed_s=elapsed_s(), position=run.position()).write(draft)
        write_config(self._config, draft / run.config.name)
        (draft / TRAINERS).mkdir()
        place, timeout_s = draft.absolute(), self._config.timeout.train_s
        for role in _trained(system):
            await role.call("save_checkpoint", str(place / TRAINERS), timeout_s=timeout_s, to="save their state")
        await system.policy.call("save_hf", str(place / POLICY), timeout_s=timeout_s, to="save the model")


def _trained(system: ActorSystem) -> list[WorkerGroup]:
    return [role for role in (system.policy, system.critic) if role is not None]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
