"""One step of self-play: propose, validate, estimate, reward and solve, all overlapping (diagram: `azr.experiment`).

Read `SelfPlayStep.play`, `_play_kind` and `propose`. Tasks enter the buffer in the order of their proposals once these
are in, so the order in which coroutines finish decides only which of two equal proposals is the duplicate. In a
deterministic run it decides nothing: fingerprints are reserved in the order of indices.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from azr.answering import GIVEN_UP, answer, given_up, task_problem
from azr.concurrency import Phase, stable_seed, task_group
from azr.config import Config
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Judgement, Sample, Task
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.chaining import chain_tasks
from azr.selfplay.journal import Journal, WorkItem
from azr.selfplay.proposer import draw_references, validate
from azr.selfplay.rewards import can_teach, reward_answer, reward_proposal
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
    chains: Mapping[str, float] = field(default_factory=dict)
    """Numbers on chained tasks, see `azr.selfplay.chaining.Chained`, as ``deduction/made``."""


@dataclass(slots=True)
class SelfPlayStep:
    """One step. Every proposal is a coroutine, so nothing waits for the slowest of a phase.

    What is per kind is a dictionary by its name.
    """

    config: Config
    step: int
    name: str
    """Prefix of task ids and of random seeds, e.g. ``000012``."""
    buffer: TaskBuffer
    codec: PromptCodec
    execute: Run
    journal: Journal
    phase: Phase
    _group: asyncio.TaskGroup = field(init=False)
    _tasks: dict[asyncio.Task[list[Sample]], WorkItem] = field(default_factory=dict)
    """In the order in which they began."""
    _accepted: dict[WorkItem, Task] = field(default_factory=dict)
    """Tasks that the finished proposals became, not yet in the buffer."""
    _stored: list[Task] = field(default_factory=list)
    """Tasks that entered the buffer in this step."""
    _rngs: dict[str, random.Random] = field(init=False)
    """Draw stored tasks."""
    _drawn: dict[str, list[Task]] = field(default_factory=dict)
    """Stored tasks in the order in which solvers get them in place of rejected proposals."""
    _solving_stored: defaultdict[str, list[asyncio.Task[list[Sample]]]] = field(
        default_factory=partial(defaultdict, list)
    )
    """Answers to them that have begun, in that order; those that turn out to be too many are dropped."""
    _num_missing: Counter[str] = field(default_factory=Counter)
    """Stored tasks that solvers will need at least, as far as proposals have been rejected; may be negative."""
    _further: dict[str, list[WorkItem]] = field(default_factory=dict)
    """Proposals in reserve: the first of them begins when one of this step has not become a learnable task."""
    _reserved: dict[tuple[str, str], str] = field(default_factory=dict)
    """Ids of the tasks that this step's proposals became or that it chained, by kind and fingerprint."""
    _chains: dict[str, float] = field(default_factory=dict)
    _num_reserved: Counter[str] = field(default_factory=Counter)
    """Proposals that have passed the reservation, in a deterministic run in the order of indices from 0 on."""
    _turn: asyncio.Condition = field(default_factory=asyncio.Condition)
    """Notified when one of ``_num_reserved`` rises."""

    def __post_init__(self) -> None:
        seed, kinds = self.config.run.seed, self.config.selfplay.kinds
        self._rngs = {kind: random.Random(f"{seed}/{self.name}/{kind}") for kind in kinds}

    async def play(self, *, is_last: bool = True) -> StepResult:
        """Return proposals and solutions of every kind, judged and rewarded. Solvers get this step's tasks first.

        What the last step left over is begun again and belongs to this one. With ``rollout.partial``, a step that is
        not the last leaves over what takes longest.
        """
        kinds, share = self.config.selfplay.kinds, 1.0
        if self.config.rollout.partial and not is_last:
            share = PARTIAL_SHARE
        proposals = self._proposals(kinds, self.config.rollout.refill) if self.config.ablation.new_tasks else {}
        async with task_group() as self._group:
            for item in self.journal.left_over.get(self.step - 1, ()):
                if item.begins == "chain" and item.task is not None:
                    self._reserved[item.kind, item.task.fingerprint] = item.task.id
                self._start(item)
            # Before any proposal is validated, so that the same tasks are chained whatever finishes first.
            for kind in kinds if self.config.selfplay.chained_tasks else ():
                await self._chain(kind)
            async with task_group() as playing:
                for kind in kinds:
                    play = self._play_kind(kind, proposals[kind], share) if proposals else self._play_stored(kind)
                    playing.create_task(play)
            await self._wait_for_share(share, lambda item: True)
            # Nothing is carried over twice, or grows too old to be trained on.
            await self._wait_for_share(1.0, lambda item: item.step < self.step)
            self.journal.left_over[self.step] = await self._stop_unfinished()
        return self._result()

    async def seed(self, kinds: Sequence[str]) -> StepResult:
        """Propose for these kinds, without estimates and solutions: how the buffer first fills."""
        async with task_group() as self._group:
            for item in itertools.chain(*self._proposals(kinds).values()):
                self._start(item)
        return self._result()

    async def _chain(self, kind: str) -> None:
        """Chain stored tasks, and begin to estimate their solve rates."""
        if not KINDS[kind].can_be_chained:
            return
        with self.phase("validate"):
            chained = await chain_tasks(
                kind,
                self.buffer,
                {fingerprint for of_kind, fingerprint in self._reserved if of_kind == kind},
                config=self.config,
                codec=self.codec,
                execute=self.execute,
                name=self.name,
                step=self.step,
            )
        self._chains |= {f"{kind}/{name}": value for name, value in chained.numbers.items()}
        for index, task in enumerate(chained.tasks):
            self._reserved[kind, task.fingerprint] = task.id
            self._start(self._item(kind, "chain", task=task, index=index))

    async def _play_kind(self, kind: str, proposals: Sequence[WorkItem], share: float) -> None:
        selfplay, seed_of_draws = self.config.selfplay, f"{self.config.run.seed}/{self.name}/{kind}"
        self._num_missing[kind] = selfplay.solver_prompts - len(proposals)
        self._further[kind] = list(proposals[selfplay.proposer_prompts :])
        for item in proposals[: selfplay.proposer_prompts]:
            self._start(item)
        again = random.Random(f"{seed_of_draws}/again")
        repeated = self.buffer.repeated(kind, selfplay.repeated_tasks, selfplay.replay, self.step, again)
        for index, task in enumerate(repeated):
            self._start(self._item(kind, "estimate", task=task, index=index))
        if not self.config.run.deterministic:
            count = min(selfplay.solver_prompts, self.buffer.sizes()[kind])
            self._drawn[kind] = self.buffer.sample_tasks(kind, count, (), self._rngs[kind])
            # At once with the proposals: what the last step needed, less three standard deviations at most.
            expected = self.journal.stored_solves.get(kind, 0)
            self._solve_stored(kind, max(self._num_missing[kind], int(expected - 3 * math.sqrt(expected))))
        await self._wait_for_share(share, set(proposals).__contains__)

        ended = (
            (item, task) for item, task in self._accepted.items() if item.kind == kind and item.begins == "propose"
        )
        own = {item.index: task for item, task in ended if item.name == self.name}
        accepted = [own[index] for index in sorted(own)]
        self._store(kind, "propose")
        num_followed = sum(index < selfplay.solver_prompts for index in own)
        for task in accepted[num_followed : selfplay.solver_prompts]:
            self._start(self._item(kind, "solve", task=task, salt="new"))
        missing = max(0, selfplay.solver_prompts - len(accepted))
        self.journal.stored_solves[kind] = missing
        if self._drawn.get(kind):
            self._solve_stored(kind, missing)
            for surplus in self._solving_stored[kind][missing:]:
                surplus.cancel()
                self.journal.drop(self._tasks.pop(surplus))
        else:
            new_ids = {task.id for task in self._stored}
            for index, task in enumerate(self.buffer.sample_tasks(kind, missing, new_ids, self._rngs[kind])):
                self._start(self._item(kind, "solve", task=task, salt=index))

    async def _play_stored(self, kind: str) -> None:
        """Play the ablation without new tasks: estimate as many stored tasks as would be proposed."""
        rng, selfplay = self._rngs[kind], self.config.selfplay
        sampled = self.buffer.sample_tasks(kind, selfplay.proposer_prompts, (), rng)
        solved = self.buffer.sample_tasks(kind, selfplay.solver_prompts, (), rng)
        for index, task in enumerate(sampled):
            self._start(self._item(kind, "estimate", task=task, index=index))
        for index, task in enumerate(sampled):
            for derived in self._derive(task, self.name, index):
                self._start(self._item(kind, "estimate", task=derived, index=index))
        for index, task in enumerate(solved):
            self._start(self._item(kind, "solve", task=task, salt=index))

    async def _run(self, item: WorkItem) -> list[Sample]:
        if item.begins == "propose":
            return await self.propose(item)
        assert item.task is not None
        if item.begins == "follow":
            return await self._follow(item, item.task)
        if item.begins == "chain":
            answers = await self._answer(item, item.task, "estimate", item.index)
            if (rate := _solve_rate(answers)) is not None:
                self._accepted[item] = replace(item.task, solve_rate=rate)
            return answers
        return await self._answer(item, item.task, item.begins, item.index if item.begins == "estimate" else item.salt)

    async def propose(self, item: WorkItem) -> list[Sample]:
        """Sample a proposal, validate it, reserve its fingerprint, estimate its solve rate and reward it."""
        kind, id, is_seeding = item.kind, f"{item.name}-{item.kind}-{item.index:04d}", self.step == 0
        prompt, references = self.codec.proposer_prompt(
            KINDS[kind], list(item.references), self.config.rollout.max_prompt_tokens
        )
        with self.phase("propose"):
            completions = await self.journal.open(item).generate(
                prompt, n=1, max_tokens=self._max_tokens, seed=self._seed(item.name, "propose", kind, item.index)
            )
        completion = completions[0] if completions else given_up(prompt)
        outcome: Task | RejectReason = RejectReason.LOST
        judgement = Judgement(verdict=RejectReason.LOST, detail=GIVEN_UP, reason="given_up")
        if completion.finish_reason != "given_up":
            with self.phase("validate"):
                outcome, judgement = await validate(
                    kind,
                    completion,
                    references,
                    config=self.config,
                    codec=self.codec,
                    execute=self.execute,
                    id=id,
                    step=item.step,
                )
        is_ordered = self.config.run.deterministic
        async with self._turn:
            await self._turn.wait_for(lambda: not is_ordered or self._num_reserved[kind] == item.index)
            outcome, judgement = self._reserve(item, outcome, judgement)
            self._num_reserved[kind] += 1
            self._turn.notify_all()
        estimates = list[Sample]()
        if isinstance(outcome, Task) and not is_seeding:
            estimates = await self._answer(item, outcome, "estimate", item.index)
            if (rate := _solve_rate(estimates)) is not None:
                outcome = replace(outcome, solve_rate=rate)
            else:
                outcome = RejectReason.LOST
                detail = "no attempt at it could be graded"
                judgement = replace(judgement, verdict=outcome, detail=detail, reason="attempts_ungraded")
        first = item.index  # of those with the same baseline; groups of one form one group of their kind
        if self.config.selfplay.proposer_baseline == "prompt":
            first -= item.index % self.config.selfplay.proposals_per_prompt
        sample = Sample(
            completion=completion,
            role="proposer",
            kind=kind,
            problem_id=id,
            group=f"propose:{item.name}-{kind}-{first:04d}",
            judgement=judgement,
            solve_rate=outcome.solve_rate if isinstance(outcome, Task) else None,
            used="ungraded" if outcome is RejectReason.LOST else "recorded",
        )
        if outcome is not RejectReason.LOST and not is_seeding and self.config.ablation.train_proposer:
            known = lambda: self.buffer.tasks(kind)  # noqa: E731
            seen = self.buffer.times_seen(outcome) if isinstance(outcome, Task) else 0
            reward_proposal(sample, outcome, references, known, seen, self.config.reward, self._max_tokens)
        self._proposal_ended(item, outcome)
        return [sample, *estimates]

    def _proposal_ended(self, item: WorkItem, outcome: Task | RejectReason) -> None:
        """Begin what an accepted task leads to, another proposal for one that does not teach, or the answer to a stored
        task that a rejection makes necessary."""
        kind, is_own = item.kind, item.name == self.name
        is_learnable = isinstance(outcome, Task) and outcome.solve_rate not in (0.0, 1.0)
        if is_own and not is_learnable and self._further.get(kind):
            self._start(self._further[kind].pop(0))
        if isinstance(outcome, Task):
            self._accepted[item] = outcome
            if self.step:
                self._start(replace(item, begins="follow", references=(), task=outcome))
        elif is_own:
            # Every rejection is one task fewer for solvers. As many are solved in the end as without this head start.
            self._num_missing[kind] += 1
            self._solve_stored(kind, self._num_missing[kind])

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
            task_problem(task, f"{phase}:{item.name}:{task.id}", self.codec, self.execute),
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
        if phase == "estimate" and self.config.selfplay.train_on_estimates and self.config.rollout.refill > 1:
            can_teach(answers)
        return answers

    def _reserve(
        self, item: WorkItem, outcome: Task | RejectReason, judgement: Judgement
    ) -> tuple[Task | RejectReason, Judgement]:
        """Claim the fingerprint of a task, so that of two equal proposals in flight one is a duplicate."""
        if isinstance(outcome, RejectReason):
            return outcome, judgement
        key, reason = (outcome.kind, outcome.fingerprint), self.buffer.reject_reason(outcome)
        if reason is None and key not in self._reserved:
            self._reserved[key] = outcome.id
            return outcome, judgement
        twin = self._reserved[key] if reason is None else self.buffer.twin(outcome)
        if reason is RejectReason.IN_BENCHMARK:
            detail = f"the program is that of {twin}, which is held out, or the same up to constants"
            return reason, replace(judgement, verdict=reason, detail=detail)
        repeats = "step" if reason is None else "seed" if self.buffer.repeats_seed(outcome) else "buffer"
        if any(twin == task.id for task in item.references):
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
        drawn, solving = self._drawn.get(kind), self._solving_stored[kind]
        while drawn and len(solving) < count:
            index = len(solving)
            task = drawn[index] if index < len(drawn) else self._rngs[kind].choice(drawn)
            solving.append(self._start(self._item(kind, "solve", task=task, salt=index)))

    def _store(self, kind: str, *begins: str) -> None:
        """Put newly accepted tasks into the buffer, in the order in which their work began. ``begins``: see `WorkItem`;
        chained tasks come last, whenever they were answered."""
        for item in self._tasks.values():
            if item.kind == kind and item.begins in begins and item in self._accepted:
                self.buffer.add(self._accepted[item])
                self._stored.append(self._accepted.pop(item))

    def _start(self, item: WorkItem) -> asyncio.Task[list[Sample]]:
        task = self._group.create_task(self._run(item))
        self._tasks[task] = item
        return task

    async def _wait_for_share(self, share: float, of: Callable[[WorkItem], bool]) -> None:
        """Wait until this share of the items' tasks is done, those included that begin meanwhile."""
        while True:
            tasks = [task for task, item in self._tasks.items() if of(item)]
            pending = [task for task in tasks if not task.done()]
            missing = math.ceil(share * len(tasks)) - (len(tasks) - len(pending))
            if missing <= 0:
                return
            for ended in itertools.islice(asyncio.as_completed(pending), missing):
                await ended

    async def _stop_unfinished(self) -> list[WorkItem]:
        """Cancel what is under way; its requests go on. Return its items."""
        while pending := [task for task in self._tasks if not task.done()]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)
        return [item for task, item in self._tasks.items() if task.cancelled()]

    def _result(self) -> StepResult:
        """Merge the results of all kinds, sorted where the order in which things finished would show."""
        for kind in sorted(self.config.selfplay.kinds):
            self._store(kind, "propose", "chain")
        done = {task: item for task, item in self._tasks.items() if not task.cancelled()}
        samples = sort_samples([sample for task in done for sample in task.result()])
        self.buffer.note(self.step, samples)
        return StepResult(
            samples=samples,
            stored=sorted(self._stored, key=lambda task: task.kind),
            items=list(done.values()),
            chains=self._chains,
        )

    def _item(self, kind: str, begins: Literal["propose", "chain", "estimate", "solve"], **how: Any) -> WorkItem:
        return WorkItem(step=self.step, name=self.name, kind=kind, begins=begins, **how)

    @property
    def _max_tokens(self) -> int:
        return self.config.rollout.max_response_tokens

    def _seed(self, *names: object) -> int:
        return stable_seed(self.config.run.seed, *names)

    def _proposals(self, kinds: Sequence[str], asks: int = 1) -> dict[str, list[WorkItem]]:
        """Return the proposals of each kind, ``asks`` for a wanted one. What their prompts show is drawn before any of
        them can change the buffer."""
        rng, selfplay = random.Random(f"{self.config.run.seed}/{self.name}"), self.config.selfplay
        indices, items = range(asks * selfplay.proposer_prompts), {kind: list[WorkItem]() for kind in kinds}
        for kind in kinds:
            pool = self.buffer.references(kind, selfplay.replay, self.step)
            for first in indices[:: selfplay.proposals_per_prompt]:
                references = tuple(draw_references(kind, pool, self.codec, selfplay.references, rng))
                items[kind] += [
                    self._item(kind, "propose", index=index, references=references)
                    for index in indices[first : first + selfplay.proposals_per_prompt]
                ]
        return items


def merge_results(results: Sequence[StepResult]) -> StepResult:
    """Combine self-play and rows of one step; their kinds are disjoint."""
    return StepResult(
        samples=sort_samples([sample for result in results for sample in result.samples]),
        stored=[task for result in results for task in result.stored],
        items=[item for result in results for item in result.items],
        data={name: count for result in results for name, count in result.data.items()},
        chains={name: value for result in results for name, value in result.chains.items()},
    )


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
