"""Questions of suites as problems, each answered greedily and by samples while the answers to others are graded."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from azr.answering import Generate, Problem, answer
from azr.concurrency import gather, stable_seed, task_group
from azr.config import Config, RolloutConfig
from azr.environments import Environment
from azr.environments.tool_calls import on_record, open_tool, told
from azr.errors import UserError
from azr.evaluation.scores import Row, rows
from azr.evaluation.suites import LoadedSuite
from azr.evaluation.suites.short_answers import value_task
from azr.graders import OpenExecutor, check_graders, one_executor, open_graders
from azr.graders.choice import Choice
from azr.graders.mathematics import MathGold
from azr.graders.programs import Calls, Tests
from azr.graders.question import Grader, Question
from azr.graders.value import ProgramValue
from azr.prompts.codec import PromptCodec
from azr.records import NO_TOKENS, Completion, Judgement, PromptIds, Sample, Task
from azr.runs.sample_file import text_and_spans
from azr.tasks.base import Verdict
from azr.tasks.prompts import ChatFormat
from azr.tasks.registry import KINDS

AT_ONCE = 512
"""Most questions whose answers are sampled or graded at once; a bound on memory."""
MAX_RIGHT = 300
"""Characters of the right answer that stands beside a wrong one."""
QuestionKey = tuple[str, str]
"""Suite and id of a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of an evaluation. Every question is answered greedily once, and by ``samples``."""

    samples: int
    temperature: float
    """Of the samples."""
    max_tokens: int
    """Longest response."""
    seed: int


def may_run_python(codec: PromptCodec, question: Question) -> bool:
    """Whether answers may use `rollout.tools`: a question in words that asks neither what a program returns nor for a
    program, whose block would be taken for one to run."""
    of_programs = isinstance(question.gold, Task | ProgramValue | Calls | Tests)
    return codec.template is not None and not question.opened and not of_programs


def prompt_ids(codec: PromptCodec, question: Question, rollout: RolloutConfig | None = None) -> PromptIds:
    """Return the prompt of a question: by the chat template, by tags for a model in the compact format, for a self-play
    task by examples for one in the completion format, or the message itself if it is to be continued.

    Raises UserError when there are no tags for the question.
    """
    gold = question.gold
    if rollout is not None and rollout.tools != "none" and may_run_python(codec, question):
        asked = told(({"role": "user", "content": question.message},), rollout.tools)
        return np.array(codec.converse(*asked)[0], np.int32)
    if codec.template is not None and not (codec.continues_examples and isinstance(gold, Task)):
        message = question.message
        if isinstance(gold, Task) and not codec.opens_thinking:  # nor does the message ask for thinking in tags
            kind = KINDS[gold.kind]
            message = ChatFormat(str, thinking=False).solve(kind, kind.solver_view(gold))
        return np.array(codec.encode(message) if question.opened else codec.ask(message), np.int32)
    if isinstance(gold, ProgramValue) and gold.entry == "f" and not question.opened:
        gold = value_task(question.id, gold)
    if not isinstance(gold, Task):
        raise UserError(
            f"The suite {question.suite} asks in words; the compact format answers exam, cruxeval-i, cruxeval-o only."
        )
    return codec.solver_prompt(KINDS[gold.kind], gold)


def right_answer(gold: object) -> str:
    """Return a right answer as text; empty if the gold holds none, as tests of programs do not."""
    match gold:
        case Task():
            return "\n".join(each.text for each in KINDS[gold.kind].solution(gold))
        case ProgramValue():
            return gold.output if gold.asked == "output" else f"{gold.input}, or another input that gives {gold.output}"
        case MathGold():
            return " or ".join(gold.answers)
        case Choice():
            return gold.label
    return ""


def question_problem(
    question: Question,
    prompt: PromptIds,
    codec: PromptCodec,
    grader: Grader,
    tool: Callable[[], Environment] | None = None,
) -> Problem:
    """Return a question as a problem. ``prompt``: its `prompt_ids`; ``tool``: of `open_tool`."""

    async def judge(completion: Completion) -> Judgement:
        shown = codec.continues_examples and isinstance(question.gold, Task)
        text = codec.answer_text(completion) if shown else question.opened + codec.response_text(completion)
        if codec.template is None or shown:
            sections = codec.parse_response(completion)
            if sections is None:
                return Judgement(verdict=Verdict.MALFORMED, reason="no_block")
            if isinstance(question.gold, ProgramValue):
                if [section.label for section in sections] != [question.gold.asked]:
                    return Judgement(verdict=Verdict.MALFORMED, reason="missing_block")
                text = f"```\n{sections[0].text}\n```"
        judgement = await grader.grade(question, text)
        if judgement.verdict == Verdict.WRONG and not judgement.detail and (right := right_answer(question.gold)):
            judgement = replace(judgement, detail=f"a right answer is {right[:MAX_RIGHT]}")
        return judgement

    return Problem(
        id=question.id, kind=question.suite, group=question.group, prompt_ids=prompt,
        stop_strings=question.stop_strings, judge=judge, environment=tool if may_run_python(codec, question) else None,
    )  # fmt: skip


@dataclass(kw_only=True)
class EvalSet:
    """Suites, and how a model is asked their questions."""

    suites: Sequence[LoadedSuite]
    codec: PromptCodec
    config: Config
    """Says which tools answers may use."""
    sampling: Sampling
    ks: tuple[int, ...]
    """k of pass@k; at most the number of samples."""

    def __post_init__(self) -> None:
        """Raises UserError as `check_graders` and `prompt_ids`."""
        check_graders({each.suite.grader: each.questions[0] for each in self.suites})
        self.questions = [question for each in self.suites for question in each.questions]
        rollout = self.config.rollout
        self.prompts = {(each.suite, each.id): prompt_ids(self.codec, each, rollout) for each in self.questions}

    @property
    def protocol(self) -> dict[str, Any]:
        """Settings that decide the answers, except the model, hardware and versions."""
        rollout, sampling = self.config.rollout, self.sampling
        return {
            "suites": {each.suite.name: each.on_record for each in self.suites},
            "template_text": self.codec.template,
            "stops": asdict(self.codec.stops),
            **on_record(rollout),
            "samples": sampling.samples,
            "temperature": sampling.temperature,
            "max_response_tokens": sampling.max_tokens,
            "seed": sampling.seed,
        }

    @asynccontextmanager
    async def opened(
        self, questions: Iterable[Question], *, answers: OpenExecutor, tasks: OpenExecutor
    ) -> AsyncIterator[Callable[[Question], Problem]]:
        """Open graders and tool for these questions, and yield what makes a problem of each. Raises as `open_graders`,
        whose arguments it takes."""
        asked = {question.suite for question in questions}
        names = {each.suite.name: each.suite.grader for each in self.suites if each.suite.name in asked}
        async with (
            one_executor(answers) as pool,
            open_graders(names.values(), answers=pool, tasks=tasks) as graders,
            open_tool(self.config.rollout, self.codec, pool) as tool,
        ):
            yield lambda each: question_problem(
                each, self.prompts[each.suite, each.id], self.codec, graders[names[each.suite]], tool
            )

    def table(self, answers: list[Sample]) -> list[Row]:
        """Return the scores of the answers, which it sorts in the order of the questions."""
        places = {key: place for place, key in enumerate(self.prompts)}
        answers.sort(key=lambda answer: places[answer.kind, answer.problem_id])
        return rows(answers, self.ks, self.sampling.samples)


async def answer_all(
    problems: Iterable[Problem],
    sampling: Sampling,
    *,
    generate: Generate,
    codec: PromptCodec,
    step: int,
    done: Callable[[Sequence[Sample]], None],
) -> None:
    """Answer all problems. ``done`` gets the samples of one as soon as they are judged, the greedy one first. ``step``:
    training step of the model."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(problem: Problem) -> None:
        try:
            seed = stable_seed(sampling.seed, problem.kind, problem.id)
            ask = partial(answer, problem, generate=generate, max_tokens=sampling.max_tokens, seed=seed)
            work = [ask(1, temperature=0.0)]
            if sampling.samples:
                work.append(ask(sampling.samples, temperature=sampling.temperature))
            samples = [*itertools.chain(*await gather(*work))]
            prompt = codec.decode(problem.prompt_ids)
            for index, sample in zip([None, *range(sampling.samples)], samples, strict=True):
                sample.step, sample.prompt, sample.index = step, prompt, index
                if sample.completion.observed:
                    sample.response, sample.observed = text_and_spans(sample.completion, codec.decode)
                else:  # an end token is not part of an answer
                    sample.response = codec.response_text(sample.completion)
                sample.completion = NO_TOKENS  # nothing is trained on it, and the answers of all questions are kept
            done(samples)
        finally:
            places.release()

    async with task_group() as group:
        for problem in problems:
            await places.acquire()
            group.create_task(one(problem))
