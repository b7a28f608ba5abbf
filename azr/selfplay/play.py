"""One step of self-play: propose, validate, estimate, reward and solve, all overlapping; docs/architecture.md draws it.

Read `SelfPlayStep.play`, `_play_kind` and `propose`. Tasks enter the buffer in the order of their proposals once these
are in, so the order in which coroutines finish decides only which of two equal proposals is the duplicate. In a
deterministic run it decides nothing: fingerprints are reserved in the order of indices.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from azr.answering import GIVEN_UP, answer, given_up, task_problem
from azr.concurrency import Phase, Work, stable_seed, task_group
from azr.config import Config
from azr.environments import Environment
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Judgement, Sample, Task
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.chaining import chain_tasks
from azr.selfplay.journal import Journal, WorkItem
from azr.selfplay.proposer import draw_references, validate
from azr.selfplay.rewards import can_teach, mark_unlearnable_group, reward_answer, reward_proposal
from azr.tasks.base import RejectReason, Run
from azr.tasks.registry import KINDS, derived_tasks

PARTIAL_SHARE = 0.9
"""Share of a step's work items that it waits for with ``rollout.partial``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Everything that one step brought."""

    samples: list[Sample]
    """Sorted; those to be trained on have ``used == "trained"``."""
    stored: list[Task] = field(default_factory=list)
    """Tasks that entered the buffer."""
    items: list[WorkItem] = field(default_factory=list, compare=False)
    """Finished work, which the journal forgets once the samples are recorded."""
    data: Mapping[str, int] = field(default_factory=dict)
    """Counts of rows of a file."""
    chains: dict[str, float] = field(default_factory=dict)
    """Numbers on chained tasks, see `azr.selfplay.chaining.chain_tasks`, as ``deduction/made``."""


@dataclass(slots=True)
class _KindStep:
    """Proposals of one kind in a step, and the stored tasks that solvers get in place of rejected ones."""

    rng: random.Random
    """Draws the stored tasks."""
    waiting: list[WorkItem] = field(default_factory=list)
    """In reserve: the first of them begins when one of this step has not become a learnable task."""
    accepted: dict[WorkItem, Task] = field(default_factory=dict)
    """Tasks that finished proposals became, not yet in the buffer."""
    ids: dict[str, str] = field(default_factory=dict)
    """Id of the task that has reserved a fingerprint: one that was proposed or chained in this step."""
    num_reserved: int = 0
    """Proposals past the reservation, in a deterministic run in the order of indices from 0 on."""
    stored: list[Task] = field(default_factory=list)
    """Stored tasks in the order in which solvers get them."""
    answers: list[asyncio.Task[list[Sample]]] = field(default_factory=list)
    """Answers to stored tasks that have begun, in that order; those that turn out to be too many are dropped."""
    needed: int = 0
    """Stored tasks that solvers need at least, as far as proposals have been rejected; may be negative."""


@dataclass(slots=True)
class SelfPlayStep:
    """One step. Every proposal is a coroutine, so nothing waits for the slowest of a phase."""

    config: Config
    step: int
    name: str
    """Prefix of task ids and of random seeds, e.g. ``000012``."""
    buffer: TaskBuffer
    codec: PromptCodec
    execute: Run
    journal: Journal
    phase: Phase
    tool: Callable[[], Environment] | None = None
    """Makes the environment of a solver's conversation with `selfplay.tools`."""
    _work: Work[WorkItem, list[Sample]] = field(init=False)
    _kinds: dict[str, _KindStep] = field(init=False)
    _result: StepResult = field(default_factory=lambda: StepResult(samples=[]))
    _reserved: asyncio.Condition = field(default_factory=asyncio.Condition)
    """Notified when a proposal has passed its reservation."""

    def __post_init__(self) -> None:
        self._kinds = {kind: _KindStep(self._rng(kind)) for kind in self.config.selfplay.kinds}

    async def play(self, *, is_last: bool = True) -> StepResult:
        """Return proposals and solutions of every kind, judged and rewarded. Solvers get this step's tasks first.

        What the last step left over is begun again and belongs to this one. With ``rollout.partial``, a step that is
        not the last leaves over what takes longest.
        """
        kinds, share = self.config.selfplay.kinds, 1.0
        if self.config.rollout.partial and not is_last:
            share = PARTIAL_SHARE
        proposals = self._draw_proposals(kinds, self.config.rollout.refill) if self.config.ablation.new_tasks else {}
        async with task_group() as group:
            self._work = Work(group, self._run)
            for item in self.journal.left_over.get(self.step - 1, ()):
                if item.begins == "chain" and item.task is not None:
                    self._kinds[item.kind].ids[item.task.fingerprint] = item.task.id
                self._work.start(item)
            # Before any proposal is validated, so that the same tasks are chained whatever finishes first.
            for kind in kinds if self.config.selfplay.chained_tasks else ():
                await self._chain(kind)
            async with task_group() as playing:
                for kind in kinds:
                    play = self._play_kind(kind, proposals[kind], share) if proposals else self._play_stored(kind)
                    playing.create_task(play)
            await self._work.wait_for_share(share, lambda item: True)
            # Nothing is carried over twice, or grows too old to be trained on.
            await self._work.wait_for_share(1.0, lambda item: item.step < self.step)
            self.journal.left_over[self.step] = await self._work.stop_unfinished()
        return self._finished()

    async def seed(self, kinds: Sequence[str]) -> StepResult:
        """Propose for these kinds, without estimates and solutions: how the buffer first fills."""
        async with task_group() as group:
            self._work = Work(group, self._run)
            for item in itertools.chain(*self._draw_proposals(kinds).values()):
                self._work.start(item)
        return self._finished()

    async def _chain(self, kind: str) -> None:
        """Chain stored tasks, and begin to estimate their solve rates."""
        if not KINDS[kind].can_be_chained:
            return
        with self.phase("validate"):
            tasks, numbers = await chain_tasks(
                kind,
                self.buffer,
                set(self._kinds[kind].ids),
                config=self.config,
                codec=self.codec,
                execute=self.execute,
                name=self.name,
                step=self.step,
            )
        self._result.chains.update((f"{kind}/{name}", value) for name, value in numbers.items())
        for index, task in enumerate(tasks):
            self._kinds[kind].ids[task.fingerprint] = task.id
            self._start(kind, "chain", task=task, index=index)

    async def _play_kind(self, kind: str, proposals: Sequence[WorkItem], share: float) -> None:
        selfplay, state = self.config.selfplay, self._kinds[kind]
        state.needed = selfplay.solver_prompts - len(proposals)
        state.waiting = list(proposals[selfplay.proposer_prompts :])
        for item in proposals[: selfplay.proposer_prompts]:
            self._work.start(item)
        again = self._rng(f"{kind}/again")
        repeated = self.buffer.repeated(kind, selfplay.repeated_tasks, selfplay.replay, self.step, again)
        for index, task in enumerate(repeated):
            self._start(kind, "estimate", task=task, index=index)
        if not self.config.run.deterministic:
            count = min(selfplay.solver_prompts, self.buffer.sizes()[kind])
            state.stored = self.buffer.sample_tasks(kind, count, (), state.rng)
            # At once with the proposals: what the last step needed, less three standard deviations at most.
            expected = self.journal.stored_solves.get(kind, 0)
            self._solve_stored(kind, max(state.needed, int(expected - 3 * math.sqrt(expected))))
        await self._work.wait_for_share(share, set(proposals).__contains__)

        begun = [item for item in state.accepted if item.begins == "propose" and item.name == self.name]
        accepted = {item.index: state.accepted[item] for item in sorted(begun, key=lambda it: it.index)}
        self._store(kind, "propose")
        num_followed = sum(index < selfplay.solver_prompts for index in accepted)
        for task in [*accepted.values()][num_followed : selfplay.solver_prompts]:
            self._start(kind, "solve", task=task, salt="new")
        missing = max(0, selfplay.solver_prompts - len(accepted))
        self.journal.stored_solves[kind] = missing
        if state.stored:
            self._solve_stored(kind, missing)
            for surplus in state.answers[missing:]:
                self.journal.drop(self._work.cancel(surplus))
        else:
            new_ids = {task.id for task in self._result.stored}
            for index, task in enumerate(self.buffer.sample_tasks(kind, missing, new_ids, state.rng)):
                self._start(kind, "solve", task=task, salt=index)

    async def _play_stored(self, kind: str) -> None:
        """Play the ablation without new tasks: estimate as many stored tasks as would be proposed."""
        rng, selfplay = self._kinds[kind].rng, self.config.selfplay
        sampled = self.buffer.sample_tasks(kind, selfplay.proposer_prompts, (), rng)
        solved = self.buffer.sample_tasks(kind, selfplay.solver_prompts, (), rng)
        for index, task in enumerate(sampled):
            self._start(kind, "estimate", task=task, index=index)
        for index, task in enumerate(sampled):
            for derived in self._derive(task, self.name, index):
                self._start(kind, "estimate", task=derived, index=index)
        for index, task in enumerate(solved):
            self._start(kind, "solve", task=task, salt=index)

    async def _run(self, item: WorkItem) -> list[Sample]:
        if item.begins == "propose":
            return await self.propose(item)
        assert item.task is not None
        if item.begins == "follow":
            return await self._follow(item, item.task)
        if item.begins == "chain":
            answers = await self._answer(item, item.task, "estimate", item.index)
            if (rate := _solve_rate(answers)) is not None:
                self._kinds[item.kind].accepted[item] = replace(item.task, solve_rate=rate)
            return answers
        return await self._answer(item, item.task, item.begins, item.index if item.begins == "estimate" else item.salt)

    async def propose(self, item: WorkItem) -> list[Sample]:
        """Sample a proposal, validate it, reserve its fingerprint, estimate its solve rate and reward it."""
        completion, references = await self._sample_proposal(item)
        outcome, judgement = await self._validate(item, completion, references)
        outcome, judgement = await self._reserve(item, outcome, judgement)
        estimates = list[Sample]()
        if isinstance(outcome, Task) and self.step:
            estimates = await self._answer(item, outcome, "estimate", item.index)
            if (rate := _solve_rate(estimates)) is not None:
                outcome = replace(outcome, solve_rate=rate)
            else:
                outcome, detail = RejectReason.LOST, "no attempt at it could be graded"
                judgement = replace(judgement, verdict=outcome, detail=detail, reason="attempts_ungraded")
        # Groups of one proposal have a baseline of their kind.
        first = item.index
        if self.config.selfplay.proposer_baseline == "prompt":
            first -= item.index % self.config.selfplay.proposals_per_prompt
        sample = Sample(
            completion=completion,
            role="proposer",
            kind=item.kind,
            problem_id=_proposal_id(item),
            group=f"propose:{item.name}-{item.kind}-{first:04d}",
            judgement=judgement,
            solve_rate=outcome.solve_rate if isinstance(outcome, Task) else None,
            used="ungraded" if outcome is RejectReason.LOST else "recorded",
        )
        if outcome is not RejectReason.LOST and self.step and self.config.ablation.train_proposer:
            known = lambda: self.buffer.tasks(item.kind)  # noqa: E731
            seen = self.buffer.times_seen(outcome) if isinstance(outcome, Task) else 0
            reward_proposal(sample, outcome, references, known, seen, self.config.reward, self._max_tokens)
        self._proposal_ended(item, outcome)
        return [sample, *estimates]

    async def _sample_proposal(self, item: WorkItem) -> tuple[Completion, Sequence[Task]]:
        """Return the response to a proposer's prompt, and the references that fit into it."""
        kind, longest = KINDS[item.kind], self.config.rollout.max_prompt_tokens
        prompt, references = self.codec.proposer_prompt(kind, list(item.references), longest)
        seed = self._seed(item.name, "propose", item.kind, item.index)
        with self.phase("propose"):
            completions = await self.journal.open(item).generate(prompt, n=1, max_tokens=self._max_tokens, seed=seed)
        return completions[0] if completions else given_up(prompt), references

    async def _validate(
        self, item: WorkItem, completion: Completion, references: Sequence[Task]
    ) -> tuple[Task | RejectReason, Judgement]:
        if completion.finish_reason == "given_up":
            return RejectReason.LOST, Judgement(verdict=RejectReason.LOST, detail=GIVEN_UP, reason="given_up")
        with self.phase("validate"):
            return await validate(
                item.kind,
                completion,
                references,
                config=self.config,
                codec=self.codec,
                execute=self.execute,
                id=_proposal_id(item),
                step=item.step,
            )

    def _proposal_ended(self, item: WorkItem, outcome: Task | RejectReason) -> None:
        """Begin what an accepted task leads to, another proposal for one that does not teach, or the answer to a stored
        task that a rejection makes necessary."""
        state, is_of_step = self._kinds[item.kind], item.name == self.name
        is_learnable = isinstance(outcome, Task) and outcome.solve_rate not in (0.0, 1.0)
        if is_of_step and not is_learnable and state.waiting:
            self._work.start(state.waiting.pop(0))
        if isinstance(outcome, Task):
            state.accepted[item] = outcome
            if self.step:
                self._work.start(replace(item, begins="follow", references=(), task=outcome))
        elif is_of_step:
            # Every rejection is one task fewer for solvers. As many are solved in the end as without this head start.
            state.needed += 1
            self._solve_stored(item.kind, state.needed)

    async def _follow(self, item: WorkItem, task: Task) -> list[Sample]:
        """Estimate the task's derived tasks, and solve it if its index is among the first."""
        derived = self._derive(task, item.name, item.index)
        async with task_group() as group:
            answering = [group.create_task(self._answer(item, each, "estimate", item.index)) for each in derived]
            if item.index < self.config.selfplay.solver_prompts:
                answering.append(group.create_task(self._answer(item, task, "solve", "new")))
        return [sample for answers in answering for sample in answers.result()]

    async def _answer(self, item: WorkItem, task: Task, phase: str, salt: int | str) -> list[Sample]:
        """Answer a task by a group of samples that estimate its solve rate, or once to train on."""
        answers = await answer(
            task_problem(task, f"{phase}:{item.name}:{task.id}", self.codec, self.execute, self.tool),
            self.config.selfplay.group_size if phase == "estimate" else 1,
            generate=self.journal.open(item).generate,
            max_tokens=self._max_tokens,
            seed=self._seed(item.name, phase, task.id, salt),
            phase=self.phase,
            phase_name=phase,
        )
        for sample in answers:
            reward_answer(sample, self.config.reward, self._max_tokens)
            if phase == "estimate" and sample.used == "trained" and not self.config.selfplay.train_on_estimates:
                sample.used = "estimate"
        is_group = phase == "estimate" and self.config.selfplay.train_on_estimates
        if is_group and self.config.rollout.refill > 1 and not can_teach(answers):
            mark_unlearnable_group(answers)
        return answers

    async def _reserve(
        self, item: WorkItem, outcome: Task | RejectReason, judgement: Judgement
    ) -> tuple[Task | RejectReason, Judgement]:
        """Claim the fingerprint of a task, so that of two equal proposals in flight one is a duplicate."""
        state, is_ordered = self._kinds[item.kind], self.config.run.deterministic
        async with self._reserved:
            await self._reserved.wait_for(lambda: not is_ordered or state.num_reserved == item.index)
            if isinstance(outcome, Task):
                outcome, judgement = self._reserved_or_rejected(item, outcome, judgement)
            state.num_reserved += 1
            self._reserved.notify_all()
        return outcome, judgement

    def _reserved_or_rejected(
        self, item: WorkItem, task: Task, judgement: Judgement
    ) -> tuple[Task | RejectReason, Judgement]:
        ids, reason = self._kinds[task.kind].ids, self.buffer.reject_reason(task)
        if reason is None and task.fingerprint not in ids:
            ids[task.fingerprint] = task.id
            return task, judgement
        twin = ids[task.fingerprint] if reason is None else self.buffer.twin(task)
        if reason is RejectReason.IN_BENCHMARK:
            detail = f"the program is that of {twin}, which is held out, or the same up to constants"
            return reason, replace(judgement, verdict=reason, detail=detail)
        repeats = "step" if reason is None else "seed" if self.buffer.repeats_seed(task) else "buffer"
        if any(twin == shown.id for shown in item.references):
            repeats = "reference"
        return RejectReason.DUPLICATE, replace(
            judgement,
            verdict=RejectReason.DUPLICATE,
            detail=f"duplicate of {twin}",
            parts={**judgement.parts, f"repeats_{repeats}": True},
        )

    def _derive(self, task: Task, name: str, index: int) -> list[Task]:
        """Return tasks that a task makes for free, as far as they fit into a prompt."""
        rng, selfplay = random.Random(self._seed(name, "cross", task.kind, index)), self.config.selfplay
        derived = derived_tasks(task, selfplay.kinds, selfplay.derived_tasks, rng)
        limit = self.config.rollout.max_prompt_tokens
        return [each for each in derived if self.codec.solver_prompt_fits(KINDS[each.kind], each, limit)]

    def _solve_stored(self, kind: str, count: int) -> None:
        """Begin with answers to stored tasks until there are ``count``."""
        state = self._kinds[kind]
        while state.stored and len(state.answers) < count:
            index = len(state.answers)
            task = state.stored[index] if index < len(state.stored) else state.rng.choice(state.stored)
            state.answers.append(self._start(kind, "solve", task=task, salt=index))

    def _store(self, kind: str, *begins: str) -> None:
        """Put newly accepted tasks into the buffer, in the order in which their work began. ``begins``: see `WorkItem`;
        chained tasks come last, whenever they were answered."""
        accepted = self._kinds[kind].accepted
        for item in self._work.items():
            if item.begins in begins and item in accepted:
                self.buffer.add(accepted[item])
                self._result.stored.append(accepted.pop(item))

    def _finished(self) -> StepResult:
        """Return the results of all kinds, sorted where the order in which things finished would show."""
        for kind in sorted(self.config.selfplay.kinds):
            self._store(kind, "propose", "chain")
        done = self._work.results()
        samples = sort_samples([sample for of_item in done.values() for sample in of_item])
        self.buffer.note(self.step, samples)
        stored = sorted(self._result.stored, key=lambda task: task.kind)
        return replace(self._result, samples=samples, stored=stored, items=list(done))

    def _start(
        self, kind: str, begins: Literal["chain", "estimate", "solve"], **how: Any
    ) -> asyncio.Task[list[Sample]]:
        return self._work.start(WorkItem(step=self.step, name=self.name, kind=kind, begins=begins, **how))

    def _rng(self, *names: str) -> random.Random:
        return random.Random("/".join([str(self.config.run.seed), self.name, *names]))

    @property
    def _max_tokens(self) -> int:
        return self.config.rollout.max_response_tokens

    def _seed(self, *names: object) -> int:
        return stable_seed(self.config.run.seed, *names)

    def _draw_proposals(self, kinds: Sequence[str], asks: int = 1) -> dict[str, list[WorkItem]]:
        """Return the proposals of each kind, ``asks`` for a wanted one. What their prompts show is drawn before any of
        them can change the buffer."""
        rng, selfplay = self._rng(), self.config.selfplay
        indices, items = range(asks * selfplay.proposer_prompts), {kind: list[WorkItem]() for kind in kinds}
        for kind in kinds:
            draw, of_corpus = self.buffer.references(kind, selfplay.replay, self.step), self._rng(f"{kind}/corpus")
            for first in indices[:: selfplay.proposals_per_prompt]:
                passage, references = self.buffer.passage(kind, selfplay.corpus_share, of_corpus), list[Task]()
                if passage is None or passage.message:  # one that is given stands alone
                    references = draw_references(kind, draw, self.codec, selfplay.references, rng)
                if selfplay.replay == "easy_to_hard":
                    references.sort(key=lambda task: -self.buffer.rate(task.id, self.step))
                if passage is not None:
                    references.insert(0, passage)
                item = WorkItem(step=self.step, name=self.name, kind=kind, begins="propose", references=(*references,))
                same_prompt = indices[first : first + selfplay.proposals_per_prompt]
                items[kind] += [replace(item, index=index) for index in same_prompt]
        return items


def _proposal_id(item: WorkItem) -> str:
    return f"{item.name}-{item.kind}-{item.index:04d}"


def _solve_rate(answers: Sequence[Sample]) -> float | None:
    """Return the share of right answers; None if none was graded."""
    graded = [each.accuracy for each in answers if each.accuracy is not None]
    return sum(graded) / len(graded) if graded else None


def sort_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Sort by content, which decides how samples are packed and in which order gradients are added."""
    return sorted(samples, key=lambda t: (t.kind, t.role, t.group, *_sort_keys(t.completion), t.trace_tokens))


def _sort_keys(completion: Completion) -> tuple[bytes, bytes]:
    """Return bytes that sort as the lists of token ids and log-probabilities do."""
    # A larger float has larger bits; of negative ones smaller bits. Adding 0 makes one of the two zeros.
    bits = (completion.logprobs + np.float32(0)).view(np.uint32)
    ordered = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    return completion.response_ids.astype(">i4").tobytes(), ordered.astype(">u4").tobytes()
