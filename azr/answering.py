"""Ask a problem n times and judge every response: self-play, rows of files and evaluations all call `answer`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from azr.concurrency import Phase, gather
from azr.execution import ExecutionRequest, ExecutionResult
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Judgement, PromptIds, Reason, Sample, Task
from azr.tasks.base import Verdict
from azr.tasks.explanations import explain_answer, unreadable_reason
from azr.tasks.prompts import Section
from azr.tasks.registry import KINDS

GIVEN_UP = "the engine took longer than timeout.generate_s"
log = logging.getLogger(__name__)
T = TypeVar("T")


class Sampler(Protocol):
    """Where responses come from, without those that take too long.

    ``temperature`` None is the rollout temperature; 0 is greedy. ``stop_strings`` end a response too. In a
    deterministic run, equal arguments and weights give equal responses.
    """

    async def generate(
        self,
        prompt_ids: PromptIds,
        *,
        n: int,
        max_tokens: int,
        temperature: float | None = None,
        seed: int | None = None,
        stop_strings: Sequence[str] = (),
    ) -> list[Completion]: ...


class Executor(Protocol):
    """Where programs run."""

    async def execute(self, request: ExecutionRequest) -> ExecutionResult: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Something that a model is asked, and how its answers are judged: a self-play task (`task_problem`), a row of a
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
    """Judge one finished response. Nothing that a model writes makes it raise."""


async def answer(
    problem: Problem,
    n: int,
    *,
    sampler: Sampler,
    max_tokens: int,
    seed: int,
    temperature: float | None = None,
    phase: Phase = lambda name: nullcontext(),
    phase_name: str = "solve",
) -> list[Sample]:
    """Sample ``n`` responses to the problem and judge each; `judged` says what a sample holds.

    A response that the engine gave up is an empty, ungraded sample. ``phase``: timed as ``phase_name`` and ``verify``.
    """
    with phase(phase_name):
        completions = await sampler.generate(
            problem.prompt_ids,
            n=n,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stop_strings=problem.stop_strings,
        )
    completions = completions + [given_up(problem.prompt_ids)] * (n - len(completions))
    with phase("verify"):
        return await gather(*(judged(problem, completion) for completion in completions))


async def judged(problem: Problem, completion: Completion, *, trace_tokens: int = 0) -> Sample:
    """Return the judged sample of one response, without a reward; accuracy is None where it is ungraded."""
    if completion.finish_reason == "given_up":
        judgement = Judgement(verdict=Verdict.UNGRADED, detail=GIVEN_UP, reason=Reason.GIVEN_UP)
    else:
        judgement = await problem.judge(completion)
        if judgement.verdict == Verdict.MALFORMED and completion.finish_reason == "length":
            judgement = replace(judgement, reason=Reason.CUT_OFF)
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
    """Return the empty completion that stands for a response that the engine gave up."""
    return Completion(
        prompt_ids=prompt_ids,  # type: ignore[arg-type]  # it converts sequences
        response_ids=(),  # type: ignore[arg-type]
        logprobs=(),  # type: ignore[arg-type]
        finish_reason="given_up",
        weight_versions=(),  # type: ignore[arg-type]
    )


def cut_off_judgement(completion: Completion) -> Judgement | None:
    """Return the judgement of a response that was cut off, which has no answer: what looks like one stands amid its
    thinking. None for a response that ended by itself."""
    if completion.finish_reason != "length":
        return None
    detail = f"cut off after {len(completion.response_ids)} tokens"
    return Judgement(verdict=Verdict.MALFORMED, detail=detail, reason=Reason.CUT_OFF)


def read_texts(sections: Sequence[Section] | None) -> tuple[tuple[str, str], ...] | None:
    """Return label and text of the sections of a response, as `Judgement.answer` holds them."""
    return None if sections is None else tuple((str(each.label), each.text) for each in sections)


@dataclass(slots=True)
class RecordedRun:
    """Runs programs while a response is judged; remembers what was read, the last run and the executor's failures."""

    executor: Executor
    sections: Sequence[Section] | None = None
    """Sections of the response; None if it is not in the asked format."""
    last: tuple[ExecutionRequest, ExecutionResult] | None = None
    failures: list[Exception] = field(default_factory=list)
    raised: bool = False
    """Whether `judge` had to take its ``otherwise``."""

    async def __call__(self, request: ExecutionRequest) -> ExecutionResult:
        try:
            result = await self.executor.execute(request)
        except Exception as error:
            self.failures.append(error)
            raise
        self.last = request, result
        return result

    @property
    def ungraded_reason(self) -> Reason:
        """Return why a response is ungraded: the executor lost its last run, or else a plug-in failed over it."""
        is_lost = self.last is not None and self.last[1].lost
        return Reason.LOST if is_lost else Reason.GRADER_FAILED

    async def judge(self, id: str, judging: Awaitable[T], otherwise: T) -> T:
        """Return what judging a model's text leads to, or ``otherwise``, with the traceback in the log, if it fails.

        So no text ends a run. A failure of the executor is not the text's, and is raised.
        """
        try:
            return await judging
        except Exception as error:
            if any(error is failure for failure in self.failures):
                raise
            log.exception("the response about task %s could not be judged and counts as %s", id, otherwise)
            self.raised = True
            return otherwise


def malformed_reason(codec: PromptCodec, completion: Completion, run: RecordedRun, asked: Sequence[Section]) -> Reason:
    """Return why a proposal or an answer is malformed; ``asked``: sections of a well-formed one."""
    if run.raised:
        return Reason.GRADER_FAILED
    return codec.unread_reason(completion) if run.sections is None else unreadable_reason(run.sections, asked)


def task_problem(task: Task, group: str, codec: PromptCodec, executor: Executor) -> Problem:
    """Return a self-play task as a problem; its answers are graded by the task's kind."""
    kind = KINDS[task.kind]

    async def judge(completion: Completion) -> Judgement:
        run = RecordedRun(executor)

        async def grade() -> Verdict:
            run.sections = codec.parse_response(completion, kind.labels)
            return Verdict.MALFORMED if run.sections is None else await kind.grade(task, run.sections, run)

        verdict = await run.judge(task.id, grade(), Verdict.MALFORMED)
        detail = explain_answer(verdict, task, completion, run.sections, run.last)
        reason = ""
        if verdict is Verdict.MALFORMED:
            reason = malformed_reason(codec, completion, run, kind.solution(task))
        elif verdict is Verdict.UNGRADED:
            reason = run.ungraded_reason
        return Judgement(verdict=verdict, detail=detail, answer=read_texts(run.sections), reason=reason)

    prompt_ids = codec.solver_prompt(kind, task)
    return Problem(id=task.id, kind=task.kind, group=group, prompt_ids=prompt_ids, judge=judge)
