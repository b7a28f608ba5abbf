"""Absolute Zero self-play (arXiv 2505.03335, algorithm 1), from the first seed task to the last step."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from ray.exceptions import RayTaskError

from azr.config import Config
from azr.exam.in_run import InRunExam
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.language import Language
from azr.selfplay.players import Proposer, Solver
from azr.selfplay.round import Round, RoundResult
from azr.system import System
from azr.tasks.registry import KINDS
from azr.tracking.display import open_progress
from azr.tracking.metrics import throughput
from azr.tracking.tracker import Tracker
from azr.train.dispatch import push_weights
from azr.train.learner import Learner
from azr.train.policy import PushReport

log = logging.getLogger(__name__)

LEARNING_PHASES = {"critic values", "reference logprobs", "policy logprobs", "train critic", "train policy"}
"""Phases that go over every token of the batch."""


class SelfPlayExperiment:
    """One run: one language model proposes tasks, solves them and learns from both."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.language = Language.load(config.model)
        self.exam = InRunExam(config, self.language)
        self.buffer = TaskBuffer(config.selfplay.kinds, config.selfplay.buffer_capacity, self.exam.programs)

    async def run(self) -> None:
        """Starts the system, plays and learns for the configured steps, ends what it started.

        Raises ValueError for what a user can mend and TimeoutError when somebody waited too long for somebody; in
        both cases nothing is left running, and unless the system was up nothing was written.
        """
        try:
            await self._run()
        except RayTaskError as error:
            # Ray wraps what an actor raised; the driver's reader wants the mistake, not the way it came.
            raise error.cause from error

    async def _run(self) -> None:
        began = time.monotonic()
        await self._start()
        try:
            await self.seed()
            self.tracker.began(await self.examine(0))
            for step in range(1, self.config.run.steps + 1):
                played = await self.play(step)
                await self.system.engines.sleep()
                learned = await self.learner.learn(played.trajectories, seed=self.config.run.seed + step)
                await self.system.engines.wake()
                pushed = await self.push_weights(version=step)
                last = self._is_last(step, time.monotonic() - began)
                await self.record(step, played, learned | {"exam": await self.examine(step, last)}, pushed)
                if last:
                    break
            await self.export(step)
            self.tracker.finish()
        except Exception:
            log.exception("the run ended early")
            raise
        finally:
            self.tracker.close()
            await self.system.stop()

    def _is_last(self, step: int, elapsed_s: float) -> bool:
        run = self.config.run
        return step == run.steps or (run.max_minutes is not None and elapsed_s > 60 * run.max_minutes)

    async def seed(self) -> None:
        """Grows the first tasks of every kind from one identity program."""
        play = self.config.selfplay
        for kind in play.kinds:
            self.buffer.reserve(KINDS[kind].seed())
            self.buffer.add(KINDS[kind].seed())
            self.tracker.stored([KINDS[kind].seed()])
        for number in range(play.seed_rounds):
            if min(self.buffer.sizes().values()) >= play.seed_tasks:
                break
            found = await self._round(0, f"seed{number}").seed()
            self.tracker.stored(found.stored)
        await self.system.executor.new_counts()
        found_tasks = ", ".join(f"{size} {kind}" for kind, size in self.buffer.sizes().items())
        self.tracker.progress.note(f"tasks to start from: {found_tasks}")

    async def play(self, step: int) -> RoundResult:
        """Propose, validate, estimate, solve, verify and reward: one overlapping pipeline, see `Round`."""
        self.tracker.begin_step()
        play = self.config.selfplay
        self.tracker.progress.phase(
            "propose" if play.new_tasks else "estimate", len(play.kinds) * play.proposals_per_kind
        )
        self.tracker.progress.phase("solve", len(play.kinds) * play.solves_per_kind)
        return await self._round(step, f"{step:06d}").play()

    def _round(self, step: int, name: str) -> Round:
        parts = (self.config, self.language, self.system.engines, self.system.executor)
        return Round(self.config, step, name, self.buffer, Proposer(*parts), Solver(*parts), self.tracker.phase)

    async def push_weights(self, version: int) -> PushReport:
        """Sends the policy's weights to every engine; versions and digests are compared on the way."""
        with self.tracker.phase("push"):
            return await push_weights(self.system.policy, version, self.system.engines.actors, self.config.train)

    async def examine(self, step: int, last: bool = False) -> dict[str, float]:
        """What the policy of this step knows of the held-out exam; nothing when none is due."""
        if not self.exam.due(step, last):
            return {}
        with self.tracker.phase("exam"):
            return await self.exam.take(self.system.engines.examine, self.system.executor)

    async def record(
        self, step: int, played: RoundResult, learned: dict[str, dict[str, float]], pushed: PushReport
    ) -> None:
        """Writes what the step brought."""
        self.tracker.stored(played.stored)
        await self.tracker.rollouts(step, played.trajectories, self.language.text)
        lap = self.tracker.lap()
        trained = sum(len(t.completion.prompt_ids) + len(t.completion.response_ids) for t in played.trajectories)
        tokens = dict.fromkeys(lap.seconds.keys() & LEARNING_PHASES, trained) | played.sampled_tokens
        parts: dict[str, Mapping[str, float | None]] = {
            "seconds": lap.seconds | {"step": lap.wall_s, "executor alone": lap.alone_s},
            "tokens_per_s": throughput(tokens, lap.seconds),
            "driver": {"cpu_share": lap.cpu_share},
            "weights": {"version": pushed.version, "push_s": pushed.seconds, "push_bytes": pushed.nbytes},
            "executor": await self.system.executor.new_counts(),
            "buffer": self.buffer.sizes(),
            "batch": {"ungraded": played.ungraded, "trajectories": len(played.trajectories), "tokens": trained},
            **learned,
        }
        self.tracker.end_step(step, played.trajectories, played.funnels, parts)

    async def export(self, step: int) -> None:
        """Writes the policy of this step as a Hugging Face folder."""
        folder = self.tracker.run.checkpoints / f"step_{step:06d}" / "policy"
        await self.system.policy.call("save_hf", str(folder.absolute()), timeout_s=self.config.train.step_timeout_s)

    async def _start(self) -> None:
        progress = open_progress(self.config.tracking.progress)
        progress.start(self.config.run.steps, max_minutes=self.config.run.max_minutes)
        try:
            self.system = await System.start(self.config, progress.busy)
        except BaseException:
            progress.close()
            raise
        try:
            self.tracker = Tracker(self.config, progress)
        except BaseException:
            progress.close()
            await self.system.stop()
            raise
        progress.note(f"model-written code runs behind {self.system.executor.walls}")
        roles = (self.system.policy, self.system.critic, self.system.reference)
        self.learner = Learner(self.config, *roles, self.tracker.phase)
