"""A model answers the questions of suites: greedily and by samples, each answer graded while others are generated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

from azr.concurrency import gather, task_group
from azr.errors import UserError
from azr.evaluation.answer_file import Answer
from azr.evaluation.graders import CODE_GRADERS, make_grader
from azr.evaluation.graders.value import ProgramValue
from azr.evaluation.question import Grader, Judgement, Question, Suite, Verdict
from azr.prompts.codec import PromptCodec
from azr.records import Completion, FinishReason, PromptIds, Task
from azr.selfplay.ordering import stable_seed
from azr.selfplay.roles import Executor
from azr.tasks.abduction import Abduction
from azr.tasks.deduction import Deduction
from azr.tasks.registry import KINDS

AT_ONCE = 512
"""Questions that an engine or a grader has in its hands; the others wait, so that memory stays bounded."""
_KIND_OF = {"output": Deduction.name, "input": Abduction.name}


class GenerateFn(Protocol):
    """Samples a model at any temperature; what it answers is graded and never trained on."""

    def __call__(
        self, prompt_ids: PromptIds, *, n: int, max_tokens: int, temperature: float, seed: int | None = None
    ) -> Awaitable[list[Completion]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How often and how a model is asked each question; once greedily in any case."""

    samples: int
    temperature: float
    """Of the samples."""
    max_tokens: int
    """Longest response."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Executors:
    """Where the programs of answers run, each started when a suite needs it."""

    tasks: Callable[[], AbstractAsyncContextManager[Executor]]
    """Of tasks of self-play, as training grades them."""
    answers: Callable[[], AbstractAsyncContextManager[Executor]]
    """Of answers to public benchmarks, as `azr.evaluation.graders.sandboxed.answer_pool`."""


@contextlib.asynccontextmanager
async def open_graders(suites: Collection[Suite], executors: Executors) -> AsyncIterator[dict[str, Grader]]:
    """The grader of each suite by the suite's name; what they started ends with the block.

    Raises UserError when a package of the extra ``eval`` is missing, or model-written code cannot be isolated here.
    """
    async with AsyncExitStack() as stack:
        opened: dict[tuple[str, bool], Grader] = {}
        pools: dict[bool, Executor] = {}
        by_suite: dict[str, Grader] = {}
        for suite in suites:
            tasks, needs_pool = suite.of_tasks, suite.grader in CODE_GRADERS
            if needs_pool and tasks not in pools:
                pools[tasks] = await stack.enter_async_context(executors.tasks() if tasks else executors.answers())
            key = suite.grader, tasks
            if key not in opened:
                pool = pools[tasks] if needs_pool else None
                opened[key] = await stack.enter_async_context(make_grader(suite.grader, pool))
            by_suite[suite.name] = opened[key]
        yield by_suite


def prompt_ids(codec: PromptCodec, question: Question) -> PromptIds:
    """Ids of what the model is asked. A model in the compact format is asked by tags, where there are any for it.

    Raises UserError when there are none.
    """
    if codec.template is not None:
        return codec.ask(question.message)
    task = _as_task(question)
    if task is None:
        raise UserError(
            f"The suite {question.suite} asks in words, but this model is asked by the tags of the compact format, "
            "which have forms for exam, cruxeval-i and cruxeval-o only."
        )
    return codec.solver_prompt(KINDS[task.kind], task)


def _as_task(question: Question) -> Task | None:
    gold = question.gold
    if isinstance(gold, Task):
        return gold
    if not isinstance(gold, ProgramValue) or gold.entry != "f":
        return None
    return Task(
        id=question.id,
        kind=_KIND_OF[gold.asked],
        program=gold.program,
        inputs=(gold.input,),
        outputs=(gold.output,),
        fingerprint="",
        message="",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Examiner:
    """Asks a model questions and has its answers graded."""

    codec: PromptCodec
    generate: GenerateFn
    graders: Mapping[str, Grader]
    """By suite."""
    sampling: Sampling

    async def examine(self, questions: Sequence[Question], done: Callable[[Sequence[Answer]], None]) -> None:
        """``done`` is called with all answers to a question as soon as they are graded; the greedy one is the first."""
        places = asyncio.Semaphore(AT_ONCE)

        async def one(question: Question) -> None:
            try:
                done(await self._answers(question))
            finally:
                places.release()

        async with task_group() as group:
            for question in questions:
                await places.acquire()
                group.create_task(one(question))

    async def _answers(self, question: Question) -> list[Answer]:
        prompt, sampling = prompt_ids(self.codec, question), self.sampling
        seed = stable_seed(sampling.seed, question.suite, question.id)

        async def ask(n: int, temperature: float) -> list[Completion]:
            if n == 0:
                return []
            return await self.generate(prompt, n=n, max_tokens=sampling.max_tokens, temperature=temperature, seed=seed)

        greedy, sampled = await gather(ask(1, 0.0), ask(sampling.samples, sampling.temperature))
        text = self.codec.decode(prompt)
        numbered: list[tuple[int | None, Completion | None]] = [(None, greedy[0] if greedy else None)]
        # An engine gives up responses that take too long.
        numbered += [(i, sampled[i] if i < len(sampled) else None) for i in range(sampling.samples)]
        return await gather(*(self._answer(question, text, sample, completion) for sample, completion in numbered))

    async def _answer(
        self, question: Question, prompt: str, sample: int | None, completion: Completion | None
    ) -> Answer:
        judged, text = Judgement(verdict=Verdict.UNGRADED), ""
        if completion is not None:
            text = self.codec.response_text(completion)
            judged = await self._grade(question, completion, text)
        return Answer(
            suite=question.suite,
            question=question.id,
            group=question.group,
            sample=sample,
            prompt=prompt,
            response=text,
            tokens=len(completion.response_ids) if completion else 0,
            truncated=completion is None or completion.finish_reason is FinishReason.LENGTH,
            verdict=judged.verdict,
            answer=None if judged.answer is None else judged.answer[0][1],
            parts=judged.parts,
        )

    async def _grade(self, question: Question, completion: Completion, text: str) -> Judgement:
        if self.codec.template is None:
            sections = self.codec.parse_response(completion)
            if sections is None:
                return Judgement(verdict=Verdict.MALFORMED)
            if isinstance(question.gold, ProgramValue):
                if [section.label for section in sections] != [question.gold.asked]:
                    return Judgement(verdict=Verdict.MALFORMED)
                text = f"```\n{sections[0].text}\n```"
        return await self.graders[question.suite].grade(question, text)
