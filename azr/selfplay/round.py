"""One round of self-play: propose, validate, estimate, solve and grade, all overlapping."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace

from azr.concurrency import Phase, task_group
from azr.config import Config
from azr.records import Completion, Task, Trajectory
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.grading import Funnel, graded, passes, proposer_trajectory, solver_trajectory
from azr.selfplay.intrinsic import bonuses
from azr.selfplay.players import Proposed, Proposer, Solver, solve_rate
from azr.tasks.base import Refusal


@dataclass(slots=True)
class RoundResult:
    """What one round of self-play brought."""

    trajectories: list[Trajectory] = field(default_factory=list)
    funnels: dict[str, Funnel] = field(default_factory=dict)
    stored: list[Task] = field(default_factory=list)
    """Tasks that entered the buffer."""
    sampled_tokens: Counter[str] = field(default_factory=Counter)
    """Response tokens by phase."""
    ungraded: int = 0
    """Proposals and solutions that the executor lost; they are not trained on."""


class Round:
    """Plays one step. Every proposal is a coroutine of its own, so nobody waits for the slowest of a phase."""

    def __init__(
        self,
        config: Config,
        step: int,
        name: str,
        buffer: TaskBuffer,
        proposer: Proposer,
        solver: Solver,
        phase: Phase,
    ) -> None:
        """``name`` begins the ids of the round's tasks and seeds its draws."""
        self._config, self._play, self._step, self._name = config, config.selfplay, step, name
        self._buffer, self._proposer, self._solver, self._phase = buffer, proposer, solver, phase
        self._rng = random.Random(f"{config.run.seed}/{name}")
        self._result = RoundResult(funnels={kind: Funnel() for kind in self._play.kinds})
        self._fresh: dict[str, list[Task]] = {kind: [] for kind in self._play.kinds}

    async def play(self) -> RoundResult:
        """Proposals and solutions of every kind, graded. Solvers get this step's tasks first."""
        async with task_group() as group:
            for kind in self._play.kinds:
                group.create_task(self._play_kind(kind))
        return self._result

    async def seed(self) -> RoundResult:
        """Proposals only, stored as they validate: how the buffer first fills."""
        async with task_group() as group:
            for kind in self._play.kinds:
                for number, references in enumerate(self._references(kind)):
                    group.create_task(self._seed_one(kind, number, references))
        return self._result

    def _references(self, kind: str) -> list[list[Task]]:
        """References of every proposal of a kind, drawn before any of them can change the buffer."""
        return [
            self._buffer.references(kind, self._play.references, self._rng)
            for _ in range(self._play.proposals_per_kind)
        ]

    async def _play_kind(self, kind: str) -> None:
        rng = random.Random(f"{self._config.run.seed}/{self._name}/{kind}")
        async with task_group() as solving:
            async with task_group() as proposing:
                for work in self._tasks_of_step(kind, solving, rng):
                    proposing.create_task(work)
            fresh = len(self._fresh[kind])
            missing = self._play.solves_per_kind - min(fresh, self._play.solves_per_kind)
            taken = {task.id for task in self._fresh[kind]}
            for task in self._buffer.problems(kind, missing, taken, rng):
                solving.create_task(self._solve(task))

    def _tasks_of_step(
        self, kind: str, solving: asyncio.TaskGroup, rng: random.Random
    ) -> list[Coroutine[None, None, object]]:
        """One coroutine per task that is estimated: proposed, or stored where nothing new is proposed."""
        if not self._play.new_tasks:
            return [self._sample(task) for task in self._buffer.problems(kind, self._play.proposals_per_kind, (), rng)]
        return [
            self._play_proposal(kind, number, references, solving)
            for number, references in enumerate(self._references(kind))
        ]

    async def _play_proposal(
        self, kind: str, number: int, references: Sequence[Task], solving: asyncio.TaskGroup
    ) -> None:
        proposed = await self._propose(kind, number, references)
        rate: float | None = None
        extra: dict[str, float] = {}
        if isinstance(proposed.outcome, Task):
            rate, proposed = await self._estimate(proposed.outcome, proposed)
        if isinstance(proposed.outcome, Task):
            extra = bonuses(
                proposed.outcome,
                proposed.references,
                lambda: self._buffer.tasks(kind),
                self._config.reward.intrinsic,
            )
            self._store(proposed.outcome, solving)
        self._pay(kind, number, proposed, rate, extra)

    async def _propose(self, kind: str, number: int, references: Sequence[Task]) -> Proposed:
        funnel = self._result.funnels[kind]
        id = self._id(kind, number)
        with self._phase("propose"):
            completion, shown = await self._proposer.propose(kind, references)
        self._count("propose", [completion])
        funnel.proposed += 1
        with self._phase("validate"):
            proposed = await self._proposer.validate(kind, completion, shown, id=id, step=self._step)
        if isinstance(proposed.outcome, Task):
            refused = self._buffer.reserve(proposed.outcome)
            proposed = proposed if refused is None else replace(proposed, outcome=refused)
        if isinstance(proposed.outcome, Refusal):
            funnel.refused[proposed.outcome] += 1
        return proposed

    async def _estimate(self, task: Task, proposed: Proposed) -> tuple[float | None, Proposed]:
        """Solve rate of a proposed task; without one, the proposal is lost."""
        rate = await self._sample(task)
        funnel = self._result.funnels[task.kind]
        if rate is None:
            self._buffer.release(task)
            funnel.refused[Refusal.LOST] += 1
            return None, replace(proposed, outcome=Refusal.LOST)
        funnel.solve_rates.append(rate)
        return rate, replace(proposed, outcome=replace(task, solve_rate=rate))

    async def _sample(self, task: Task) -> float | None:
        """Solve rate of a task, from samples of the current policy at the rollout temperature."""
        with self._phase("estimate"):
            completions = await self._solver.solve(task, self._play.estimate_samples)
        self._count("estimate", completions)
        with self._phase("verify"):
            attempts = await self._solver.verify(task, completions)
        judged = graded(attempts)
        self._result.ungraded += len(attempts) - len(judged)
        if self._play.train_on_estimates:
            group = f"estimate:{task.id}"
            self._result.trajectories += [solver_trajectory(a, group, self._config.reward) for a in judged]
        return solve_rate(attempts)

    def _store(self, task: Task, solving: asyncio.TaskGroup) -> None:
        assert task.solve_rate is not None
        if not passes(self._play.task_filter, task.solve_rate):
            self._buffer.release(task)
            return
        self._buffer.add(task)
        self._result.stored.append(task)
        fresh = self._fresh[task.kind]
        if len(fresh) < self._play.solves_per_kind:
            solving.create_task(self._solve(task))
        fresh.append(task)

    def _pay(self, kind: str, number: int, proposed: Proposed, rate: float | None, extra: dict[str, float]) -> None:
        if proposed.outcome is Refusal.LOST:
            self._result.ungraded += 1
        elif self._play.train_proposer and proposed.outcome is not Refusal.IN_EXAM:
            self._result.trajectories.append(
                proposer_trajectory(kind, self._id(kind, number), proposed, rate, extra, self._config.reward)
            )

    async def _solve(self, task: Task) -> None:
        with self._phase("solve"):
            completions = await self._solver.solve(task, 1)
        self._count("solve", completions)
        with self._phase("verify"):
            attempts = await self._solver.verify(task, completions)
        judged = graded(attempts)
        self._result.ungraded += len(attempts) - len(judged)
        self._result.trajectories += [
            solver_trajectory(attempt, f"solve:{self._name}:{task.id}", self._config.reward) for attempt in judged
        ]

    async def _seed_one(self, kind: str, number: int, references: Sequence[Task]) -> None:
        proposed = await self._propose(kind, number, references)
        if isinstance(proposed.outcome, Task):
            self._buffer.add(proposed.outcome)
            self._result.stored.append(proposed.outcome)

    def _count(self, phase: str, completions: Sequence[Completion]) -> None:
        self._result.sampled_tokens[phase] += sum(len(completion.response_ids) for completion in completions)

    def _id(self, kind: str, number: int) -> str:
        return f"{self._name}-{kind}-{number:04d}"
