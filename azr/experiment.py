"""Absolute Zero self-play (arXiv 2505.03335, algorithm 1): the whole run, to be read from top to bottom.

    seed                 the first tasks of every kind: a seed file, or grown from one identity program
    evaluate             what the policy knows of held-out benchmarks before its first step
    for every step:
        play             propose, validate, estimate, solve, verify, reward -> samples
        trainers' turn   engines leave their GPU memory to the trainers
        learn            values, logprobs, advantages, then the updates of critic and policy; texts are looked at
        engines' turn    the other way round, and the new weights go to every engine
        evaluate         where it is due
        record           tasks, texts and metrics
        checkpoint       begun here, and written while the next step is played

Who produces, who consumes and who waits in a step's play. All proposals of all kinds are under way at once, each as a
coroutine, so engines and executor are busy with every phase at the same time.

    buffer ──► references ──► propose_one(i)        sample ─► validate ─► reserve ─► estimate ─► reward
                                   │                (a deterministic run reserves in the order of i)
                             accepted task
                ┌──────────────────┴───────────────┐
                ▼                                  ▼
    waits for this proposal only:        waits for all proposals of the kind:
      solve_one, when i is among           stores the accepted tasks ──► buffer
      the first solver_prompts             solve_one up to solver_prompts: the other
      estimate its derived tasks           tasks of this step, then stored ones
      when it is refused, solve_one
      of a stored task, as far as
      solvers will need one (in a
      deterministic run at the end)
                └──────────────────┬───────────────┘
                                   ▼
    play waits for all kinds ──► sorted samples ──► learn, which also waits for the last checkpoint

With ``data.path`` rows of a file are answered and graded instead of self-play, beside it, or in turns with it
(`azr.datasets.play`); all that follows is the same.

With ``rollout.staleness`` 1 and engines of their own, the next step is played while one is learned. A push interrupts
what is in flight, which goes on under the new weights; what has become too old is not trained on.

    engines     play 1 ──► play 2 ──────────► play 3 ──────────► …
                     └─────► learn 1 ─ push 1 ─► learn 2 ─ push 2 ─► …     trainers

With ``rollout.partial`` a step is played when nine in ten of its work items are done. The others are cancelled, begun
again in the next step, and find in the journal (`azr.selfplay.journal`) what was answered. A checkpoint holds the
journal, so a resumed run does the same with them and with a step that was played ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from azr.cluster.weight_sync import PushReport
from azr.concurrency import task_group
from azr.config import Config
from azr.datasets.play import DataPlay
from azr.evaluation.periodic import PeriodicEval
from azr.monitoring.monitor import Monitor, SafetyStop
from azr.prompts.codec import PromptCodec
from azr.records import ROLES, Sample
from azr.runs.checkpoint_store import AsyncCheckpointer
from azr.runs.metrics import (
    LEARNING_PHASES,
    malformed_share,
    num_ungraded,
    sampled,
    sampled_tokens,
    staleness_metrics,
    throughput,
)
from azr.runs.run_logger import RunLogger
from azr.runs.stop_signal import MalformedAlarm, StopSignal
from azr.selfplay.ahead import play_ahead
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.journal import Journal
from azr.selfplay.play import SelfPlayStep, StepResult, sort_samples
from azr.selfplay.seeding import fill_buffer
from azr.selfplay.seeds import SeedLine
from azr.system import System
from azr.train.learner import Learner


@dataclass(frozen=True, slots=True, kw_only=True)
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
    safety_stop: SafetyStop
    elapsed_s: Callable[[], float]
    """How long the run has taken."""

    async def run(self) -> None:
        """Plays and learns for the configured steps, after the last one that was done.

        With ``rollout.staleness`` the next steps are played while one is learned.

        Raises StopRequested after a signal: between two steps, or at once during a step's play, which is then given up.
        Raises RunEnded, between two steps, when going on is of no use.
        """
        stop = self.stop_signal
        if self.checkpointer.done == 0:
            if self.config.kinds:
                await stop.cancel_on_stop(self.seed())
            self.logger.log_baseline(await stop.cancel_on_stop(self.evaluate(0)))
        steps = range(self.checkpointer.done + 1, self.config.run.steps + 1)
        permits = asyncio.Semaphore(1 + self.config.steps_ahead)
        try:
            async with aclosing(play_ahead(self.play, steps, permits)) as results:
                for step in steps:
                    self.logger.begin_step()
                    played = await stop.cancel_on_stop(anext(results))
                    if await self.learn_from(step, played, permits):
                        break
                    stop.raise_if_requested()
                    if not self.config.steps_ahead:
                        permits.release()
        finally:
            await self.journal.close()

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
                self.alarm.watch(name, grown.samples, logger.run.rollouts(0))
        await system.executor.stats_delta()

    async def play(self, step: int) -> StepResult:
        """Play one step with the current policy: self-play, rows, or both."""
        config, selfplay, phase = self.config, self.config.selfplay, self.logger.progress.phase
        plays_itself = config.data.plays_itself(step)
        takes_rows = self.data is not None and config.data.takes_rows(step)
        if plays_itself:
            phase("propose" if config.ablation.new_tasks else "estimate", len(config.kinds) * selfplay.proposer_prompts)
        solves = len(config.kinds) * selfplay.solver_prompts if plays_itself else 0
        phase("solve", solves + (config.data.prompts if takes_rows else 0))
        async with task_group() as group:
            playing = []
            if plays_itself:
                step_of_play = SelfPlayStep(
                    config=config,
                    step=step,
                    name=f"{step:06d}",
                    buffer=self.buffer,
                    codec=self.codec,
                    execute=self.system.executor.execute,
                    journal=self.journal,
                    phase=self.logger.phase,
                )
                playing.append(group.create_task(step_of_play.play(is_last=step == config.run.steps)))
            if takes_rows:
                assert self.data is not None
                playing.append(group.create_task(self.data.play(step, self.system.engines.generate, self.logger.phase)))
        results = [each.result() for each in playing]
        return StepResult(
            samples=sort_samples([sample for result in results for sample in result.samples]),
            stored=[task for result in results for task in result.stored],
            items=[item for result in results for item in result.items],
            data={name: count for result in results for name, count in result.data.items()},
            chains={name: value for result in results for name, value in result.chains.items()},
        )

    async def learn_from(self, step: int, played: StepResult, permits: asyncio.Semaphore) -> bool:
        """Train on a step, push the weights, evaluate, record and begin the checkpoint; True after the last step.

        Once the engines have its weights, one more step may be played ahead.
        """
        phase, samples, run = self.logger.phase, played.samples, self.config.run
        drop_stale(samples, step - 1, self.config.rollout.staleness)
        with phase("save"):  # of the step before: it holds weights that the trainers are about to change
            await self.checkpointer.finish()
        await self.system.turns.trainers_turn(phase)
        learned, watched = await self.learn(step, played)
        pushed = await self.system.turns.engines_turn(step, phase)
        if self.config.steps_ahead:
            permits.release()
        is_last = step == run.steps or (run.max_minutes is not None and self.elapsed_s() > 60 * run.max_minutes)
        learned["eval"] = await self.evaluate(step, is_last)
        learned["staleness"] = staleness_metrics(samples, step - 1) if self.config.rollout.staleness else {}
        await self.record(step, played, learned, pushed, watched)
        self.checkpointer.step_done(step)
        self.alarm.raise_if_over()
        self.safety_stop.raise_if_over(step, samples)
        self.learner.raise_if_diverged()
        return is_last

    async def learn(self, step: int, played: StepResult) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
        """Train on a step's samples; meanwhile all of its texts are looked at. Return metrics of both."""
        trained = [sample for sample in played.samples if sample.used == "trained"]
        async with task_group() as group:
            watching = group.create_task(self.monitor.watch(played.samples))
            critic_only = step <= self.config.algorithm.critic_warmup_steps
            learned = await self.learner.learn(trained, step, critic_only=critic_only)
        return learned, watching.result()

    async def evaluate(self, step: int, is_last: bool = False) -> dict[str, float]:
        """What the policy of this step knows of held-out benchmarks; nothing when no evaluation is due."""
        if not self.evaluation.should_run(step, is_last):
            return {}
        with self.logger.phase("evaluate"):
            found = await self.evaluation.run(self.system.engines.generate, self.system.executor, step)
        await self.logger.log_answers(step, found.write)
        return found.metrics

    async def record(
        self,
        step: int,
        played: StepResult,
        learned: Mapping[str, Mapping[str, float]],
        pushed: PushReport,
        watched: Mapping[str, float],
    ) -> None:
        samples = played.samples
        self.logger.log_tasks(played.stored)
        await self.logger.log_rollouts(step, samples, self.codec.decode)
        self.journal.recorded(step, played.items)
        self.buffer.rates.recorded(step)
        self.alarm.observe(f"step {step}", samples, self.logger.run.rollouts(step))
        timing = self.logger.step_timing()
        batch = [sample.completion for sample in samples if sample.used in ("trained", "cut off")]
        trained = sum(completion.num_tokens for completion in batch)
        num_sampled = sum(len(sampled(samples, role)) for role in ROLES)
        tokens = dict.fromkeys(timing.seconds.keys() & LEARNING_PHASES, trained) | sampled_tokens(samples)
        parts: dict[str, Mapping[str, float | None]] = {
            "seconds": timing.seconds
            | {"step": timing.wall_s, "executor alone": timing.exposed_s, "checkpoint": self.checkpointer.seconds}
            | ({"learned beside play": timing.learned_beside_s} if self.config.rollout.staleness else {}),
            "tokens_per_s": throughput(tokens, timing.seconds),
            "driver": {
                "cpu_share": timing.cpu_share,
                "cpu_ms_per_trajectory": 1e3 * timing.cpu_s / num_sampled if num_sampled else None,
            },
            "weights": {
                "version": pushed.version,
                "push_s": pushed.seconds,
                "push_bytes": pushed.nbytes,
                "push_gb_s": pushed.nbytes / pushed.seconds / 1e9,
                f"push_by_{pushed.transfer}": 1,
                **{f"push_s_{part}": seconds for part, seconds in pushed.parts.items()},
            },
            "memory": self.system.turns.memory,
            "executor": await self.system.executor.stats_delta(),
            "engines": await self.system.engines.stats(),
            "buffer": self.buffer.sizes(),
            "shapes": self.buffer.num_shapes(),
            "data": played.data,
            "chains": played.chains,
            "batch": {"ungraded": num_ungraded(samples), "trajectories": len(batch), "tokens": trained},
            **{role: {"malformed": malformed_share(samples, role)} for role in ROLES},
            **learned,
        }
        self.logger.end_step(step, samples, parts, watched)


def drop_stale(samples: Sequence[Sample], version: int, staleness: int) -> None:
    """Mark samples as stale that have a token from over ``staleness`` updates before the policy's ``version``."""
    for sample in samples:
        versions = sample.sampled_versions
        if staleness and sample.used == "trained" and len(versions) and version - int(versions[0]) > staleness:
            sample.used = "stale"
