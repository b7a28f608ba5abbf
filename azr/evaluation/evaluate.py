"""A model sits the exam: every question once greedily and several times at temperature 1."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from azr.concurrency import task_group
from azr.config import Config
from azr.evaluation.suite import ExamTask
from azr.records import Completion
from azr.selfplay.ordering import stable_seed
from azr.selfplay.prompt_codec import PromptCodec
from azr.selfplay.roles import Executor, Solver
from azr.tasks.base import Verdict
from azr.tasks.registry import KINDS

GREEDY, SAMPLED = 0.0, 1.0
"""Temperatures of the exam, whatever a run samples at."""


class Examine(Protocol):
    """Asks a model at any temperature; what it answers is graded and never trained on."""

    def __call__(
        self, prompt_ids: list[int], *, n: int, max_tokens: int, temperature: float, seed: int | None = None
    ) -> Awaitable[list[Completion]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What a model made of one question."""

    id: str
    kind: str
    band: str
    greedy: bool | None
    """Whether the greedy answer is right; None when the executor lost it."""
    right: int
    """Right answers among the samples."""
    graded: int
    """Samples that the executor did not lose."""


class _Candidate:
    """The model as a solver sees it, at one temperature."""

    def __init__(self, examine: Examine, temperature: float) -> None:
        self._examine, self._temperature = examine, temperature

    async def generate(
        self, prompt_ids: list[int], *, n: int, max_tokens: int, seed: int | None = None
    ) -> list[Completion]:
        return await self._examine(prompt_ids, n=n, max_tokens=max_tokens, temperature=self._temperature, seed=seed)


async def sit(
    config: Config,
    codec: PromptCodec,
    examine: Examine,
    executor: Executor,
    paper: Sequence[ExamTask],
    samples: int,
) -> list[Marks]:
    """Marks in the order of the paper; answers are at most ``rollout.max_response_tokens`` long."""
    greedy, sampled = (
        Solver(config, codec, _Candidate(examine, temperature), executor) for temperature in (GREEDY, SAMPLED)
    )
    async with task_group() as group:
        sitting = [
            group.create_task(
                _mark(greedy, sampled, question, samples, stable_seed(config.run.seed, "exam", question.task.id))
            )
            for question in paper
        ]
    return [marked.result() for marked in sitting]


async def _mark(greedy: Solver, sampled: Solver, question: ExamTask, samples: int, seed: int) -> Marks:
    task = question.task
    firm = _graded(await greedy.verify(task, await greedy.solve(task, 1, seed)))
    drawn = _graded(await sampled.verify(task, await sampled.solve(task, samples, seed)))
    return Marks(
        id=task.id,
        kind=task.kind,
        band=question.band,
        greedy=firm[0] if firm else None,
        right=sum(drawn),
        graded=len(drawn),
    )


def _graded(verdicts: Sequence[Verdict]) -> list[bool]:
    """Whether each answer is right, without those that the executor lost."""
    return [verdict is Verdict.RIGHT for verdict in verdicts if verdict is not Verdict.UNGRADED]


def longest_prompt(codec: PromptCodec, paper: Sequence[ExamTask]) -> int:
    """Tokens of the longest question."""
    return max(len(codec.solver_prompt(KINDS[question.task.kind], question.task)) for question in paper)
