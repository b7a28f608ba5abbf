"""A run that is prepared, to its end: start it or resume it, play, save, restart, stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from ray.exceptions import RayTaskError

from azr.cluster.supervisor import root_cause
from azr.datasets.choice import keep_identity
from azr.datasets.play import DataPlay
from azr.datasets.rows import RowOrder, grader_names
from azr.environments import Environment
from azr.environments.own import OwnEnvironments
from azr.environments.tool_calls import open_tool
from azr.errors import RunEnded, UserError
from azr.evaluation.periodic import AnswerExecutor
from azr.evaluation.report import gains
from azr.experiment import SelfPlayExperiment
from azr.graders import OpenExecutor, one_executor, open_graders
from azr.monitoring.monitor import Monitor
from azr.monitoring.texts import TextReader, patterns_of
from azr.prepare import Prepared
from azr.processes import ended_at_once
from azr.prompts.codec import PromptCodec
from azr.records import NO_ROWS_TAKEN, Task
from azr.runs.checkpoint_store import (
    INITIAL,
    POLICY,
    STAGING,
    TRAINERS,
    AsyncCheckpointer,
    CheckpointStore,
    ResumeState,
    RunState,
    Staging,
    find_checkpoint,
)
from azr.runs.metrics import PhaseClock, start_metrics
from azr.runs.progress import Progress
from azr.runs.run_dir import PromptForm, RunOwner, write_config
from azr.runs.run_logger import RunLogger
from azr.runs.sample_file import newest_tasks
from azr.runs.stop_signal import SIGNALS, MalformedAlarm, StopRequested, StopSignal, stop_line
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.journal import Journal, write_journal
from azr.system import System
from azr.tasks.base import RejectReason
from azr.tasks.registry import KINDS
from azr.train.learner import Learner
from azr.train.worker_group import RankDied

MAX_RESTARTS_WITHOUT_PROGRESS = 2
"""Restarts in a row after a trainer died, without a checkpoint in between; the next death ends the run."""

log = logging.getLogger(__name__)


class Driver:
    """One run, or its continuation, which its caller owns. A new run is owned as soon as its directory is there."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared, self._config, self._run = prepared, prepared.run.config, prepared.run.folder
        self._owned = ExitStack()
        self._stop_signal = StopSignal()
        self._was_asked_to_resume = prepared.run.resume is not None
        """True until the resume is recorded in config.yaml, which a restart after a trainer's death is not."""
        self._store = CheckpointStore(self._run.checkpoints, self._config.checkpoint.keep)

    async def run(self) -> None:
        """Start everything, run the experiment, and end what was started.

        When a trainer's process dies, everything is restarted from the last checkpoint.

        Raises UserError for a user's mistake, RunEnded, with the last step saved, when continuing is of no use,
        TimeoutError when a wait passed its deadline, OSError when the last step could not be saved, and StopRequested
        after a signal. In each case nothing is left running, and nothing was written before the actors were up.
        """
        progress = Progress()
        try:
            with self._owned, progress.showing_warnings(), self._stop_signal.listening(progress.log):
                await self._run_with_restarts(progress)
        except RayTaskError as error:
            # Ray wraps what an actor raised; the reader wants the error itself.
            raise error.cause from error
        except RankDied as death:
            if not death.out_of_memory:
                raise
            raise UserError(
                f"The {death.model_role} ran out of memory on this machine: lower train.tokens_per_micro_batch, set "
                "train.gradient_checkpointing to full, set train.lora.rank, or free memory. --resume continues from "
                "the last checkpoint."
            ) from death
        finally:
            progress.close()

    async def _run_with_restarts(self, progress: Progress) -> None:
        resume, futile = self._prepared.run.resume, 0
        while True:
            started_at = resume.state.step if resume else 0
            try:
                return await self._attempt(progress, resume)
            except RankDied as death:
                if not self._run.config.exists():
                    raise
                resume = await asyncio.to_thread(find_checkpoint, self._run, None)
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

        with ended_at_once(SIGNALS, partial(stop_line, run=self._run)):
            system = await System.start(self._config, self._prepared.codec.stops, phase, state.step)
        try:
            started_in = start_metrics(clock.step_timing(), system.engines.start_seconds)
            if state.step:
                await system.turns.offload_engines_onload_trainers(progress.busy)
                await system.load(self._store.path(state.step) / TRAINERS, self._config.timeout.train_s)
            async with self._open_logger(progress, resume) as logger:
                logger.log_start(started_in)
                await self._check_shared(system)
                how = await system.policy.call("computes_with", timeout_s=self._config.timeout.start_s)
                progress.log(f"networks compute in {system.placement.dtype}; the policy with {how[0]}")
                progress.log(f"an engine's KV cache holds {system.engines.kv_cache_tokens:,} tokens")
                progress.log(f"model-written code runs behind {system.executor.start_report}")
                for note in self._prepared.notes:
                    progress.log(note)
                # Objects alive now live as long as the run. Freeze them: scanning them costs the garbage collector 10%
                # of a step.
                gc.collect()
                gc.freeze()
                tools = replace(self._config.rollout, tools=self._config.selfplay.tools)
                async with (
                    one_executor(partial(AnswerExecutor, self._config)) as answers,
                    self._open_data(state, answers) as data,
                    open_tool(tools, self._prepared.codec, answers) as tool,
                    TextReader(patterns_of(self._config.safety)) as reader,
                ):
                    elapsed_s = lambda: time.monotonic() - started  # noqa: E731
                    await play(self._experiment(system, logger, data, reader, state, elapsed_s, tool))
        finally:
            await system.stop()

    async def _check_shared(self, system: System) -> None:
        """Raise UserError if a trainer, perhaps on another node, cannot write where checkpoints will be."""
        with tempfile.TemporaryDirectory(prefix=STAGING, dir=self._run.checkpoints) as folder:
            limit = self._config.timeout.start_s
            try:
                await system.policy.call("check_folder", str(Path(folder).absolute()), timeout_s=limit)
            except OSError as error:
                raise UserError(f"{error}. Give a folder that all nodes share with --run.root.") from error

    @asynccontextmanager
    async def _open_data(self, state: RunState, answers: OpenExecutor) -> AsyncIterator[DataPlay | None]:
        """Start the graders of the run's rows; they end with the block. Yields None without a file of rows.
        ``answers``: see `open_graders`."""
        rows, config = self._prepared.rows, self._config
        if config.data.path is None:
            yield None
            return
        digest = keep_identity(self._run.data, config.data.path)
        ids = [row.question.id for row in rows]
        order = RowOrder(ids, digest, config.run.seed, state.rows)
        codec, own = self._prepared.codec, config.data.environment
        async with (
            open_graders(grader_names(rows) - {own}, answers=answers) as graders,
            open_tool(config.rollout, codec, answers) as tool,
            OwnEnvironments(own, codec, config.rollout.turns) if own else nullcontext() as environments,
        ):
            yield DataPlay(
                config=config, codec=codec, rows=rows, graders=graders, order=order, tool=tool,
                environments=environments,
            )  # fmt: skip

    @asynccontextmanager
    async def _open_logger(self, progress: Progress, resume: ResumeState | None) -> AsyncIterator[RunLogger]:
        """Create the run directory, or take an existing one back to the step that the run continues from."""
        if resume is None:
            logger = RunLogger.create(self._run, self._config, progress)
            self._owned.callback(RunOwner(self._run.path).release)
        else:
            state = resume.state
            logger = await asyncio.to_thread(
                RunLogger.reopen, self._run, self._config, progress, state.step, state.offsets
            )
        try:
            if self._was_asked_to_resume:
                self._run.rewrite_config(self._config)
                self._was_asked_to_resume = False
            codec = self._prepared.codec
            PromptForm(codec.template, codec.stops).keep(self._run.prompt_form)
            if resume is not None:
                for note in resume.notes:
                    progress.log(note)
            yield logger
        except (StopRequested, RankDied):
            raise
        except (RunEnded, UserError) as ended:
            log.info("%s", ended)
            raise
        except Exception:
            log.exception("the run ended early")
            raise
        finally:
            logger.close()

    def _experiment(
        self,
        system: System,
        logger: RunLogger,
        data: DataPlay | None,
        reader: TextReader,
        state: RunState,
        elapsed_s: Callable[[], float],
        tool: Callable[[], Environment] | None,
    ) -> SelfPlayExperiment:
        config, prepared, log_line, done = self._config, self._prepared, logger.progress.log, state.step
        buffer = prepared.empty_buffer()
        restore(buffer, self._run.tasks, prepared.codec, config.rollout.max_prompt_tokens, log_line)
        journal = Journal(system.engines.generate, config.rollout.temperature)
        journal.read(self._store.path(done), done)
        buffer.read_rates(self._store.path(done), done)
        learner = Learner(config, system.policy, system.critic, system.reference, logger.phase)
        estimator = learner.estimator
        estimator.state.update(state.estimators.get(estimator.name, {}))

        async def save(step: int, staging: Staging) -> None:
            """Write a checkpoint. Logs and weights must not change meanwhile."""
            folder, deadline_s = staging.folder, config.timeout.train_s
            await logger.flush()  # a resumed run does not write the texts of steps up to this one again
            rows = data.order.left_after(step) if data is not None else NO_ROWS_TAKEN
            estimators = {estimator.name: estimator.state}
            offsets = logger.offsets()
            RunState(step=step, elapsed_s=elapsed_s(), offsets=offsets, rows=rows, estimators=estimators).write(folder)
            write_config(config, folder / self._run.config.name)
            await asyncio.to_thread(write_journal, folder, journal.copy(step))
            buffer.write_rates(folder, step)
            await asyncio.to_thread(logger.sync)
            states, policy = folder / TRAINERS, folder / POLICY
            states.mkdir()
            for group in system.trained:
                doing = "save their state"
                staging.written.extend(await group.call("save_checkpoint", str(states), timeout_s=deadline_s, to=doing))
            by_rank = await system.policy.call("save_hf", str(policy), timeout_s=deadline_s, to="save the model")
            staging.written.extend(file for files in by_rank for file in files)

        return SelfPlayExperiment(
            config=config,
            codec=prepared.codec,
            seeds=prepared.seeds,
            evaluation=prepared.evaluation,
            data=data,
            buffer=buffer,
            system=system,
            learner=learner,
            logger=logger,
            checkpointer=AsyncCheckpointer(self._store, config.checkpoint.every, save, log_line, done),
            journal=journal,
            stop_signal=self._stop_signal,
            alarm=MalformedAlarm(prepared.codec.decode, log_line, stop=config.run.stop_when_malformed),
            monitor=Monitor(prepared.codec, reader, [rule.name for rule in prepared.screen.rules]),
            elapsed_s=elapsed_s,
            tool=tool,
        )


async def play(experiment: SelfPlayExperiment) -> None:
    """Run an experiment to its end, and save its last step."""
    checkpointer = experiment.checkpointer
    try:
        if checkpointer.done:
            await experiment.system.turns.sync_and_onload_engines(checkpointer.done, experiment.logger.phase)
        await experiment.run()
        await checkpointer.finish_last()
        experiment.logger.finish(await asyncio.to_thread(gains, experiment.logger.run.answers(0).parent))
    except (StopRequested, RunEnded):
        await checkpointer.finish_last()
        raise
    finally:
        await checkpointer.cancel()


def restore(
    buffer: TaskBuffer, stored: Path, codec: PromptCodec, max_tokens: int, log_line: Callable[[str], None]
) -> None:
    """Fill a run's buffer with the newest tasks of its file, but for those that it may no longer ask: a resumed run may
    be evaluated on other programs, or have shorter prompts. Reads no more of the file than fills the buffer."""
    kept: dict[str, list[Task]] = {kind: [] for kind in buffer.sizes()}
    lacking, left_out = {*kept}, 0
    for task in newest_tasks(stored, lacking):
        fits = codec.solver_prompt_fits(KINDS[task.kind], task, max_tokens)
        if not fits or buffer.reject_reason(task) is RejectReason.IN_BENCHMARK:
            left_out += 1
            continue
        kept[task.kind].append(task)
        if len(kept[task.kind]) == buffer.capacity:
            lacking.discard(task.kind)
    if left_out:
        log_line(f"{left_out} stored tasks are left out: an evaluation has them, or they are too long")
    for tasks in kept.values():
        buffer.restore(reversed(tasks))
