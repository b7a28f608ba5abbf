"""One round of self-play: propose, validate, estimate, solve and grade, all overlapping.

The buffer changes only when all proposals of a kind are through, in the order of their numbers, and results are sorted.
So who finishes first decides but one thing: which of two equal proposals is the duplicate. In a deterministic run
proposals claim their fingerprints in the order of their numbers as well.
"""

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
from azr.selfplay.derived_tasks import derived_tasks
from azr.selfplay.grading import ProposalStats, graded, proposer_trajectory, solver_trajectory
from azr.selfplay.intrinsic import bonuses
from azr.selfplay.ordering import OrderedGate, sort_trajectories, stable_seed
from azr.selfplay.players import Proposed, Proposer, Solver, solve_rate
from azr.tasks.base import RejectReason


@dataclass(slots=True)
class RoundResult:
    """What one round of self-play brought."""

    trajectories: list[Trajectory] = field(default_factory=list)
    funnels: dict[str, ProposalStats] = field(default_factory=dict)
    stored: list[Task] = field(default_factory=list)
    """Tasks that entered the buffer."""
    sampled_tokens: Counter[str] = field(default_factory=Counter)
    """Response tokens by phase."""
    ungraded: int = 0
    """Proposals and solutions that the executor lost; they are not trained on."""


@dataclass(slots=True)
class _Accepted:
    """Proposals of one kind that became tasks."""

    turns: OrderedGate
    """To claim a fingerprint."""
    kept: dict[int, Task] = field(default_factory=dict)
    """Tasks for the buffer, by number of their proposal."""
    dropped: list[Task] = field(default_factory=list)
    """Tasks that give their fingerprints back: filtered out, or lost."""

    def first(self, count: int) -> dict[int, Task]:
        """The kept tasks of the lowest numbers."""
        return dict(sorted(self.kept.items())[:count])


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
        self._result = RoundResult(funnels={kind: ProposalStats() for kind in self._play.kinds})
        self._accepted = {kind: _Accepted(OrderedGate(config.run.deterministic)) for kind in self._play.kinds}

    async def play(self) -> RoundResult:
        """Proposals and solutions of every kind, graded. Solvers get this step's tasks first."""
        async with task_group() as group:
            for kind in self._play.kinds:
                group.create_task(self._play_kind(kind))
        return self._sorted()

    async def seed(self) -> RoundResult:
        """Proposals only: how the buffer first fills."""
        async with task_group() as group:
            for kind in self._play.kinds:
                for number, references in enumerate(self._references(kind)):
                    group.create_task(self._seed_one(kind, number, references))
        for kind in self._play.kinds:
            self._store(kind)
        return self._sorted()

    def _sorted(self) -> RoundResult:
        self._result.trajectories = sort_trajectories(self._result.trajectories)
        self._result.stored.sort(key=lambda task: task.kind)
        for funnel in self._result.funnels.values():
            funnel.solve_rates.sort()
        return self._result

    def _references(self, kind: str) -> list[list[Task]]:
        """References of every proposal of a kind, drawn before any of them can change the buffer."""
        return [
            self._buffer.references(kind, self._play.references, self._rng) for _ in range(self._play.proposer_prompts)
        ]

    async def _play_kind(self, kind: str) -> None:
        rng = random.Random(f"{self._config.run.seed}/{self._name}/{kind}")
        async with task_group() as solving:
            async with task_group() as proposing:
                for work in self._tasks_of_step(kind, solving, rng):
                    proposing.create_task(work)
            self._store(kind)
            wanted, accepted = self._play.solver_prompts, self._accepted[kind]
            fresh = accepted.first(wanted)
            for number, task in fresh.items():
                if not self._is_early(number):
                    solving.create_task(self._solve(task, "new"))
            taken = {task.id for task in accepted.kept.values()}
            for number, task in enumerate(self._buffer.sample_tasks(kind, wanted - len(fresh), taken, rng)):
                solving.create_task(self._solve(task, number))

    def _is_early(self, number: int) -> bool:
        """Whether a proposal of this number is among the first to be solved, whatever becomes of the others."""
        return number < self._play.solver_prompts

    def _store(self, kind: str) -> None:
        """All proposals of this kind are through: the buffer takes what is kept."""
        accepted = self._accepted[kind]
        for task in accepted.dropped:
            self._buffer.release(task)
        for task in accepted.first(len(accepted.kept)).values():
            self._buffer.add(task)
            self._result.stored.append(task)

    def _tasks_of_step(
        self, kind: str, solving: asyncio.TaskGroup, rng: random.Random
    ) -> list[Coroutine[None, None, object]]:
        """One coroutine per task that is estimated: proposed, or stored where nothing new is proposed."""
        if not self._config.ablation.new_tasks:
            known = self._buffer.sample_tasks(kind, self._play.proposer_prompts, (), rng)
            return [self._play_stored(task, number, solving) for number, task in enumerate(known)]
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
            rate, proposed = await self._estimate(number, proposed.outcome, proposed)
        if isinstance(proposed.outcome, Task):
            extra = bonuses(
                proposed.outcome,
                proposed.references,
                lambda: self._buffer.tasks(kind),
                self._config.reward.intrinsic,
            )
            self._keep(number, proposed.outcome, solving)
            self._cross(number, proposed.outcome, solving)
        self._pay(kind, number, proposed, rate, extra)

    async def _play_stored(self, task: Task, number: int, solving: asyncio.TaskGroup) -> None:
        await self._sample(task, number)
        self._cross(number, task, solving)

    async def _propose(self, kind: str, number: int, references: Sequence[Task]) -> Proposed:
        funnel = self._result.funnels[kind]
        id = self._id(kind, number)
        with self._phase("propose"):
            completion, shown = await self._proposer.propose(kind, references, self._seed("propose", kind, number))
        self._count("propose", [completion])
        funnel.proposed += 1
        with self._phase("validate"):
            proposed = await self._proposer.validate(kind, completion, shown, id=id, step=self._step)
        async with self._accepted[kind].turns.turn(number):
            rejected = self._buffer.reserve(proposed.outcome) if isinstance(proposed.outcome, Task) else None
        if rejected is not None:
            proposed = replace(proposed, outcome=rejected)
        if isinstance(proposed.outcome, RejectReason):
            funnel.rejected[proposed.outcome] += 1
        return proposed

    async def _estimate(self, number: int, task: Task, proposed: Proposed) -> tuple[float | None, Proposed]:
        """Solve rate of a proposed task; without one, the proposal is lost."""
        rate = await self._sample(task, number)
        funnel = self._result.funnels[task.kind]
        if rate is None:
            self._accepted[task.kind].dropped.append(task)
            funnel.rejected[RejectReason.LOST] += 1
            return None, replace(proposed, outcome=RejectReason.LOST)
        funnel.solve_rates.append(rate)
        return rate, replace(proposed, outcome=replace(task, solve_rate=rate))

    async def _sample(self, task: Task, number: int) -> float | None:
        """Solve rate of a task, from samples of the current policy at the rollout temperature."""
        with self._phase("estimate"):
            seed = self._seed("estimate", task.id, number)
            completions = await self._solver.solve(task, self._play.group_size, seed)
        self._count("estimate", completions)
        with self._phase("verify"):
            attempts = await self._solver.verify(task, completions)
        judged = graded(attempts)
        self._result.ungraded += len(attempts) - len(judged)
        if self._play.train_on_estimates:
            group = f"estimate:{task.id}"
            self._result.trajectories += [solver_trajectory(a, group, self._config.reward) for a in judged]
        return solve_rate(attempts)

    def _keep(self, number: int, task: Task, solving: asyncio.TaskGroup) -> None:
        assert task.solve_rate is not None
        self._accepted[task.kind].kept[number] = task
        if self._is_early(number):
            solving.create_task(self._solve(task, "new"))

    def _cross(self, number: int, task: Task, solving: asyncio.TaskGroup) -> None:
        rng = random.Random(self._seed("cross", task.kind, number))
        for derived in derived_tasks(task, self._play.kinds, self._play.derived_tasks, rng):
            if self._solver.fits_prompt(derived):
                solving.create_task(self._sample(derived, number))

    def _pay(self, kind: str, number: int, proposed: Proposed, rate: float | None, extra: dict[str, float]) -> None:
        if proposed.outcome is RejectReason.LOST:
            self._result.ungraded += 1
        elif self._config.ablation.train_proposer and proposed.outcome is not RejectReason.IN_BENCHMARK:
            self._result.trajectories.append(
                proposer_trajectory(kind, self._id(kind, number), proposed, rate, extra, self._config.reward)
            )

    async def _solve(self, task: Task, draw: int | str) -> None:
        """``draw`` tells apart the draws of a task that is drawn more than once."""
        with self._phase("solve"):
            completions = await self._solver.solve(task, 1, self._seed("solve", task.id, draw))
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
            self._accepted[kind].kept[number] = proposed.outcome

    def _seed(self, *request: object) -> int:
        return stable_seed(self._config.run.seed, self._name, *request)

    def _count(self, phase: str, completions: Sequence[Completion]) -> None:
        self._result.sampled_tokens[phase] += sum(len(completion.response_ids) for completion in completions)

    def _id(self, kind: str, number: int) -> str:
        return f"{self._name}-{kind}-{number:04d}"
