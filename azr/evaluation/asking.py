"""Questions of suites as problems, each answered greedily and by samples while the answers to others are graded."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from azr.answering import Generate, Problem, answer
from azr.concurrency import gather, stable_seed, task_group
from azr.config import RolloutConfig
from azr.environments import Environment
from azr.environments.tool_calls import WRITTEN, added
from azr.errors import UserError
from azr.evaluation.suites.short_answers import value_task
from azr.graders.choice import Choice
from azr.graders.mathematics import MathGold
from azr.graders.programs import Calls, Tests
from azr.graders.question import Grader, Question
from azr.graders.value import ProgramValue
from azr.prompts.chat_template import Turn
from azr.prompts.codec import PromptCodec
from azr.records import NO_TOKENS, Completion, Judgement, PromptIds, Sample, Task
from azr.runs.sample_file import text_and_spans
from azr.tasks.base import Verdict
from azr.tasks.prompts import PYTHON_NOTE, ChatFormat
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


def tokenized(
    codec: PromptCodec, questions: Iterable[Question], rollout: RolloutConfig
) -> dict[QuestionKey, PromptIds]:
    """Return the prompt of every question. Raises UserError as `prompt_ids`."""
    return {(question.suite, question.id): prompt_ids(codec, question, rollout) for question in questions}


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
        turns: tuple[Turn, ...] = ({"role": "user", "content": question.message},)
        turns = added(turns, PYTHON_NOTE) if rollout.tools == "python" else turns
        return np.array(codec.converse(turns, WRITTEN[rollout.tools])[0], np.int32)
    if codec.template is not None and not (codec.continues_examples and isinstance(gold, Task)):
        ids = codec.encode(question.message) if question.opened else codec.ask(_message(codec, question))
        return np.array(ids, np.int32)
    if isinstance(gold, ProgramValue) and gold.entry == "f" and not question.opened:
        gold = value_task(question.id, gold)
    if not isinstance(gold, Task):
        raise UserError(
            f"The suite {question.suite} asks in words; the compact format answers exam, cruxeval-i, cruxeval-o only."
        )
    return codec.solver_prompt(KINDS[gold.kind], gold)


def _message(codec: PromptCodec, question: Question) -> str:
    """Return the user's message, which asks for thinking in tags only if the template opens it."""
    if codec.opens_thinking or not isinstance(question.gold, Task):
        return question.message
    kind = KINDS[question.gold.kind]
    return ChatFormat(lambda message: message, thinking=False).solve(kind, kind.solver_view(question.gold))


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
            for index, sample in enumerate(samples[1:]):
                sample.index = index
            prompt = codec.decode(problem.prompt_ids)
            for sample in samples:
                sample.step, sample.prompt = step, prompt
                if sample.completion.observed:
                    sample.response, sample.observed = text_and_spans(sample.completion, codec.decode)
                else:  # an end token is no part of an answer
                    sample.response = codec.response_text(sample.completion)
                sample.completion = NO_TOKENS  # nothing is trained on it, and the answers of all questions are kept
            done(samples)
        finally:
            places.release()

    async with task_group() as group:
        for problem in problems:
            await places.acquire()
            group.create_task(one(problem))
