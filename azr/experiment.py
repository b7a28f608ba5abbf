"""The training loop of Absolute Zero (arXiv 2505.03335, algorithm 1): `SelfPlayExperiment.run`. docs/architecture.md
compares it with the paper line by line, and draws a step of play and steps played ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from azr.cluster.weight_sync import PushReport
from azr.concurrency import task_group
from azr.config import Config
from azr.datasets.play import DataPlay
from azr.environments import Environment
from azr.evaluation.periodic import PeriodicEval
from azr.monitoring.monitor import Monitor, raise_if_flagged
from azr.prompts.codec import PromptCodec
from azr.records import Sample
from azr.runs.checkpoint_store import AsyncCheckpointer
from azr.runs.metrics import StepParts, step_parts
from azr.runs.run_logger import RunLogger
from azr.runs.stop_signal import MalformedAlarm, StopSignal
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.journal import Journal
from azr.selfplay.play import SelfPlayStep, StepResult, sort_samples
from azr.selfplay.seeding import fill_buffer
from azr.selfplay.seeds import SeedLine
from azr.system import System
from azr.train.learner import Learner


@dataclass(slots=True, kw_only=True)
class SelfPlayExperiment:
    """One language model proposes tasks, solves them and learns from both. `azr.runtime` starts what it needs."""

    config: Config
    codec: PromptCodec
    seeds: Sequence[SeedLine] | None
    evaluation: PeriodicEval
    data: DataPlay | None
    """None without a file of rows."""
    buffer: TaskBuffer
    system: System
    learner: Learner
    logger: RunLogger
    checkpointer: AsyncCheckpointer
    journal: Journal
    """Work in progress and its answers; the checkpointer saves it."""
    stop_signal: StopSignal
    alarm: MalformedAlarm
    monitor: Monitor
    elapsed_s: Callable[[], float]
    """How long the run has taken."""
    tool: Callable[[], Environment] | None = None
    """Makes the environment of a solver's conversation with `selfplay.tools`."""
    _permits: asyncio.Semaphore = field(init=False)
    """Steps that may be played: that which is trained next, and those ahead of it."""

    def __post_init__(self) -> None:
        self._permits = asyncio.Semaphore(1 + self.config.steps_ahead)

    async def run(self) -> None:
        """Train for the configured steps, after the last one that is done.

        Raises StopRequested after a signal: between two steps, or at once during a step's play, which is then given up.
        Raises RunEnded, after a step, when further steps are of no use.
        """
        if self.checkpointer.done == 0:
            await self.seed_and_evaluate()
        async with aclosing(self.rollouts()) as rollouts:
            async for step, played in rollouts:  # samples of self-play, of rows, or of both
                await self.onload_trainers()
                learned, flagged = await self.train(step, played.samples)  # advantages, then updates of critic, policy
                pushed = await self.sync_weights(step)  # and onload the engines
                is_last = self.is_last(step)
                learned["eval"] = await self.evaluate_if_due(step, is_last)
                await self.record(step, played, learned, flagged, pushed)
                self.checkpointer.step_done(step)  # saves if due, while the next step is played
                self.raise_if_hopeless(step, played.samples)
                if is_last:
                    break

    async def seed_and_evaluate(self) -> None:
        """Fill the buffer, and evaluate the policy before its first step."""
        stop = self.stop_signal
        if self.config.kinds:
            await stop.cancel_on_stop(self.seed())
        self.logger.log_baseline(await stop.cancel_on_stop(self.evaluate_if_due(0)))

    async def seed(self) -> None:
        """Fill the buffer. Proposals are recorded as step 0: nothing of them is trained on."""
        logger, system, proposals = self.logger, self.system, list[Sample]()
        rounds = fill_buffer(
            self.buffer,
            self.config,
            self.seeds,
            codec=self.codec,
            generate=system.engines.generate,
            execute=system.executor.execute,
            phase=logger.phase,
            log=logger.progress.log,
            refused=logger.run.seeds_refused,
        )
        async for name, grown in rounds:
            logger.log_tasks(grown.stored)
            if grown.samples:
                proposals += grown.samples
                await self.monitor.watch(proposals)
                await logger.log_rollouts(0, tuple(proposals), self.codec.decode)  # written while others are added
                self.alarm.observe(name, grown.samples, logger.run.rollouts(0))
                self.alarm.raise_if_over()
        await system.executor.stats_delta()

    async def rollouts(self) -> AsyncGenerator[tuple[int, StepResult], None]:
        """Yield the steps in order with their samples, some of which are played while an earlier step trains."""
        stop, steps = self.stop_signal, range(self.checkpointer.done + 1, self.config.run.steps + 1)
        try:
            async with aclosing(play_ahead(self.play, steps, self._permits)) as results:
                for step in steps:
                    self.logger.begin_step()
                    played = await stop.cancel_on_stop(anext(results))
                    drop_stale(played.samples, step - 1, self.config.rollout.staleness)
                    yield step, played
                    stop.raise_if_requested()
                    if not self.config.steps_ahead:
                        self._permits.release()
        finally:
            await self.journal.close()

    async def play(self, step: int) -> StepResult:
        """Play one step with the current policy: self-play, rows, or both."""
        config, selfplay, phase = self.config, self.config.selfplay, self.logger.progress.phase
        uses_selfplay = config.data.uses_selfplay(step)
        uses_data = self.data is not None and config.data.uses_data(step)
        if uses_selfplay:
            phase("propose" if config.ablation.new_tasks else "estimate", len(config.kinds) * selfplay.proposer_prompts)
        solves = len(config.kinds) * selfplay.solver_prompts if uses_selfplay else 0
        phase("solve", solves + (config.data.prompts if uses_data else 0))
        async with task_group() as group:
            playing = []
            if uses_selfplay:
                step_of_play = SelfPlayStep(
                    config=config,
                    step=step,
                    name=f"{step:06d}",
                    buffer=self.buffer,
                    codec=self.codec,
                    execute=self.system.executor.execute,
                    journal=self.journal,
                    phase=self.logger.phase,
                    tool=self.tool,
                )
                playing.append(group.create_task(step_of_play.play(is_last=step == config.run.steps)))
            if uses_data:
                assert self.data is not None
                playing.append(group.create_task(self.data.play(step, self.system.engines.generate, self.logger.phase)))
        results = [each.result() for each in playing]  # self-play is the first and rows the last, if there are both
        samples = sort_samples([sample for result in results for sample in result.samples])
        return replace(results[0], samples=samples, data=results[-1].data)

    async def onload_trainers(self) -> None:
        """Offload the engines and onload the trainers if they share GPUs, once the last checkpoint is written."""
        with self.logger.phase("save"):  # the weights that it saves are about to change
            await self.checkpointer.finish()
        await self.system.turns.offload_engines_onload_trainers(self.logger.phase)

    async def train(self, step: int, samples: Sequence[Sample]) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
        """Train on a step's samples while all of its texts are screened. Return metrics of both."""
        trained = [sample for sample in samples if sample.used == "trained"]
        async with task_group() as group:
            screening = group.create_task(self.monitor.watch(samples))
            critic_only = step <= self.config.algorithm.critic_warmup_steps
            learned = await self.learner.learn(trained, step, critic_only=critic_only)
        return learned, screening.result()

    async def sync_weights(self, step: int) -> PushReport:
        """Offload the trainers, send the policy's weights to the engines and onload these; then the next step that is
        played ahead may begin."""
        pushed = await self.system.turns.sync_and_onload_engines(step, self.logger.phase)
        if self.config.steps_ahead:
            self._permits.release()
        return pushed

    def is_last(self, step: int) -> bool:
        run = self.config.run
        return step == run.steps or (run.max_minutes is not None and self.elapsed_s() > 60 * run.max_minutes)

    async def evaluate_if_due(self, step: int, is_last: bool = False) -> dict[str, float]:
        """Evaluate on held-out benchmarks if due. Return metrics, else none."""
        if not self.evaluation.should_run(step, is_last):
            return {}
        with self.logger.phase("evaluate"):
            found = await self.evaluation.run(self.system.engines.generate, self.system.executor, step)
        await self.logger.log_answers(step, found.write)
        return found.metrics

    async def record(
        self, step: int, played: StepResult, learned: StepParts, flagged: Mapping[str, float], pushed: PushReport
    ) -> None:
        """Write the step's tasks, samples and metrics."""
        samples, system = played.samples, self.system
        self.logger.log_tasks(played.stored)
        await self.logger.log_rollouts(step, samples, self.codec.decode)
        self.journal.recorded(step, played.items)
        self.buffer.recorded(step)
        self.alarm.observe(f"step {step}", samples, self.logger.run.rollouts(step))
        computed, staleness = learned["computed_tokens"], self.config.rollout.staleness
        parts = step_parts(samples, step, self.logger.step_timing(), computed, pushed, staleness)
        parts["seconds"]["checkpoint"] = self.checkpointer.seconds
        more: StepParts = {
            "memory": system.turns.memory,
            "executor": await system.executor.stats_delta(),
            "engines": await system.engines.stats(),
            "buffer": self.buffer.sizes(),
            "shapes": self.buffer.num_shapes(),
            "data": played.data,
            "chains": played.chains,
        }
        self.logger.end_step(step, samples, {**parts, **more, **learned}, flagged)

    def raise_if_hopeless(self, step: int, samples: Sequence[Sample]) -> None:
        """Raise RunEnded if responses stay malformed, too many are flagged, or training has diverged."""
        self.alarm.raise_if_over()
        raise_if_flagged(self.config.safety.stop_at, self.logger.run.path, step, samples)
        self.learner.raise_if_diverged()


def drop_stale(samples: Sequence[Sample], version: int, staleness: int) -> None:
    """Mark samples as stale that have a token from over ``staleness`` updates before the policy's ``version``."""
    for sample in samples:
        versions = sample.sampled_versions
        if staleness and sample.used == "trained" and len(versions) and version - int(versions[0]) > staleness:
            sample.used = "stale"


async def play_ahead(
    play: Callable[[int], Coroutine[Any, Any, StepResult]], steps: range, permits: asyncio.Semaphore
) -> AsyncGenerator[StepResult, None]:
    """Play steps while an earlier one trains, and yield their results. One is played when the one before is, and
    acquires a permit.

    Raises what playing a step raised where its result is awaited. Closing cancels what is under way.
    """
    begun = asyncio.Queue[asyncio.Task[StepResult]]()

    async def play_all() -> None:
        for step in steps:
            await permits.acquire()
            playing = asyncio.create_task(play(step))
            begun.put_nowait(playing)
            await playing

    playing_all = asyncio.create_task(play_all())
    try:
        for _ in steps:
            yield await (await begun.get())
    finally:
        playing_all.cancel()
        await asyncio.gather(playing_all, return_exceptions=True)
