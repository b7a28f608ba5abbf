"""Absolute Zero self-play (arXiv 2505.03335, algorithm 1): the whole run, to be read from top to bottom.

    seed                 the first tasks of every kind: a seed file, or grown from one identity program
    evaluate             what the policy knows of held-out benchmarks before its first step
    for every step:
        play             propose, validate, estimate, solve, verify, reward -> trajectories
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
    play waits for all kinds ──► sorted trajectories ──► learn, which also waits for the last checkpoint

With ``data.path`` rows of a file are answered and graded instead of self-play, beside it, or in turns with it
(`azr.datasets.play`); all that follows is the same.

With ``rollout.staleness`` 1 and engines of their own, the next step is played while one is learned. A push interrupts
what is in flight, which goes on under the new weights; what has become too old is not trained on.

    engines     play 1 ──► play 2 ──────────► play 3 ──────────► …
                     └─────► learn 1 ─ push 1 ─► learn 2 ─ push 2 ─► …     trainers

With ``rollout.partial`` a step is played when nine in ten of its rollouts are in; the next one waits for the others. A
checkpoint holds what recreates them (`azr.selfplay.in_flight`), and a step that was played ahead is played again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from azr.cluster.weight_sync import PushReport
from azr.concurrency import gather, task_group
from azr.config import Config
from azr.datasets.play import DataPlay
from azr.evaluation.periodic import PeriodicEval
from azr.monitoring.monitor import Monitor, SafetyStop, Watched
from azr.prompts.codec import PromptCodec
from azr.records import Sample
from azr.runs.checkpointer import AsyncCheckpointer
from azr.runs.malformed_alarm import MalformedAlarm
from azr.runs.metrics import throughput
from azr.runs.run_logger import RunLogger
from azr.runs.stop_signal import StopSignal
from azr.runs.timing import LEARNING_PHASES
from azr.selfplay.ahead import PlayAhead
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.in_flight import InFlight, Journal, Leftover
from azr.selfplay.pieces import Carried
from azr.selfplay.play import SelfPlayStep, StepResult, together
from azr.selfplay.roles import Proposer, Solver
from azr.selfplay.seeding import Seeding
from azr.selfplay.staleness import select_fresh
from azr.system import System
from azr.train.learner import Learner


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfPlayExperiment:
    """One language model proposes tasks, solves them and learns from both. `azr.runtime` starts what it needs."""

    config: Config
    codec: PromptCodec
    evaluation: PeriodicEval
    data: DataPlay | None
    """None without a file of rows."""
    buffer: TaskBuffer
    system: System
    learner: Learner
    logger: RunLogger
    checkpointer: AsyncCheckpointer
    in_flight: InFlight
    """Of the last step that was done; the checkpointer saves it."""
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
        system, stop, phase = self.system, self.stop_signal, self.logger.phase
        if self.checkpointer.done == 0:
            if self.config.kinds:
                await stop.cancel_on_stop(self.seed())
            self.logger.log_baseline(await stop.cancel_on_stop(self.evaluate(0)))
        first, last = self.checkpointer.done + 1, self.config.run.steps
        async with PlayAhead(self.play, first, last, self.config.steps_ahead, self.begin_again()) as ahead:
            for step in range(first, last + 1):
                self.logger.begin_step()
                played = await stop.cancel_on_stop(ahead.next())
                batch = select_fresh(played.trajectories, step - 1, self.config.rollout.staleness)
                await self.finish_checkpoint()
                await system.trainers_turn(phase)
                untrained = [*played.untrained, *batch.stale]
                played = replace(played, trajectories=batch.trajectories, untrained=untrained)
                learned, watched = await self.learn(step, played)
                pushed = await system.engines_turn(step, phase)
                await ahead.learned(step)
                is_last = self._is_last(step)
                evaluated = await self.evaluate(step, is_last)
                learned |= {"eval": evaluated, "staleness": batch.metrics}
                await self.record(step, played, learned, pushed, watched)
                self.in_flight.leftovers = [piece.leftover for piece in played.carried]
                self.checkpointer.step_done(step)
                self.alarm.raise_if_over()
                self.safety_stop.raise_if_over(step, watched)
                self.learner.raise_if_diverged()
                if is_last:
                    break
                stop.raise_if_requested()

    async def seed(self) -> None:
        """Fills the buffer before the first step."""
        logger, system = self.logger, self.system
        await Seeding(
            config=self.config,
            codec=self.codec,
            engines=system.engines,
            executor=system.executor,
            buffer=self.buffer,
            phase=logger.phase,
            store=logger.log_tasks,
            record=self._record_seeding,
            log=logger.progress.log,
            refused=logger.run.seeds_refused,
            watch=partial(self.alarm.watch, texts=logger.run.rollouts(0)),
        ).run()
        await system.executor.stats_delta()

    async def _record_seeding(self, proposals: Sequence[Sample]) -> None:
        """As step 0: nothing of it is trained on."""
        watched = await self.monitor.watch(proposals, {})
        await self.logger.log_rollouts(0, [(each, None) for each in proposals], self.codec.decode, watched.flags)

    async def play(self, step: int, carried: Sequence[Carried]) -> StepResult:
        """One step with the current policy: of self-play, with what the step before has left over, of rows, or both."""
        config, selfplay, phase = self.config, self.config.selfplay, self.logger.progress.phase
        playing = list[Coroutine[Any, Any, StepResult]]()
        solves = 0
        if config.data.plays_itself(step):
            phase("propose" if config.ablation.new_tasks else "estimate", len(config.kinds) * selfplay.proposer_prompts)
            solves += len(config.kinds) * selfplay.solver_prompts
            playing.append(self._step(step, f"{step:06d}").play(carried, is_last=step == config.run.steps))
        if self.data is not None and config.data.takes_rows(step):
            solves += config.data.prompts
            playing.append(self.data.play(step, self.system.engines, self.logger.phase))
        phase("solve", solves)
        return together(await gather(*playing))

    def begin_again(self) -> list[Carried]:
        """What the step that a resumed run goes on from has left over."""
        of_step: defaultdict[tuple[int, str], list[Leftover]] = defaultdict(list)
        for each in self.in_flight.leftovers:
            of_step[each.origin.step, each.origin.name].append(each)
        return [piece for names, some in of_step.items() for piece in self._step(*names).begin_again(some)]

    def _step(self, step: int, name: str) -> SelfPlayStep:
        parts = (self.config, self.codec, Journal(self.system.engines), self.system.executor)
        return SelfPlayStep(self.config, step, name, self.buffer, Proposer(*parts), Solver(*parts), self.logger.phase)

    async def learn(self, step: int, played: StepResult) -> tuple[dict[str, dict[str, float]], Watched]:
        """Trains on a step's trajectories; meanwhile all of its texts are looked at."""
        tasks = {kind: self.buffer.tasks(kind) for kind in self.config.kinds}
        texts = [*played.trajectories, *played.untrained]
        async with task_group() as group:
            watching = group.create_task(self.monitor.watch(texts, tasks, played.stored))
            critic_only = step <= self.config.algorithm.critic_warmup_steps
            seed = self.config.run.seed + step
            learned = await self.learner.learn(played.trajectories, seed, critic_only=critic_only)
        return learned, watching.result()

    async def finish_checkpoint(self) -> None:
        """The checkpoint of the step before holds weights that the trainers are about to change."""
        with self.logger.phase("save"):
            await self.checkpointer.finish()

    async def evaluate(self, step: int, is_last: bool = False) -> dict[str, float]:
        """What the policy of this step knows of held-out benchmarks; nothing when no evaluation is due."""
        if not self.evaluation.should_run(step, is_last):
            return {}
        with self.logger.phase("evaluate"):
            found = await self.evaluation.run(self.system.engines.generate, self.system.executor)
        await self.logger.log_answers(step, found.write)
        return found.metrics

    async def record(
        self,
        step: int,
        played: StepResult,
        learned: dict[str, dict[str, float]],
        pushed: PushReport,
        watched: Watched,
    ) -> None:
        """Writes the tasks, texts and metrics of a step."""
        self.logger.log_tasks(played.stored)
        rollouts = [*zip(played.trajectories, self.learner.learned, strict=True)]
        rollouts += [(trajectory, None) for trajectory in played.untrained]
        await self.logger.log_rollouts(step, rollouts, self.codec.decode, watched.flags)
        self.alarm.observe(f"step {step}", played.forms, self.logger.run.rollouts(step))
        timing = self.logger.step_timing()
        trained = sum(t.completion.num_tokens for t in played.trajectories)
        sampled = sum(form.sampled for form in played.forms.values())
        tokens = dict.fromkeys(timing.seconds.keys() & LEARNING_PHASES, trained) | played.sampled_tokens
        parts: dict[str, Mapping[str, float | None]] = {
            "seconds": timing.seconds
            | {"step": timing.wall_s, "executor alone": timing.exposed_s, "checkpoint": self.checkpointer.seconds}
            | ({"learned beside play": timing.learned_beside_s} if self.config.rollout.staleness else {}),
            "tokens_per_s": throughput(tokens, timing.seconds),
            "driver": {
                "cpu_share": timing.cpu_share,
                "cpu_ms_per_trajectory": 1e3 * timing.cpu_s / sampled if sampled else None,
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
            "data": played.data,
            "batch": {"ungraded": played.ungraded, "trajectories": len(played.trajectories), "tokens": trained},
            **{str(role): {"malformed": form.share} for role, form in played.forms.items()},
            **learned,
        }
        self.logger.end_step(step, played.trajectories, played.proposal_stats, parts, watched.metrics)

    def _is_last(self, step: int) -> bool:
        run = self.config.run
        return step == run.steps or (run.max_minutes is not None and self.elapsed_s() > 60 * run.max_minutes)
