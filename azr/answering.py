"""Ask a problem n times and judge every response: self-play, rows of files and evaluations all call `answer`.

A problem with an environment is not answered at once, but in a conversation, which is one response, too.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from azr.concurrency import Phase, gather, stable_seed
from azr.environments import Environment, EnvironmentFailed
from azr.errors import UserError
from azr.execution import ExecutionRequest, ExecutionResult
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Judgement, PromptIds, Reason, Sample, Task
from azr.tasks.base import RejectReason, Run, TaskKind, Verdict
from azr.tasks.explanations import LastRun, Sections, explain_answer, unreadable_reason
from azr.tasks.prompts import Section
from azr.tasks.registry import KINDS

GIVEN_UP = "the engine took longer than timeout.generate_s"
_OF_TEXTS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions that a text brings about. Others, such as OSError, say that a grader or the executor is broken."""
log = logging.getLogger(__name__)
T = TypeVar("T", Verdict, Task | RejectReason)


Generate = Callable[..., Awaitable[list[Completion]]]
"""Samples responses as `azr.rollout.engine_group.EngineGroup.generate`, whose arguments it takes. Those that take too
long are missing. In a deterministic run, equal arguments and weights give equal responses."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """A question to the model, and how its answers are judged: a self-play task (`task_problem`), a row of a
    file (`azr.datasets.play`) or a question of a suite (`azr.evaluation.asking`).

    Example: ``Problem(id="7", kind="gsm8k", group="gsm8k", prompt_ids=codec.ask("2 + 2?"), judge=judge)``
    """

    id: str
    kind: str
    """Task kind, source of the row, or suite."""
    group: str
    """`Sample.group` of its answers."""
    prompt_ids: PromptIds
    stop_strings: tuple[str, ...] = ()
    """Texts that end a response, in addition to the stops of the model's format."""
    judge: Callable[[Completion], Awaitable[Judgement]]
    """Judge one finished response, of a conversation its last turn. Nothing that a model writes makes it raise."""
    environment: Callable[[], Environment] | None = None
    """Makes the environment of one conversation; None where a response is one turn."""


async def answer(
    problem: Problem,
    n: int,
    *,
    generate: Generate,
    max_tokens: int,
    seed: int,
    temperature: float | None = None,
    phase: Phase = lambda name: nullcontext(),
    phase_name: str = "solve",
) -> list[Sample]:
    """Sample ``n`` responses to the problem and judge each; `judged` says what a sample holds.

    A response that the engine gave up is an empty, ungraded sample. ``phase``: timed as ``phase_name`` and ``verify``.
    """
    generate = partial(generate, temperature=temperature, stop_strings=problem.stop_strings)
    if problem.environment is not None:
        talks = (
            converse(problem, environment, generate, max_tokens, stable_seed(seed, index), phase, phase_name)
            for index, environment in enumerate(problem.environment() for _ in range(n))
        )
        return await gather(*talks)
    with phase(phase_name):
        completions = await generate(problem.prompt_ids, n=n, max_tokens=max_tokens, seed=seed)
    completions = completions + [given_up(problem.prompt_ids)] * (n - len(completions))
    with phase("verify"):
        return await gather(*(judged(problem, completion) for completion in completions))


async def converse(
    problem: Problem,
    environment: Environment,
    generate: Generate,
    max_tokens: int,
    seed: int,
    phase: Phase,
    phase_name: str,
) -> Sample:
    """Sample turns of the model, each of which the environment answers, and judge the conversation at its end.

    ``max_tokens``: of all turns and observations together; a conversation that would need more is cut off. Each turn
    has a seed of its own, and nothing that was sampled is encoded again.
    """
    talk, observed, judgement = given_up(problem.prompt_ids), list[int](), None
    try:
        async with environment:
            for turn in itertools.count():
                prompt = np.concatenate([problem.prompt_ids, talk.response_ids, observed]).astype(np.int32)
                room = max_tokens - len(prompt) + len(problem.prompt_ids)
                if room <= 0:
                    talk = replace(talk, finish_reason="length")
                    break
                with phase(phase_name):
                    found = await generate(prompt, n=1, max_tokens=room, seed=stable_seed(seed, turn))
                talk = talk.continued(observed, found[0]) if found else given_up(problem.prompt_ids)
                if talk.finish_reason != "stop":
                    break
                with phase("environment"):
                    reply = await environment.respond(found[0])
                if reply is None:
                    break
                observed = reply
            if talk.finish_reason != "given_up":
                judgement = await environment.judgement()
    except EnvironmentFailed as failure:
        judgement = Judgement(verdict=Verdict.UNGRADED, detail=str(failure), reason="environment_failed")
    with phase("verify"):
        sample = await judged(problem, talk, judgement=judgement)
    if sample.judgement is not None:
        sample.judgement = replace(sample.judgement, parts={**sample.judgement.parts, **environment.parts})
    return sample


async def judged(
    problem: Problem, completion: Completion, *, trace_tokens: int = 0, judgement: Judgement | None = None
) -> Sample:
    """Return the judged sample of one response, without a reward; accuracy is None where it is ungraded.

    A text over which its grader raises an exception of `_OF_TEXTS` is malformed, so no text ends a run. ``judgement``:
    the environment's, if it judges.
    """
    if completion.finish_reason == "given_up":
        judgement = Judgement(verdict=Verdict.UNGRADED, detail=GIVEN_UP, reason="given_up")
    elif judgement is None:
        try:
            judgement = await problem.judge(completion.last_turn)
        except UserError:
            raise
        except _OF_TEXTS:
            log.exception("an answer to %s of %s could not be judged and counts as malformed", problem.id, problem.kind)
            judgement = Judgement(verdict=Verdict.MALFORMED, reason="grader_failed")
        if judgement.verdict == Verdict.MALFORMED and completion.finish_reason == "length":
            judgement = replace(judgement, reason="cut_off")
    is_graded = judgement.verdict != Verdict.UNGRADED
    return Sample(
        completion=completion,
        role="solver",
        kind=problem.kind,
        problem_id=problem.id,
        group=problem.group,
        trace_tokens=trace_tokens,
        judgement=judgement,
        accuracy=float(judgement.verdict == Verdict.RIGHT) if is_graded else None,
        used="recorded" if is_graded else "ungraded",
    )


def given_up(prompt_ids: PromptIds) -> Completion:
    """Return the empty completion of a response that the engine gave up."""
    return Completion(
        prompt_ids=prompt_ids,  # type: ignore[arg-type]  # it converts sequences
        response_ids=(),  # type: ignore[arg-type]
        logprobs=(),  # type: ignore[arg-type]
        finish_reason="given_up",
        weight_versions=(),  # type: ignore[arg-type]
    )


def cut_off_judgement(completion: Completion) -> Judgement | None:
    """Return the judgement of a response that was cut off, which has no answer: any answer-like text is inside its
    unfinished reasoning. None for a response that ended by itself."""
    if completion.finish_reason != "length":
        return None
    detail = f"cut off after {len(completion.response_ids)} tokens"
    return Judgement(verdict=Verdict.MALFORMED, detail=detail, reason="cut_off")


def read_texts(sections: Sequence[Section] | None) -> tuple[tuple[str, str], ...] | None:
    """Return label and text of the sections of a response, as `Judgement.answer` holds them."""
    return None if sections is None else tuple((str(each.label), each.text) for each in sections)


async def judge_text(
    completion: Completion,
    codec: PromptCodec,
    kind: TaskKind,
    execute: Run,
    judging: Callable[[Sequence[Section], Run], Awaitable[T]],
    *,
    id: str,
    malformed: T,
    expected: Callable[[], Sequence[Section]],
) -> tuple[T, Sections, LastRun, Reason]:
    """Return what ``judging`` the sections of a proposal or an answer leads to, the sections, the last program that ran
    for it, and why it is malformed or ungraded, if it is.

    A text that ``judging`` fails over is malformed, with the traceback in the log, so no text ends a run. A failure of
    the executor is not the text's, and is raised. ``expected``: returns the sections of a well-formed response.
    """
    sections: Sections = None
    last_run: LastRun = None
    failures: list[Exception] = []

    async def run(request: ExecutionRequest) -> ExecutionResult:
        nonlocal last_run
        try:
            result = await execute(request)
        except Exception as error:
            failures.append(error)
            raise
        last_run = request, result
        return result

    reason: Reason = ""
    try:
        sections = codec.parse_response(completion, kind.labels)
        outcome = malformed if sections is None else await judging(sections, run)
        if outcome is malformed:
            reason = codec.unread_reason(completion) if sections is None else unreadable_reason(sections, expected())
    except Exception as error:
        if any(error is failure for failure in failures):
            raise
        log.exception("the response about task %s could not be judged and counts as %s", id, malformed)
        outcome, reason = malformed, "grader_failed"
    if outcome in (Verdict.UNGRADED, RejectReason.LOST):
        reason = "lost" if last_run is not None and last_run[1].lost else "grader_failed"
    return outcome, sections, last_run, reason


def task_problem(
    task: Task, group: str, codec: PromptCodec, execute: Run, environment: Callable[[], Environment] | None = None
) -> Problem:
    """Return a self-play task as a problem; its answers are graded by the task's kind."""
    kind = KINDS[task.kind]

    async def judge(completion: Completion) -> Judgement:
        verdict, sections, last_run, reason = await judge_text(
            completion,
            codec,
            kind,
            execute,
            lambda sections, run: kind.grade(task, sections, run),
            id=task.id,
            malformed=Verdict.MALFORMED,
            expected=lambda: kind.solution(task),
        )
        detail = explain_answer(verdict, task, completion, sections, last_run)
        return Judgement(verdict=verdict, detail=detail, answer=read_texts(sections), reason=reason)

    return Problem(
        id=task.id, kind=task.kind, group=group, prompt_ids=codec.solver_prompt(kind, task), judge=judge,
        environment=environment,
    )  # fmt: skip
