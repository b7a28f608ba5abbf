"""Tests, for pytest, that every kind of self-play must pass: a class of examples inherits them.

    class TestMine(KindContract):
        kind = Mine()
        proposals = [(Section("numbers", "3 1 2"),)]
        ...

``azr new kind`` writes such a file. The project's own kinds pass the same tests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from tokenizers import Tokenizer

from azr.config import Config, ExecutorConfig
from azr.execution import ExecutionRequest, ExecutionResult
from azr.executor.pool import SandboxPool
from azr.own_data import own_data
from azr.plugins.calls import TIME_LIMIT_S
from azr.plugins.own import STYLES, checked_task
from azr.records import Task
from azr.tasks.base import Proposal, RejectReason, TaskKind, Verdict
from azr.tasks.prompts import PromptFacts, Section

Sections = tuple[Section, ...]

HOSTILE = (
    "", " ", "\n", "\x00", "\ufeff1", "\ud800", "'\\ud800'", "é" * 999, "\u0661 \u0662", "nan", "-0.0", "1e999",
    "9" * 9999, "0x" + "f" * 9999, "None", "...", "[" * 999 + "]" * 999, "(" * 99 + ")" * 99, "-" * 999 + "1",
    "1 + " * 999 + "1", "9 ** 9 ** 9", "'a' * 10 ** 10", "lambda: 0", "__import__('os').system('true')",
    "while True: pass", "def f(a):\n    while True: pass", "def f(a): return f(a)", "{'a': {1: [2]}}",
    "%s%n {0} {} ${x}", "```", "</answer>", "<|end|>", "<|im_end|>", "<think>", "'''", '"""', "\\",
    "x" * 100_000, "\n" * 10_000,
)  # fmt: skip
"""Texts in the place of every section."""


class KindContract:
    """The tests of a kind. Programs that it runs are run in the sandbox that works here."""

    kind: ClassVar[TaskKind]
    proposals: ClassVar[Sequence[Sections]]
    """Proposals that become a task each."""
    refused: ClassVar[Sequence[Sections]]
    """Proposals that are rejected."""
    right: ClassVar[Sequence[Sections]] = ()
    """Answers to the task that the first of the proposals becomes, beside its own solution."""
    wrong: ClassVar[Sequence[Sections]]
    malformed: ClassVar[Sequence[Sections]]
    references: ClassVar[Sequence[Task]] = ()
    """Tasks that the proposals' prompts have shown."""
    bounds: ClassVar[Mapping[str, int]] = {}
    """Fields of `Proposal` that bound one, such as ``induction_inputs``."""
    executor: ClassVar[ExecutorConfig] = ExecutorConfig(workers=2)
    max_prompt_tokens: ClassVar[int] = Config().rollout.max_prompt_tokens
    """Counted by the small tokenizer that comes with azr, which makes more tokens of a text than others do."""

    _runner: ClassVar[asyncio.Runner]
    _pool: ClassVar[SandboxPool | None]
    """Started with the first program that runs."""
    _made: ClassVar[list[Task]]

    @classmethod
    def setup_class(cls) -> None:
        cls._runner, cls._pool, cls._made = asyncio.Runner(), None, []

    @classmethod
    def teardown_class(cls) -> None:
        if cls._pool is not None:
            cls._runner.run(cls._pool.abort())
        cls._runner.close()

    def test_the_first_task_can_be_played(self) -> None:
        kind = self.kind
        task = checked_task(kind, kind.seed())
        assert checked_task(kind, kind.seed()) == task, "seed() gives another task when it is called again"
        assert 0 <= kind.references_per_prompt(3) <= 3, "references_per_prompt(3) is not from 0 to 3"
        for told in (kind.proposer_instructions(PromptFacts()), kind.solver_instructions(PromptFacts())):
            assert told.task and told.blocks, "instructions say nothing"
            for section in (*told.example.shown, *told.example.answer):
                assert section.label in kind.labels, f"the example of instructions has a section {section.label!r}"

    def test_responses_are_read_back(self) -> None:
        kind = self.kind
        shown = [sections for task in self._tasks() for sections in (kind.proposal(task), kind.solution(task))]
        told = (kind.proposer_instructions(PromptFacts()), kind.solver_instructions(PromptFacts()))
        shown += [each.example.answer for each in told]
        for style in STYLES:
            for sections in shown:
                read = style.parse(style.response(sections), kind.labels)
                assert read == tuple(sections), f"{sections} is written, and read as {read}"

    def test_proposals_become_tasks(self) -> None:
        tasks = self._tasks()
        marks = [task.fingerprint for task in tasks]
        assert len(set(marks)) == len(marks), "two of the first task and the proposals' have the same fingerprint"

    def test_a_task_that_is_proposed_again_is_the_same(self) -> None:
        for task in self._tasks():
            again = self._validate(self.kind.proposal(task), references=(task,))
            assert isinstance(again, Task), f"{self.kind.proposal(task)} is what a task says of itself, and {again}"
            same = replace(again, id=task.id, parents=task.parents, step=task.step)
            assert same == task, f"{same} is not {task}"

    def test_what_is_no_proposal_is_refused(self) -> None:
        for sections in ((), *self.refused):
            outcome = self._validate(sections)
            assert isinstance(outcome, RejectReason), f"{sections} became {outcome}"

    def test_right_answers_are_right(self) -> None:
        for task in self._tasks():
            self._expect(Verdict.RIGHT, task, self.kind.solution(task))
        for answer in self.right:
            self._expect(Verdict.RIGHT, self._first(), answer)

    def test_wrong_answers_are_wrong(self) -> None:
        assert self.wrong, "no wrong answer is stated"
        for answer in self.wrong:
            self._expect(Verdict.WRONG, self._first(), answer)

    def test_malformed_answers_are_malformed(self) -> None:
        for answer in ((), *self.malformed):
            self._expect(Verdict.MALFORMED, self._first(), answer)

    def test_hostile_texts_are_refused_or_judged(self) -> None:
        """Whatever stands in a section: nothing raises or takes long, and nothing is right."""
        kind, task = self.kind, self._first()
        for sections in _with_hostile_texts(kind.proposal(task)):
            outcome = self._validate(sections)
            if isinstance(outcome, Task):
                checked_task(kind, outcome, outcome.id)
            else:
                assert isinstance(outcome, RejectReason), f"{_short(sections)} became {outcome!r}"
        for answer in _with_hostile_texts(kind.solution(task)):
            verdict = self._grade(task, answer)
            if answer not in (*self.right, kind.solution(task)):
                assert verdict in (Verdict.WRONG, Verdict.MALFORMED), f"{_short(answer)} is {verdict!r}"

    def test_prompts_are_within_limits(self) -> None:
        kind, tasks = self.kind, self._tasks()
        tokenizer = Tokenizer.from_file(str(Path(own_data("azr_14m_base")) / "tokenizer.json"))
        shown = tasks[: kind.references_per_prompt(len(tasks))]
        for style in STYLES:
            for prompt in (style.propose(kind, shown), *(style.solve(kind, kind.solver_view(task)) for task in tasks)):
                length = len(tokenizer.encode(prompt).ids)
                assert length <= self.max_prompt_tokens, f"a prompt has {length} tokens: {prompt[:500]}"

    def _tasks(self) -> list[Task]:
        """The first one, and those of the proposals."""
        assert self.proposals, "no proposal is stated"
        if not self._made:
            tasks = [checked_task(self.kind, self.kind.seed())]
            for sections in self.proposals:
                outcome = self._validate(sections)
                assert isinstance(outcome, Task), f"{sections} should become a task, and is {outcome}"
                tasks.append(checked_task(self.kind, outcome, "contract"))
            self._made.extend(tasks)
        return self._made

    def _first(self) -> Task:
        return self._tasks()[1]

    def _validate(self, sections: Sections, references: Sequence[Task] | None = None) -> Task | RejectReason:
        shown = self.references if references is None else references
        proposal = Proposal(id="contract", sections=sections, references=shown, step=1, **self.bounds)
        return self._runner.run(self.kind.validate(proposal, self._run))

    def _grade(self, task: Task, answer: Sections) -> Verdict:
        return self._runner.run(self.kind.grade(task, answer, self._run))

    def _expect(self, verdict: Verdict, task: Task, answer: Sections) -> None:
        graded = self._grade(task, answer)
        assert graded is verdict, f"{answer} should be {verdict}, and is {graded} for {task}"

    async def _run(self, request: ExecutionRequest) -> ExecutionResult:
        cls = type(self)
        if cls._pool is None:
            pool = SandboxPool(self.executor)
            await pool.start()
            cls._pool = pool
        return await cls._pool.execute(request)


def _with_hostile_texts(sections: Sections) -> Iterator[Sections]:
    """Yield the sections with each of the texts in each place, and check the time until the next is asked for."""
    for place, section in enumerate(sections):
        for text in HOSTILE:
            begun = time.monotonic()
            yield (*sections[:place], replace(section, text=text), *sections[place + 1 :])
            taken, most = time.monotonic() - begun, TIME_LIMIT_S
            assert taken < most, f"it took {taken:.0f} s, and the run waits for it: take at most {most:g} s"


def _short(sections: Sections) -> str:
    return " ".join(f"{section.label}={section.text[:60]!r}" for section in sections)
