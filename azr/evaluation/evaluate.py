"""A model answers the tasks of a suite, each once greedily and several times at temperature 1."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from azr.concurrency import task_group
from azr.config import Config
from azr.evaluation.suite import BenchmarkTask
from azr.records import Completion, PromptIds
from azr.selfplay.ordering import stable_seed
from azr.selfplay.prompt_codec import PromptCodec
from azr.selfplay.roles import Executor, Solver
from azr.tasks.base import Verdict
from azr.tasks.registry import KINDS

GREEDY_TEMPERATURE, SAMPLING_TEMPERATURE = 0.0, 1.0
"""Of every evaluation, whatever a run samples at."""


class GenerateFn(Protocol):
    """Samples a model at any temperature; what it answers is graded and never trained on."""

    def __call__(
        self, prompt_ids: PromptIds, *, n: int, max_tokens: int, temperature: float, seed: int | None = None
    ) -> Awaitable[list[Completion]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """How a model did on one task."""

    id: str
    kind: str
    difficulty: str
    greedy: bool | None
    """Whether the greedy answer is right; None when the executor lost it."""
    right: int
    """Right answers among the samples."""
    graded: int
    """Samples that the executor did not lose."""


@dataclass(frozen=True, slots=True)
class _FixedTemperature:
    """The model as a solver samples it."""

    model: GenerateFn
    temperature: float

    async def generate(
        self, prompt_ids: PromptIds, *, n: int, max_tokens: int, seed: int | None = None
    ) -> list[Completion]:
        return await self.model(prompt_ids, n=n, max_tokens=max_tokens, temperature=self.temperature, seed=seed)


async def evaluate(
    config: Config,
    codec: PromptCodec,
    generate: GenerateFn,
    executor: Executor,
    benchmark: Sequence[BenchmarkTask],
    samples: int,
) -> list[TaskScore]:
    """Scores in the order of the tasks; answers have at most ``rollout.max_response_tokens`` tokens."""
    greedy, sampled = (
        Solver(config, codec, _FixedTemperature(generate, temperature), executor)
        for temperature in (GREEDY_TEMPERATURE, SAMPLING_TEMPERATURE)
    )
    async with task_group() as group:
        scoring = [
            group.create_task(
                _score_task(greedy, sampled, each, samples, stable_seed(config.run.seed, "exam", each.task.id))
            )
            for each in benchmark
        ]
    return [score.result() for score in scoring]


async def _score_task(greedy: Solver, sampled: Solver, each: BenchmarkTask, samples: int, seed: int) -> TaskScore:
    task = each.task
    greedy_graded = _graded(await greedy.verify(task, await greedy.solve(task, 1, seed)))
    sampled_graded = _graded(await sampled.verify(task, await sampled.solve(task, samples, seed)))
    return TaskScore(
        id=task.id,
        kind=task.kind,
        difficulty=each.difficulty,
        greedy=greedy_graded[0] if greedy_graded else None,
        right=sum(sampled_graded),
        graded=len(sampled_graded),
    )


def _graded(verdicts: Sequence[Verdict]) -> list[bool]:
    """Whether each answer is right, without those that the executor lost."""
    return [verdict is Verdict.RIGHT for verdict in verdicts if verdict is not Verdict.UNGRADED]


def longest_prompt(codec: PromptCodec, benchmark: Sequence[BenchmarkTask]) -> int:
    """Tokens of the longest prompt."""
    return max(len(codec.solver_prompt(KINDS[each.task.kind], each.task)) for each in benchmark)
