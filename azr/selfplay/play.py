"""One step of self-play: propose, validate, estimate, reward and solve, all overlapping (diagram: `azr.experiment`).

Every coroutine returns what it brought. Only `SelfPlayStep.play` and `seed` change the buffer: once all proposals of a
kind are in, in the order of their indices. So who finishes first decides only which of two equal proposals is the
duplicate, and in a deterministic run not even that: fingerprints are then reserved in the order of indices.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from azr.concurrency import Phase, gather, stable_seed
from azr.config import Config
from azr.records import Completion, Judgement, Role, Sample, Task
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.form import FormCount
from azr.selfplay.in_flight import Begins, Leftover, Origin
from azr.selfplay.ordering import OrderedGate, sort_trajectories
from azr.selfplay.pieces import Answers, Begun, Carried, Proposed, ended_with_errors
from azr.selfplay.rewards.pay import (
    answer_trajectory,
    intrinsic_bonuses,
    own_pay,
    proposer_trajectory,
    unrewarded,
    with_length_penalty,
)
from azr.selfplay.roles import Proposer, Shown, Solver
from azr.tasks.base import RejectReason, Verdict
from azr.tasks.composites import GivenFunctions, give_functions, schedule
from azr.tasks.registry import KINDS, derived_tasks

PARTIAL_SHARE = 0.9
"""Of a step's rollouts, what it waits for with ``rollout.partial``."""
_NOT_TRAINED_ON = (RejectReason.LOST, RejectReason.IN_BENCHMARK)


LOST_PROPOSAL = Proposed(
    outcome=RejectReason.LOST, num_tokens=0, trajectory=None, untrained=None, estimate=None, form=FormCount()
)
"""One whose response took too long."""


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

    trajectories: list[Sample]
    proposal_stats: dict[str, ProposalStats]
    """By kind."""
    stored: list[Task]
    """Tasks that entered the buffer."""
    sampled_tokens: Counter[str]
    """Response tokens by phase."""
    ungraded: int
    """Proposals and solutions that the executor lost, or that took an engine too long; they are not trained on."""
    forms: dict[Role, FormCount]
    """Of everything that was sampled."""
    carried: Sequence[Carried] = ()
    """What goes on in the next step, with ``rollout.partial``."""
    data: Mapping[str, int] = field(default_factory=dict)
    """Counts of what rows of a file gave."""
    untrained: Sequence[Sample] = ()
    """Responses that are only recorded: without a grade, of an estimate that only estimates, or too old."""


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
    _reserved: dict[str, dict[str, str]] = field(init=False)
    """Fingerprints that this step's proposals of a kind hold, with their ids; tasks that are not stored give them back
    with its end."""

    def __post_init__(self) -> None:
        self._gates = {kind: OrderedGate(self.config.run.deterministic) for kind in self.config.selfplay.kinds}
        self._reserved = {kind: {} for kind in self.config.selfplay.kinds}

    async def play(self, carried: Sequence[Carried] = (), *, is_last: bool = True) -> StepResult:
        """Proposals and solutions of every kind, graded. Solvers get this step's tasks first.

        ``carried``: what the step before left over; it belongs to this one. With ``rollout.partial``, a step that is
        not the last leaves over in its turn what takes longest.
        """
        kinds = self.config.selfplay.kinds
        begun = {kind: Begun([each for each in carried if each.origin.kind == kind]) for kind in kinds}
        share = PARTIAL_SHARE if self.config.rollout.partial and not is_last else 1.0
        async with ended_with_errors(begun.values()):
            if self.config.ablation.new_tasks:
                drawn = self._draw_shown(kinds)
                await gather(*(self._play_kind(kind, shown, begun[kind], share) for kind, shown in drawn.items()))
            else:
                await gather(*(self._play_stored(kind, begun[kind], share) for kind in kinds))
        for of_kind in begun.values():
            self._store(of_kind)  # those that came while other kinds were played
        return _step_result(begun)

    async def _play_kind(self, kind: str, drawn: Sequence[Shown], begun: Begun, share: float) -> None:
        num_solved = self.config.selfplay.solver_prompts
        proposals = [
            begun.start(self.propose_one(kind, i, shown), self._origin(kind, "propose", index=i, shown=shown))
            for i, shown in enumerate(drawn)
        ]
        for i, proposal in enumerate(proposals):
            begun.start(self._follow(proposal, i), self._origin(kind, "follow", index=i), after=proposal)
        again = self.buffer.sample_learnable(kind, self.config.selfplay.repeated_tasks, self._rng(f"{kind}/again"))
        for i, task in enumerate(again):
            self._start_estimate(begun, task, i, kind)
        stored = StoredSolves(self, kind, begun)
        if not self.config.run.deterministic:
            stored.begin_with_refusals(proposals)
        await begun.until(share, proposals)
        self._store(begun)
        outcomes = [proposal.result().outcome if proposal.done() else None for proposal in proposals]
        accepted = [task for task in outcomes if isinstance(task, Task)]
        num_followed = sum(isinstance(outcome, Task) for outcome in outcomes[:num_solved])
        for task in accepted[num_followed:num_solved]:
            self._start_solve(begun, task, "new")
        stored.start(max(0, num_solved - len(accepted)), {task.id for task in begun.stored})
        await begun.enough(share)

    async def propose_one(self, kind: str, index: int, wanted: Shown, *, estimate: bool = True) -> Proposed:
        """Sample, validate, reserve, estimate, reward."""
        id = f"{self.name}-{kind}-{index:04d}"
        with self.phase("propose"):
            completion, shown = await self.proposer.propose(kind, wanted, self._seed("propose", kind, index))
        if completion is None:
            async with self._gates[kind].turn(index):
                return LOST_PROPOSAL
        with self.phase("validate"):
            validated, judgement = await self.proposer.judge(kind, completion, shown, id=id, step=self.step)
        async with self._gates[kind].turn(index):
            reserved, twin = self._reserve(validated)
        answers = await self.estimate(reserved, index) if estimate and isinstance(reserved, Task) else None
        outcome = _with_solve_rate(reserved, answers)
        judgement = _judged_late(judgement, validated, outcome, twin)
        trajectory = None
        if estimate:
            trajectory = await self._reward(kind, id, completion, outcome, shown.references, judgement)
        is_trained = trajectory is not None
        return Proposed(
            outcome=outcome,
            num_tokens=len(completion.response_ids),
            trajectory=trajectory,
            untrained=None
            if is_trained
            else unrewarded(Role.PROPOSER, kind, id, f"propose:{id}", completion, judgement),
            estimate=answers,
            form=FormCount.of([completion], [validated is RejectReason.MALFORMED]),
        )

    async def _follow(self, proposal: asyncio.Task[Proposed], index: int) -> list[Answers]:
        """What waits for one proposal only: its derived tasks, and a solver where its index is among the first."""
        task = (await proposal).outcome
        return await self._follow_task(task, index) if isinstance(task, Task) else []

    async def _follow_task(self, task: Task, index: int) -> list[Answers]:
        derived = await self._derive(task, index)
        # Among the first to be solved, whatever becomes of the other proposals.
        solving = [self.solve_one(task, "new")] if index < self.config.selfplay.solver_prompts else []
        return await gather(*solving, *(self.estimate(each, index) for each in derived))

    def begin_again(self, leftovers: Sequence[Leftover]) -> list[Carried]:
        """What another process has left over of this step, with the answers that it had."""
        # It began in no order that could be kept.
        self._gates = {kind: OrderedGate(False) for kind in self._gates}
        begun, proposals = Begun(), dict[tuple[str, int], asyncio.Task[Proposed]]()
        for each in leftovers:
            origin, answered = each.origin, each.answered
            of_proposal = (origin.kind, origin.index)
            match origin:
                case Origin(begins="propose", shown=Shown() as shown):
                    work = self.propose_one(*of_proposal, shown)
                    proposals[of_proposal] = begun.start(work, origin, answered=answered)
                case Origin(begins="follow", task=None):
                    proposal = proposals[of_proposal]
                    begun.start(self._follow(proposal, origin.index), origin, answered=answered, after=proposal)
                case Origin(begins="follow", task=Task() as task):
                    begun.start(self._follow_task(task, origin.index), origin, answered=answered)
                case Origin(begins="estimate", task=Task() as task):
                    begun.start(_listed(self.estimate(task, origin.index)), origin, answered=answered)
                case Origin(begins="solve", task=Task() as task):
                    begun.start(_listed(self.solve_one(task, origin.salt)), origin, answered=answered)
                case _:
                    raise AssertionError(f"no piece of work begins like {origin}")
        return begun.left_over

    def _start_solve(self, begun: Begun, task: Task, salt: int | str) -> None:
        begun.start(_listed(self.solve_one(task, salt)), self._origin(task.kind, "solve", task=task, salt=salt))

    def _start_estimate(self, begun: Begun, task: Task, index: int, kind: str) -> None:
        begun.start(_listed(self.estimate(task, index)), self._origin(kind, "estimate", task=task, index=index))

    def _origin(self, kind: str, begins: Begins, **how: Any) -> Origin:
        return Origin(step=self.step, name=self.name, kind=kind, begins=begins, **how)

    async def estimate(self, task: Task, index: int) -> Answers:
        """A group of answers of the current policy at the rollout temperature, for its share of right ones."""
        answers = await self._answer("estimate", task, self.config.selfplay.group_size, index)
        if self.config.selfplay.train_on_estimates:
            return answers
        return replace(answers, trajectories=[], untrained=answers.trajectories + answers.untrained)

    async def solve_one(self, task: Task, salt: int | str) -> Answers:
        """One answer to train on; ``salt`` tells apart the draws of a task that is drawn more than once."""
        return await self._answer("solve", task, 1, salt)

    async def _answer(self, phase: str, task: Task, count: int, salt: int | str) -> Answers:
        group = f"{phase}:{self.name}:{task.id}"  # of this step alone: what a later one asks of the task is its own
        with self.phase(phase):
            completions = await self.solver.solve(task, count, self._seed(phase, task.id, salt))
        with self.phase("verify"):
            judged = await self.solver.judge(task, completions)
        verdicts = [verdict for verdict, _ in judged]
        right = sum(verdict is Verdict.RIGHT for verdict in verdicts)
        graded, ungraded = list[Sample](), list[Sample]()
        for completion, (verdict, judgement) in zip(completions, judged, strict=True):
            if verdict is Verdict.UNGRADED:
                ungraded.append(unrewarded(Role.SOLVER, task.kind, task.id, group, completion, judgement))
            else:
                reward = self.config.reward
                paid = answer_trajectory(task.kind, task.id, group, completion, verdict, reward, judgement)
                graded.append(self._paid(paid))
        return Answers(
            phase=phase,
            solve_rate=right / len(graded) if graded else None,
            trajectories=graded,
            untrained=ungraded,
            num_tokens=sum(len(completion.response_ids) for completion in completions),
            num_ungraded=count - len(graded),
            form=FormCount.of(completions, [verdict is Verdict.MALFORMED for verdict in verdicts]),
        )

    def _reserve(self, outcome: Task | RejectReason) -> tuple[Task | RejectReason, str]:
        """Claims the fingerprint of a task, so that of two equal proposals in flight one is a duplicate.

        Also says what a task equals that is rejected.
        """
        if isinstance(outcome, RejectReason):
            return outcome, ""
        if (reason := self.buffer.reject_reason(outcome)) is not None:
            return reason, self.buffer.twin(outcome)
        reserved = self._reserved[outcome.kind]
        if outcome.fingerprint in reserved:
            return RejectReason.DUPLICATE, reserved[outcome.fingerprint]
        reserved[outcome.fingerprint] = outcome.id
        return outcome, ""

    async def _reward(
        self,
        kind: str,
        id: str,
        completion: Completion,
        outcome: Task | RejectReason,
        shown: Sequence[Task],
        judgement: Judgement,
    ) -> Sample | None:
        """What the proposal teaches, if anything."""
        if outcome in _NOT_TRAINED_ON or not self.config.ablation.train_proposer:
            return None
        config, bonuses, base = self.config.reward, {}, None
        if isinstance(outcome, Task):
            known = partial(self.buffer.tasks, kind)
            own = await own_pay(outcome, shown, known, config)
            if own is None:
                return None
            base, bonuses = own.base, intrinsic_bonuses(outcome, shown, known, config.intrinsic) | own.bonuses
        return self._paid(proposer_trajectory(kind, id, completion, outcome, bonuses, config, judgement, base))

    def _paid(self, trajectory: Sample) -> Sample:
        """With what its length costs."""
        return with_length_penalty(trajectory, self.config.reward, self.config.rollout.max_response_tokens)

    async def _derive(self, task: Task, index: int) -> list[Task]:
        """Tasks that a task makes for free, as far as they fit into a prompt."""
        rng, selfplay = random.Random(self._seed("cross", task.kind, index)), self.config.selfplay
        derived = await derived_tasks(task, selfplay.kinds, selfplay.derived_tasks, rng)
        return [each for each in derived if self.solver.fits_prompt(each)]

    async def seed(self, kinds: Sequence[str]) -> StepResult:
        """Proposals of these kinds only, and none is estimated: how the buffer first fills."""
        drawn, begun = self._draw_shown(kinds), {kind: Begun() for kind in kinds}
        for kind, shown in drawn.items():
            for i, each in enumerate(shown):
                work = self.propose_one(kind, i, each, estimate=False)
                begun[kind].start(work, self._origin(kind, "propose", index=i, shown=each))
        async with ended_with_errors(begun.values()):
            await gather(*(of_kind.until(1.0) for of_kind in begun.values()))
        for of_kind in begun.values():
            self._store(of_kind)
        return _step_result(begun)

    async def _play_stored(self, kind: str, begun: Begun, share: float) -> None:
        """The ablation without new tasks: samples as many stored tasks as would be proposed, as if for an estimate."""
        rng, selfplay = self._rng(kind), self.config.selfplay
        sampled = self.buffer.sample_tasks(kind, selfplay.proposer_prompts, (), rng)
        solved = self.buffer.sample_tasks(kind, selfplay.solver_prompts, (), rng)
        for i, task in enumerate(sampled):
            self._start_estimate(begun, task, i, kind)
        for i, task in enumerate(sampled):
            for derived in await self._derive(task, i):
                self._start_estimate(begun, derived, i, kind)
        for i, task in enumerate(solved):
            self._start_solve(begun, task, i)
        await begun.enough(share)

    def _store(self, begun: Begun) -> list[Task]:
        """Puts the newly accepted tasks of a kind into the buffer, in the order of the proposals, and returns them."""
        accepted = [task for task in _accepted(begun.proposed) if task.id not in begun.seen]
        begun.seen.update(task.id for task in accepted)
        # What the step before has left over may have been proposed again meanwhile.
        stored = [task for task in accepted if self.buffer.reject_reason(task) is None]
        for task in stored:
            self.buffer.add(task)
        begun.stored += stored
        return stored

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


class StoredSolves:
    """Answers to stored tasks, which solvers get where a step's proposals became too few tasks."""

    def __init__(self, step: SelfPlayStep, kind: str, begun: Begun) -> None:
        self._step, self._kind, self._begun = step, kind, begun
        self._rng, self._wanted = step._rng(kind), step.config.selfplay.solver_prompts
        self._drawn: list[Task] = []
        """Tasks in the order in which they are taken; none when they are drawn at the end."""
        self._num_refused = self._num_started = 0
        self._all_in = False

    def begin_with_refusals(self, proposals: Sequence[asyncio.Task[Proposed]]) -> None:
        """Begins with an answer as soon as it is sure to be needed: every refused proposal is one task fewer.

        As many are begun in the end as without it. Which tasks they are does not depend on who is refused when.
        """
        stored = self._step.buffer.sizes()[self._kind]
        self._drawn = self._step.buffer.sample_tasks(self._kind, min(self._wanted, stored), (), self._rng)
        self._num_refused = -len(proposals)
        for proposal in proposals:
            proposal.add_done_callback(self._begin_one)
        self._begin_sure()

    def _begin_one(self, proposal: asyncio.Task[Proposed]) -> None:
        failed = proposal.cancelled() or proposal.exception() is not None
        if not failed and isinstance(proposal.result().outcome, RejectReason):
            self._num_refused += 1
            self._begin_sure()

    def _begin_sure(self) -> None:
        if self._drawn and not self._all_in and not self._begun.given_up:
            self._start_drawn(self._wanted + self._num_refused)

    def start(self, count: int, new_ids: Collection[str]) -> None:
        """Begins with the rest of `count` answers, now that all proposals are in; new tasks are no stored ones."""
        self._all_in = True
        if self._drawn:
            self._start_drawn(count)
            return
        for i, task in enumerate(self._step.buffer.sample_tasks(self._kind, count, new_ids, self._rng)):
            self._step._start_solve(self._begun, task, i)

    def _start_drawn(self, count: int) -> None:
        for i in range(self._num_started, count):
            task = self._drawn[i] if i < len(self._drawn) else self._rng.choice(self._drawn)
            self._step._start_solve(self._begun, task, i)
            self._num_started += 1


def _accepted(proposed: Sequence[Proposed]) -> list[Task]:
    return [each.outcome for each in proposed if isinstance(each.outcome, Task)]


def _with_solve_rate(outcome: Task | RejectReason, estimate: Answers | None) -> Task | RejectReason:
    """A task as it was estimated; without any graded answer, it is lost."""
    if estimate is None or isinstance(outcome, RejectReason):
        return outcome
    return RejectReason.LOST if estimate.solve_rate is None else replace(outcome, solve_rate=estimate.solve_rate)


def _judged_late(
    judgement: Judgement, validated: Task | RejectReason, outcome: Task | RejectReason, twin: str
) -> Judgement:
    """With what became of a valid proposal after it was validated; ``twin``: what it equals."""
    if outcome is validated or not isinstance(outcome, RejectReason):
        return judgement
    details = {
        RejectReason.DUPLICATE: f"duplicate of {twin}",
        RejectReason.IN_BENCHMARK: f"the program is that of {twin}, which is held out, or the same up to constants",
        RejectReason.LOST: "no attempt at it could be graded",
    }
    return replace(judgement, outcome=str(outcome), detail=details[outcome])


def together(results: Sequence[StepResult]) -> StepResult:
    """What parts of a step brought, of which no two played the same kind."""
    if len(results) == 1:
        return results[0]
    return StepResult(
        trajectories=sort_trajectories([each for result in results for each in result.trajectories]),
        proposal_stats={kind: stats for result in results for kind, stats in result.proposal_stats.items()},
        stored=[task for result in results for task in result.stored],
        sampled_tokens=sum((result.sampled_tokens for result in results), Counter()),
        ungraded=sum(result.ungraded for result in results),
        forms={
            role: sum((result.forms[role] for result in results if role in result.forms), FormCount()) for role in Role
        },
        carried=[piece for result in results for piece in result.carried],
        data={name: count for result in results for name, count in result.data.items()},
        untrained=sort_trajectories([each for result in results for each in result.untrained]),
    )


async def _listed(answers: Coroutine[Any, Any, Answers]) -> list[Answers]:
    return [await answers]


def _step_result(begun: Mapping[str, Begun]) -> StepResult:
    """Everything together, sorted where the order in which things finished would show."""
    proposals = [each for kind in sorted(begun) for each in begun[kind].proposed]
    all_answers = [each for of_kind in begun.values() for each in of_kind.answers]
    all_answers += [each.estimate for each in proposals if each.estimate is not None]
    trajectories = [each.trajectory for each in proposals if each.trajectory is not None]
    trajectories += [trajectory for each in all_answers for trajectory in each.trajectories]
    untrained = [each.untrained for each in proposals if each.untrained is not None]
    untrained += [trajectory for each in all_answers for trajectory in each.untrained]
    tokens = Counter(propose=sum(each.num_tokens for each in proposals))
    for each in all_answers:
        tokens[each.phase] += each.num_tokens
    num_lost = sum(each.outcome is RejectReason.LOST for each in proposals)
    return StepResult(
        trajectories=sort_trajectories(trajectories),
        proposal_stats={kind: _proposal_stats(of_kind.proposed) for kind, of_kind in begun.items()},
        stored=[task for kind in sorted(begun) for task in begun[kind].stored],
        sampled_tokens=tokens,
        ungraded=num_lost + sum(each.num_ungraded for each in all_answers),
        forms={
            Role.PROPOSER: sum((each.form for each in proposals), FormCount()),
            Role.SOLVER: sum((each.form for each in all_answers), FormCount()),
        },
        carried=[piece for of_kind in begun.values() for piece in of_kind.left_over],
        untrained=sort_trajectories(untrained),
    )


def _proposal_stats(proposed: Sequence[Proposed]) -> ProposalStats:
    return ProposalStats(
        proposed=len(proposed),
        rejected=Counter(each.outcome for each in proposed if isinstance(each.outcome, RejectReason)),
        solve_rates=sorted(task.solve_rate for task in _accepted(proposed) if task.solve_rate is not None),
    )
