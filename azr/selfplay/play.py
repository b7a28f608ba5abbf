"""One step of self-play: propose, validate, estimate, reward and solve, all overlapping (diagram: `azr.experiment`).

Every coroutine returns what it brought. Only `SelfPlayStep.play` and `seed` change the buffer: once all proposals of a
kind are in, in the order of their indices. So who finishes first decides only which of two equal proposals is the
duplicate, and in a deterministic run not even that: fingerprints are then reserved in the order of indices.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from azr.concurrency import Phase, gather, task_group
from azr.config import Config
from azr.records import Completion, Role, Task, Trajectory
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.form import FormCount
from azr.selfplay.ordering import OrderedGate, sort_trajectories, stable_seed
from azr.selfplay.rewards.pay import intrinsic_bonuses, proposer_trajectory, solver_trajectory, with_length_penalty
from azr.selfplay.roles import Proposer, Shown, Solver
from azr.tasks.base import RejectReason, Verdict
from azr.tasks.composites import GivenFunctions, give_functions, schedule
from azr.tasks.registry import KINDS, derived_tasks

_NOT_TRAINED_ON = (RejectReason.LOST, RejectReason.IN_BENCHMARK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Graded answers to one prompt."""

    phase: str
    """``estimate`` or ``solve``."""
    solve_rate: float | None
    """Share of right answers among the graded ones; None when the executor graded none."""
    trajectories: list[Trajectory]
    """What is trained on."""
    num_tokens: int
    """Of all responses."""
    num_ungraded: int
    """Answers that the executor lost."""
    form: FormCount
    """Of all answers, those that are not trained on included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """What became of one proposal."""

    outcome: Task | RejectReason
    """A task has its solve rate, unless it is a seed."""
    num_tokens: int
    """Of the response."""
    trajectory: Trajectory | None
    """None when the proposal is not trained on."""
    estimate: Answers | None
    """None when there was nothing to estimate."""
    form: FormCount
    """Of the one response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalStats:
    """How far the proposals of one kind got in one step."""

    proposed: int
    rejected: Counter[RejectReason]
    solve_rates: list[float]
    """One per proposal that became a task, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step of self-play brought."""

    trajectories: list[Trajectory]
    proposal_stats: dict[str, ProposalStats]
    """By kind."""
    stored: list[Task]
    """Tasks that entered the buffer."""
    sampled_tokens: Counter[str]
    """Response tokens by phase."""
    ungraded: int
    """Proposals and solutions that the executor lost; they are not trained on."""
    forms: dict[Role, FormCount]
    """Of everything that was sampled."""


@dataclass(slots=True)
class SelfPlayStep:
    """One step. Every proposal is a coroutine of its own, so nothing waits for the slowest of a phase."""

    config: Config
    step: int
    name: str
    """Begins the ids of the step's tasks and seeds its draws."""
    buffer: TaskBuffer
    proposer: Proposer
    solver: Solver
    phase: Phase
    _gates: dict[str, OrderedGate] = field(init=False)
    _reserved: dict[str, set[str]] = field(init=False)
    """Fingerprints that this step's proposals of a kind hold; tasks that are not stored give them back with its end."""

    def __post_init__(self) -> None:
        self._gates = {kind: OrderedGate(self.config.run.deterministic) for kind in self.config.selfplay.kinds}
        self._reserved = {kind: set() for kind in self.config.selfplay.kinds}

    async def play(self) -> StepResult:
        """Proposals and solutions of every kind, graded. Solvers get this step's tasks first."""
        if self.config.ablation.new_tasks:
            drawn = self._draw_shown(self.config.selfplay.kinds)
            playing = {kind: self._play_kind(kind, shown) for kind, shown in drawn.items()}
        else:
            playing = {kind: self._play_stored(kind) for kind in self.config.selfplay.kinds}
        played = dict(zip(playing, await gather(*playing.values()), strict=True))
        proposed = {kind: of_kind for kind, (of_kind, _) in played.items()}
        return _step_result(proposed, [each for _, answers in played.values() for each in answers])

    async def _play_kind(self, kind: str, drawn: Sequence[Shown]) -> tuple[list[Proposed], list[Answers]]:
        num_solved = self.config.selfplay.solver_prompts
        async with task_group() as group:
            proposals = [group.create_task(self.propose_one(kind, i, shown)) for i, shown in enumerate(drawn)]
            following = [group.create_task(self._follow(proposal, i)) for i, proposal in enumerate(proposals)]
            proposed = [await proposal for proposal in proposals]
            accepted = self._store(proposed)
            num_followed = sum(isinstance(each.outcome, Task) for each in proposed[:num_solved])
            late = [self.solve_one(task, "new") for task in accepted[num_followed:num_solved]]
            num_stored, new_ids = max(0, num_solved - len(accepted)), {task.id for task in accepted}
            stored = self.buffer.sample_tasks(kind, num_stored, new_ids, self._rng(kind))
            late += [self.solve_one(task, i) for i, task in enumerate(stored)]
            solving = [group.create_task(work) for work in late]
        return proposed, [each for done in following for each in done.result()] + [done.result() for done in solving]

    async def propose_one(self, kind: str, index: int, wanted: Shown, *, estimate: bool = True) -> Proposed:
        """Sample, validate, reserve, estimate, reward."""
        id = f"{self.name}-{kind}-{index:04d}"
        with self.phase("propose"):
            completion, shown = await self.proposer.propose(kind, wanted, self._seed("propose", kind, index))
        with self.phase("validate"):
            validated = await self.proposer.validate(kind, completion, shown, id=id, step=self.step)
        async with self._gates[kind].turn(index):
            reserved = self._reserve(validated)
        answers = await self.estimate(reserved, index) if estimate and isinstance(reserved, Task) else None
        outcome = _with_solve_rate(reserved, answers)
        return Proposed(
            outcome=outcome,
            num_tokens=len(completion.response_ids),
            trajectory=self._reward(kind, id, completion, outcome, shown.references),
            estimate=answers,
            form=FormCount.of([completion], [validated is RejectReason.MALFORMED]),
        )

    async def _follow(self, proposal: asyncio.Task[Proposed], index: int) -> list[Answers]:
        """What waits for one proposal only: its derived tasks, and a solver where its index is among the first."""
        task = (await proposal).outcome
        if isinstance(task, RejectReason):
            return []
        # Among the first to be solved, whatever becomes of the other proposals.
        solving = [self.solve_one(task, "new")] if index < self.config.selfplay.solver_prompts else []
        return await gather(*solving, *(self.estimate(derived, index) for derived in self._derive(task, index)))

    async def estimate(self, task: Task, index: int) -> Answers:
        """A group of answers of the current policy at the rollout temperature, for its share of right ones."""
        answers = await self._answer("estimate", task, self.config.selfplay.group_size, index, f"estimate:{task.id}")
        return answers if self.config.selfplay.train_on_estimates else replace(answers, trajectories=[])

    async def solve_one(self, task: Task, salt: int | str) -> Answers:
        """One answer to train on; ``salt`` tells apart the draws of a task that is drawn more than once."""
        return await self._answer("solve", task, 1, salt, f"solve:{self.name}:{task.id}")

    async def _answer(self, phase: str, task: Task, count: int, salt: int | str, group: str) -> Answers:
        with self.phase(phase):
            completions = await self.solver.solve(task, count, self._seed(phase, task.id, salt))
        with self.phase("verify"):
            verdicts = await self.solver.verify(task, completions)
        graded = [pair for pair in zip(completions, verdicts, strict=True) if pair[1] is not Verdict.UNGRADED]
        right = sum(verdict is Verdict.RIGHT for _, verdict in graded)
        return Answers(
            phase=phase,
            solve_rate=right / len(graded) if graded else None,
            trajectories=[self._paid(solver_trajectory(task, group, *pair, self.config.reward)) for pair in graded],
            num_tokens=sum(len(completion.response_ids) for completion in completions),
            num_ungraded=len(completions) - len(graded),
            form=FormCount.of(completions, [verdict is Verdict.MALFORMED for verdict in verdicts]),
        )

    def _reserve(self, outcome: Task | RejectReason) -> Task | RejectReason:
        """Claims the fingerprint of a task, so that of two equal proposals in flight one is a duplicate."""
        if isinstance(outcome, RejectReason):
            return outcome
        reason = self.buffer.reject_reason(outcome)
        if reason is not None:
            return reason
        if outcome.fingerprint in self._reserved[outcome.kind]:
            return RejectReason.DUPLICATE
        self._reserved[outcome.kind].add(outcome.fingerprint)
        return outcome

    def _reward(
        self, kind: str, id: str, completion: Completion, outcome: Task | RejectReason, shown: Sequence[Task]
    ) -> Trajectory | None:
        """What the proposal teaches, if anything."""
        is_seed = isinstance(outcome, Task) and outcome.solve_rate is None
        if is_seed or outcome in _NOT_TRAINED_ON or not self.config.ablation.train_proposer:
            return None
        config, bonuses = self.config.reward, {}
        if isinstance(outcome, Task):
            bonuses = intrinsic_bonuses(outcome, shown, lambda: self.buffer.tasks(kind), config.intrinsic)
        return self._paid(proposer_trajectory(kind, id, completion, outcome, bonuses, config))

    def _paid(self, trajectory: Trajectory) -> Trajectory:
        """With what its length costs."""
        return with_length_penalty(trajectory, self.config.reward, self.config.rollout.max_response_tokens)

    def _derive(self, task: Task, index: int) -> list[Task]:
        """Tasks that a task makes for free, as far as they fit into a prompt."""
        rng, selfplay = random.Random(self._seed("cross", task.kind, index)), self.config.selfplay
        derived = derived_tasks(task, selfplay.kinds, selfplay.derived_tasks, rng)
        return [each for each in derived if self.solver.fits_prompt(each)]

    async def seed(self, kinds: Sequence[str]) -> StepResult:
        """Proposals of these kinds only, and none is estimated: how the buffer first fills."""
        proposing = {
            kind: gather(*(self.propose_one(kind, i, shown, estimate=False) for i, shown in enumerate(drawn)))
            for kind, drawn in self._draw_shown(kinds).items()
        }
        proposed = dict(zip(proposing, await gather(*proposing.values()), strict=True))
        for of_kind in proposed.values():
            self._store(of_kind)
        return _step_result(proposed, [])

    async def _play_stored(self, kind: str) -> tuple[list[Proposed], list[Answers]]:
        """The ablation without new tasks: samples as many stored tasks as would be proposed, as if for an estimate."""
        rng, selfplay = self._rng(kind), self.config.selfplay
        sampled = self.buffer.sample_tasks(kind, selfplay.proposer_prompts, (), rng)
        solved = self.buffer.sample_tasks(kind, selfplay.solver_prompts, (), rng)
        return [], await gather(
            *(self.estimate(task, i) for i, task in enumerate(sampled)),
            *(self.estimate(derived, i) for i, task in enumerate(sampled) for derived in self._derive(task, i)),
            *(self.solve_one(task, i) for i, task in enumerate(solved)),
        )

    def _store(self, proposed: Sequence[Proposed]) -> list[Task]:
        """Puts the accepted tasks of a kind into the buffer, in the order of the proposals, and returns them."""
        accepted = _accepted(proposed)
        for task in accepted:
            self.buffer.add(task)
        return accepted

    def _draw_shown(self, kinds: Sequence[str]) -> dict[str, list[Shown]]:
        """What every proposal's prompt shows, drawn before any of them can change the buffer."""
        rng, selfplay = random.Random(f"{self.config.run.seed}/{self.name}"), self.config.selfplay
        references = {
            kind: [self.buffer.references(kind, selfplay.references, rng) for _ in range(selfplay.proposer_prompts)]
            for kind in kinds
        }
        return {
            kind: [Shown(tuple(tasks), self._draw_functions(kind, i)) for i, tasks in enumerate(of_kind)]
            for kind, of_kind in references.items()
        }

    def _draw_functions(self, kind: str, index: int) -> GivenFunctions | None:
        """Functions for a proposal to call, where the dice say that it gets some and stored programs serve."""
        chance, most = schedule(self.config.selfplay.composites, self.step)
        if not chance or not KINDS[kind].proposes_programs:
            return None
        rng = random.Random(self._seed("composite", kind, index))
        if rng.random() >= chance:
            return None
        count, tasks = rng.randint(1, most), self.buffer.tasks(kind)
        return give_functions((tasks[i] for i in rng.sample(range(len(tasks)), len(tasks))), count)

    def _rng(self, kind: str) -> random.Random:
        return random.Random(f"{self.config.run.seed}/{self.name}/{kind}")

    def _seed(self, *names: object) -> int:
        return stable_seed(self.config.run.seed, self.name, *names)


def _accepted(proposed: Sequence[Proposed]) -> list[Task]:
    return [each.outcome for each in proposed if isinstance(each.outcome, Task)]


def _with_solve_rate(outcome: Task | RejectReason, estimate: Answers | None) -> Task | RejectReason:
    """A task as it was estimated; without any graded answer, it is lost."""
    if estimate is None or isinstance(outcome, RejectReason):
        return outcome
    return RejectReason.LOST if estimate.solve_rate is None else replace(outcome, solve_rate=estimate.solve_rate)


def _step_result(proposed: dict[str, list[Proposed]], answers: Sequence[Answers]) -> StepResult:
    """Everything together, sorted where the order in which things finished would show."""
    proposals = [each for kind in sorted(proposed) for each in proposed[kind]]
    all_answers = [*answers, *(each.estimate for each in proposals if each.estimate is not None)]
    trajectories = [each.trajectory for each in proposals if each.trajectory is not None]
    trajectories += [trajectory for each in all_answers for trajectory in each.trajectories]
    tokens = Counter(propose=sum(each.num_tokens for each in proposals))
    for each in all_answers:
        tokens[each.phase] += each.num_tokens
    num_lost = sum(each.outcome is RejectReason.LOST for each in proposals)
    return StepResult(
        trajectories=sort_trajectories(trajectories),
        proposal_stats={kind: _proposal_stats(of_kind) for kind, of_kind in proposed.items()},
        stored=_accepted(proposals),
        sampled_tokens=tokens,
        ungraded=num_lost + sum(each.num_ungraded for each in all_answers),
        forms={
            Role.PROPOSER: sum((each.form for each in proposals), FormCount()),
            Role.SOLVER: sum((each.form for each in all_answers), FormCount()),
        },
    )


def _proposal_stats(proposed: Sequence[Proposed]) -> ProposalStats:
    return ProposalStats(
        proposed=len(proposed),
        rejected=Counter(each.outcome for each in proposed if isinstance(each.outcome, RejectReason)),
        solve_rates=sorted(task.solve_rate for task in _accepted(proposed) if task.solve_rate is not None),
    )
