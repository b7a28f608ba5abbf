"""Absolute Zero self-play (arXiv 2505.03335, algorithm 1), from the first seed task to the last step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from azr.actor_system import ActorSystem
from azr.cluster.weight_sync import PushReport
from azr.config import Config
from azr.evaluation.periodic import InRunExam
from azr.runs.checkpointer import AsyncCheckpointer
from azr.runs.metrics import throughput
from azr.runs.run_logger import RunLogger
from azr.runs.stop_signal import StopSignal
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.players import Proposer, Solver
from azr.selfplay.prompt_codec import PromptCodec
from azr.selfplay.round import Round, RoundResult
from azr.tasks.registry import KINDS
from azr.train.learner import Learner

MAX_SEED_ROUNDS = 20
"""Rounds of proposals spent on seeding before going on with what there is."""
LEARNING_PHASES = {"critic values", "reference logprobs", "policy logprobs", "train critic", "train policy"}
"""Phases that go over every token of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfPlayExperiment:
    """One language model proposes tasks, solves them and learns from both. `azr.runtime` starts what it needs."""

    config: Config
    codec: PromptCodec
    exam: InRunExam
    buffer: TaskBuffer
    system: ActorSystem
    learner: Learner
    logger: RunLogger
    checkpointer: AsyncCheckpointer
    stop_signal: StopSignal
    elapsed_s: Callable[[], float]
    """How long the run has taken."""

    async def run(self) -> None:
        """Plays and learns for the configured steps, after the last one that was done.

        Raises StopRequested after a signal: between two steps, or during a step's play, which is then given up.
        """
        if self.checkpointer.done == 0:
            await self.stop_signal.cancel_on_stop(self.seed())
            self.logger.log_baseline(await self.stop_signal.cancel_on_stop(self.examine(0)))
        for step in range(self.checkpointer.done + 1, self.config.run.steps + 1):
            played = await self.stop_signal.cancel_on_stop(self.play(step))
            with self.logger.phase("save"):
                await self.checkpointer.finish()
            await self.system.engines.sleep()
            learned = await self.learner.learn(played.trajectories, seed=self.config.run.seed + step)
            await self.system.engines.wake()
            with self.logger.phase("push"):
                pushed = await self.system.weights.push(version=step)
            last = self._is_last(step)
            await self.record(step, played, learned | {"eval": await self.examine(step, last)}, pushed)
            self.checkpointer.step_done(step)
            if last:
                break
            self.stop_signal.raise_if_requested()

    def _is_last(self, step: int) -> bool:
        run = self.config.run
        return step == run.steps or (run.max_minutes is not None and self.elapsed_s() > 60 * run.max_minutes)

    async def seed(self) -> None:
        """Grows the first tasks of every kind from one identity program."""
        play = self.config.selfplay
        for kind in play.kinds:
            self.buffer.reserve(KINDS[kind].seed())
            self.buffer.add(KINDS[kind].seed())
            self.logger.log_tasks([KINDS[kind].seed()])
        for number in range(MAX_SEED_ROUNDS):
            if min(self.buffer.sizes().values()) >= play.seed_tasks:
                break
            found = await self._round(0, f"seed{number}").seed()
            self.logger.log_tasks(found.stored)
        await self.system.executor.stats_delta()
        found_tasks = ", ".join(f"{size} {kind}" for kind, size in self.buffer.sizes().items())
        self.logger.progress.log(f"tasks to start from: {found_tasks}")

    async def play(self, step: int) -> RoundResult:
        """Propose, validate, estimate, solve, verify and reward: one overlapping pipeline, see `Round`."""
        self.logger.begin_step()
        play = self.config.selfplay
        self.logger.progress.phase(
            "propose" if self.config.ablation.new_tasks else "estimate", len(play.kinds) * play.proposer_prompts
        )
        self.logger.progress.phase("solve", len(play.kinds) * play.solver_prompts)
        return await self._round(step, f"{step:06d}").play()

    def _round(self, step: int, name: str) -> Round:
        parts = (self.config, self.codec, self.system.engines, self.system.executor)
        return Round(self.config, step, name, self.buffer, Proposer(*parts), Solver(*parts), self.logger.phase)

    async def examine(self, step: int, last: bool = False) -> dict[str, float]:
        """What the policy of this step knows of the held-out exam; nothing when none is due."""
        if not self.exam.due(step, last):
            return {}
        with self.logger.phase("exam"):
            return await self.exam.take(self.system.engines.generate, self.system.executor)

    async def record(
        self, step: int, played: RoundResult, learned: dict[str, dict[str, float]], pushed: PushReport
    ) -> None:
        """Writes what the step brought."""
        self.logger.log_tasks(played.stored)
        await self.logger.log_rollouts(step, played.trajectories, self.codec.decode)
        timing = self.logger.step_timing()
        trained = sum(len(t.completion.prompt_ids) + len(t.completion.response_ids) for t in played.trajectories)
        tokens = dict.fromkeys(timing.seconds.keys() & LEARNING_PHASES, trained) | played.sampled_tokens
        parts: dict[str, Mapping[str, float | None]] = {
            "seconds": timing.seconds
            | {"step": timing.wall_s, "executor alone": timing.exposed_s, "checkpoint": self.checkpointer.seconds},
            "tokens_per_s": throughput(tokens, timing.seconds),
            "driver": {"cpu_share": timing.cpu_share},
            "weights": {
                "version": pushed.version,
                "push_s": pushed.seconds,
                "push_bytes": pushed.nbytes,
                "push_gb_s": pushed.nbytes / pushed.seconds / 1e9,
            },
            "executor": await self.system.executor.stats_delta(),
            "engines": {"restarts": self.system.engines.restarts},
            "buffer": self.buffer.sizes(),
            "batch": {"ungraded": played.ungraded, "trajectories": len(played.trajectories), "tokens": trained},
            **learned,
        }
        self.logger.end_step(step, played.trajectories, played.funnels, parts)
