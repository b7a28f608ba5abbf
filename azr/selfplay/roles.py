"""Proposer and solver: one language model in two roles, and the checks that only running code can give."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from azr.config import Config
from azr.execution import ExecutionRequest, ExecutionResult
from azr.executor.protocol import MAX_PROGRAM_BYTES, REPEATS
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Judgement, PromptIds, Task
from azr.selfplay.judgement import Seen, judge_answer, judge_proposal
from azr.tasks.base import Proposal, ProposalLimits, RejectReason, Run, Verdict
from azr.tasks.composites import GivenFunctions, compose
from azr.tasks.registry import KINDS

log = logging.getLogger(__name__)


class Sampler(Protocol):
    """Where responses come from, without those that take too long.

    In a deterministic run, equal arguments and weights give equal responses.
    """

    async def generate(
        self, prompt_ids: PromptIds, *, n: int, max_tokens: int, seed: int | None = None
    ) -> list[Completion]: ...


class Executor(Protocol):
    """Where programs run."""

    async def execute(self, request: ExecutionRequest) -> ExecutionResult: ...


def proposal_limits(induction_inputs: int = 0) -> ProposalLimits:
    """Bounds of every proposal; the number of inputs matters to inductions only."""
    return ProposalLimits(source_bytes=MAX_PROGRAM_BYTES, induction_inputs=induction_inputs, repeats=REPEATS)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a proposal prompt shows beside its instructions."""

    references: tuple[Task, ...]
    functions: GivenFunctions | None = None
    """Those that the program must call."""


class Proposer:
    """Invents tasks, which count only once they ran."""

    def __init__(self, config: Config, codec: PromptCodec, sampler: Sampler, executor: Executor) -> None:
        self._codec, self._sampler, self._executor = codec, sampler, executor
        self._kinds = config.selfplay.kinds
        self._max_prompt = config.rollout.max_prompt_tokens
        self._max_response = config.rollout.max_response_tokens
        self.limits = proposal_limits(config.selfplay.induction_inputs)

    async def propose(self, kind: str, wanted: Shown, seed: int) -> tuple[Completion | None, Shown]:
        """One proposal, unless it takes too long, and what of the wanted its prompt had room for."""
        prompt, references, functions = self._codec.proposer_prompt(
            KINDS[kind], list(wanted.references), self._max_prompt, wanted.functions
        )
        completions = await self._sampler.generate(prompt, n=1, max_tokens=self._max_response, seed=seed)
        return completions[0] if completions else None, Shown(tuple(references), functions)

    async def validate(
        self, kind: str, completion: Completion, shown: Shown, *, id: str, step: int
    ) -> Task | RejectReason:
        """The task that a proposal becomes once its program ran, or the first check that it failed."""
        return (await self.judge(kind, completion, shown, id=id, step=step))[0]

    async def judge(
        self, kind: str, completion: Completion, shown: Shown, *, id: str, step: int
    ) -> tuple[Task | RejectReason, Judgement]:
        """As `validate`, with what was read and why it was refused."""
        seen = Seen(completion)
        judging = self._validate(kind, seen, shown, _recorded(self._executor, seen), id=id, step=step)
        outcome = await _judged(id, RejectReason.MALFORMED, seen, judging)
        return outcome, judge_proposal(outcome, seen)

    async def _validate(
        self, kind: str, seen: Seen, shown: Shown, run: Run, *, id: str, step: int
    ) -> Task | RejectReason:
        sections = seen.sections = self._codec.parse_response(seen.completion, KINDS[kind].labels)
        if sections is None:
            return RejectReason.MALFORMED
        parents = shown.references
        if shown.functions is not None:
            composed = compose(sections, shown.functions)
            if isinstance(composed, RejectReason):
                return composed
            sections = composed
            parents += tuple(task for task in shown.functions.tasks if task not in parents)
        proposal = Proposal(id=id, sections=sections, references=parents, step=step)
        task = await KINDS[kind].validate(proposal, self.limits, run)
        return task if isinstance(task, RejectReason) else self.reject_reason(task) or task

    def reject_reason(self, task: Task) -> RejectReason | None:
        """Why no prompt may show a task that ran; None when every prompt may."""
        if self._codec.has_control_tokens(task):
            return RejectReason.NOT_ALLOWED
        return None if self._fits_prompts(task) else RejectReason.TOO_LARGE

    def _fits_prompts(self, task: Task) -> bool:
        """Whether the task fits into its solver's prompt and into every proposal prompt that may show it."""
        return self._codec.solver_prompt_fits(KINDS[task.kind], task, self._max_prompt) and all(
            self._codec.proposal_fits(KINDS[name], [task], self._max_prompt)
            for name in self._kinds
            if task.kind in KINDS[name].reference_kinds
        )


class Solver:
    """Answers tasks; every answer is graded by running code or by comparing plain data."""

    def __init__(self, config: Config, codec: PromptCodec, sampler: Sampler, executor: Executor) -> None:
        self._codec, self._sampler, self._executor = codec, sampler, executor
        self._max_prompt = config.rollout.max_prompt_tokens
        self._max_response = config.rollout.max_response_tokens

    def fits_prompt(self, task: Task) -> bool:
        """Whether the task fits into a prompt."""
        return self._codec.solver_prompt_fits(KINDS[task.kind], task, self._max_prompt)

    async def solve(self, task: Task, count: int, seed: int) -> list[Completion]:
        """Responses of the current policy to one task, without those that take too long."""
        prompt = self._codec.solver_prompt(KINDS[task.kind], task)
        return await self._sampler.generate(prompt, n=count, max_tokens=self._max_response, seed=seed)

    async def verify(self, task: Task, completions: Sequence[Completion]) -> list[Verdict]:
        """One verdict per completion, in their order."""
        return [verdict for verdict, _ in await self.judge(task, completions)]

    async def judge(self, task: Task, completions: Sequence[Completion]) -> list[tuple[Verdict, Judgement]]:
        """As `verify`, each with what was read and why it is not right."""
        return await asyncio.gather(*(self._judge(task, completion) for completion in completions))

    async def _judge(self, task: Task, completion: Completion) -> tuple[Verdict, Judgement]:
        seen = Seen(completion)
        grading = self._grade(task, seen, _recorded(self._executor, seen))
        verdict = await _judged(task.id, Verdict.MALFORMED, seen, grading)
        return verdict, judge_answer(verdict, task, seen)

    async def _grade(self, task: Task, seen: Seen, run: Run) -> Verdict:
        answer = seen.sections = self._codec.parse_response(seen.completion, KINDS[task.kind].labels)
        return Verdict.MALFORMED if answer is None else await KINDS[task.kind].grade(task, answer, run)


T = TypeVar("T")


def _recorded(executor: Executor, seen: Seen) -> Run:
    """Runs programs, and keeps what was run last."""

    async def run(request: ExecutionRequest) -> ExecutionResult:
        try:
            result = await executor.execute(request)
        except Exception as error:
            seen.failures.append(error)
            raise
        seen.last_run = request, result
        return result

    return run


async def _judged(id: str, otherwise: T, seen: Seen, judging: Awaitable[T]) -> T:
    """What judging a model's text leads to; ``otherwise``, with the traceback in the log, when the judging fails.

    So no text ends a run. A failure of the executor is not the text's, and passes.
    """
    try:
        return await judging
    except Exception as error:
        if any(error is failure for failure in seen.failures):
            raise
        log.exception("the response about task %s could not be judged and counts as %s", id, otherwise)
        return otherwise
