"""Evaluation within a run: a fixed subset of each suite before the first step, every few steps and after the last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azr.answering import Generate
from azr.config import Config
from azr.errors import UserError
from azr.evaluation.answer_file import AnswerFile
from azr.evaluation.asking import EvalSet, Sampling, answer_all
from azr.evaluation.scores import metrics
from azr.evaluation.suites import check_names, load_exam, load_suites, suites_of
from azr.evaluation.suites.exam import NAME as EXAM
from azr.evaluation.suites.exam import SEALED, exam_files, exam_questions
from azr.execution import ExecutionRequest, ExecutionResult
from azr.files import atomic_write
from azr.graders.programs import Calls
from azr.graders.question import Question
from azr.graders.sandboxed import ANSWER_REPEATS, answer_config
from azr.graders.value import ProgramValue
from azr.prompts.codec import PromptCodec
from azr.records import Sample
from azr.tasks.normalize import ENTRY, held_out_keys, is_program, parse, renamed, written

if TYPE_CHECKING:
    from azr.cluster.executor_actor import RemoteExecutor

TEMPERATURE = 1.0
"""Temperature of the samples; that of the rollout may be another."""
PASS_AT = 8
"""k of pass@k, if there are that many samples."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Result of an evaluation within a run."""

    metrics: dict[str, float]
    """See `azr.evaluation.scores.metrics`."""
    answers: list[Sample]
    protocol: dict[str, Any]
    """All settings that decide the answers, except the weights."""

    def write(self, path: Path) -> None:
        """Write the answers as an `AnswerFile`, which is complete or absent."""
        with atomic_write(path) as staging, AnswerFile(staging, self.protocol) as file:
            file.add(self.answers)


class PeriodicEval:
    """Evaluates a run's policy on a subset of suites, and lists the programs that the run must not train on."""

    def __init__(self, config: Config, codec: PromptCodec) -> None:
        """Load the suites. Raises UserError when a suite is missing, or a question does not fit into a prompt."""
        self._config = config
        names = [name for word in config.eval.suites for name in word.split(",")]
        others = [name for name in names if name != EXAM]
        self.notes: list[str] = []
        """Suites that are neither evaluated nor held out, and why; one line each."""
        folder = Path(config.eval.data) if config.eval.data is not None else None
        check_names(names, suites_of(folder))
        if folder is None and others:
            self.notes.append(
                f"neither evaluated nor held out: {', '.join(others)}, for eval.data names no folder of their files"
            )
            others = []
        exams, limit = [Path(config.eval.path)] if config.eval.path is not None else [], config.eval.limit
        known = [*(load_exam(exam, limit) for exam in exams), *load_suites(others, folder, limit)]
        sealed = [each for exam in exams if exam_files(exam / SEALED) for each in exam_questions(exam / SEALED)]
        self.programs = dict(_held_out([*sealed, *(question for each in known for question in each.all_questions)]))
        """Questions by the `held_out_keys` of all programs of the exam and of these suites: ``question 7 of mbpp+``."""
        suites = [each for each in known if config.eval.every and each.suite.name in names]
        if config.eval.every and EXAM in names and config.eval.path is None:
            raise UserError(
                "eval.every is set and eval.path is none: give an exam's folder, or leave it out of eval.suites."
            )
        samples, seed, rollout = config.eval.samples, config.run.seed, config.rollout
        sampling = Sampling(samples=samples, temperature=TEMPERATURE, max_tokens=rollout.max_response_tokens, seed=seed)
        ks = (PASS_AT,) if samples >= PASS_AT else ()
        self.asked = EvalSet(suites=suites, codec=codec, config=config, sampling=sampling, ks=ks)
        """Questions of every evaluation, the same in every run with these settings; none without evaluations."""
        for (suite, id), prompt in self.asked.prompts.items():
            if len(prompt) > rollout.max_prompt_tokens:
                raise UserError(
                    f"The question {id} of {suite} has {len(prompt)} tokens, but rollout.max_prompt_tokens is "
                    f"{rollout.max_prompt_tokens}: raise it, omit the suite from eval.suites, or set eval.every to 0."
                )

    def should_run(self, step: int, last: bool) -> bool:
        """Whether to evaluate after this step; step 0 is the start, ``last`` the run's last step."""
        return bool(self.asked.questions) and (last or step % self._config.eval.every == 0)

    async def run(self, generate: Generate, executor: RemoteExecutor, step: int) -> Evaluated:
        """Evaluate the current policy. ``executor``: the run's, for the tasks of the exam."""
        asked, found = self.asked, list[Sample]()
        answers, tasks = partial(AnswerExecutor, self._config), lambda: nullcontext(executor)
        async with asked.opened(asked.questions, answers=answers, tasks=tasks) as problem:
            problems, codec = map(problem, asked.questions), asked.codec
            await answer_all(problems, asked.sampling, generate=generate, codec=codec, step=step, done=found.extend)
        return Evaluated(metrics(asked.table(found)), found, asked.protocol)


class AnswerExecutor(AbstractAsyncContextManager["AnswerExecutor"]):
    """Executor actor for programs that answer benchmarks or rows; it ends with the block: ``async with``. The first
    program starts it; many questions about values need none."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._starting = asyncio.Lock()
        self.actor: RemoteExecutor | None = None

    async def __aexit__(self, *_: object) -> None:
        if self.actor is not None:
            self.actor.kill()

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        async with self._starting:
            if self.actor is None:
                from azr.cluster.executor_actor import RemoteExecutor  # a dry run comes here too and needs no Ray

                config = self._config
                seed = config.run.seed if config.run.deterministic else None
                limits, options = answer_config(config.executor), {"repeats": ANSWER_REPEATS, "answers": True}
                actor = RemoteExecutor(limits, config.timeout.generate_s, seed=seed, **options)
                await actor.start()
                self.actor = actor
        return await self.actor.execute(request)


def _held_out(questions: list[Question]) -> Iterator[tuple[str, str]]:
    """Yield the keys of held-out programs, their function renamed to ``f`` as in proposals, each with its question."""
    for question in questions:
        entry = question.gold.entry if isinstance(question.gold, Calls | ProgramValue) else ENTRY
        for program in question.programs:
            if (tree := parse(program)) is None:
                continue
            proposed = written(renamed(tree, {entry: ENTRY}))
            if proposed is not None and is_program(proposed):
                for key in held_out_keys(proposed):
                    yield key, f"question {question.id} of {question.suite}"
