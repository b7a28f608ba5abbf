"""Evaluation within a run: a fixed subset of each suite before the first step, every few steps and after the last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azr.answering import Generate
from azr.config import Config
from azr.environments.tool_calls import on_record, open_tool
from azr.errors import UserError
from azr.evaluation.answer_file import AnswerFile
from azr.evaluation.asking import QuestionKey, Sampling, answer_all, question_problem, tokenized
from azr.evaluation.scores import in_order, metrics, rows
from azr.evaluation.suites import check_names, load_exam, load_suites, suites_of
from azr.evaluation.suites.exam import NAME as EXAM
from azr.evaluation.suites.exam import SEALED, exam_files, exam_questions
from azr.execution import ExecutionRequest, ExecutionResult
from azr.files import atomic_write
from azr.graders import check_graders, open_graders
from azr.graders.programs import Calls
from azr.graders.question import Question
from azr.graders.sandboxed import ANSWER_REPEATS, answer_config
from azr.graders.value import ProgramValue
from azr.prompts.codec import PromptCodec
from azr.records import PromptIds, Sample
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
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as staging, AnswerFile(staging, self.protocol) as file:
            file.add(self.answers)


class PeriodicEval:
    """Evaluates a run's policy on a subset of suites, and lists the programs that the run must not train on."""

    def __init__(self, config: Config, codec: PromptCodec) -> None:
        """Load the suites. Raises UserError when a suite is missing, or a question does not fit into a prompt."""
        self._config, self._codec = config, codec
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
        exams = [Path(config.eval.path)] if config.eval.path is not None else []
        known = [load_exam(exam, config.eval.limit) for exam in exams]
        known += load_suites(others, folder, config.eval.limit)
        sealed = [each for exam in exams if exam_files(exam / SEALED) for each in exam_questions(exam / SEALED)]
        self.programs = dict(_held_out([*sealed, *(question for each in known for question in each.all_questions)]))
        """Questions by the `held_out_keys` of all programs of the exam and of these suites: ``question 7 of mbpp+``."""
        self._loaded = [each for each in known if each.suite.name in names]
        self.questions: list[Question] = [question for each in self._loaded for question in each.questions]
        """Questions of every evaluation, the same in every run with these settings."""
        self._prompts: dict[QuestionKey, PromptIds] = {}
        """Token ids of every question's prompt; empty without evaluations."""
        if not config.eval.every:
            return
        if EXAM in names and config.eval.path is None:
            raise UserError(
                "eval.every is set and eval.path is none: give an exam's folder, or leave it out of eval.suites."
            )
        check_graders({each.suite.grader: each.questions[0] for each in self._loaded})
        limit = config.rollout.max_prompt_tokens
        self._prompts = tokenized(codec, self.questions, config.rollout)
        for (suite, id), prompt in self._prompts.items():
            if len(prompt) > limit:
                raise UserError(
                    f"The question {id} of {suite} has {len(prompt)} tokens, but rollout.max_prompt_tokens is "
                    f"{limit}: raise it, omit the suite from eval.suites, or set eval.every to 0."
                )

    def should_run(self, step: int, last: bool) -> bool:
        """Whether to evaluate after this step; step 0 is the start, ``last`` the run's last step."""
        every = self._config.eval.every
        return bool(self.questions) and every > 0 and (last or step % every == 0)

    async def run(self, generate: Generate, executor: RemoteExecutor, step: int) -> Evaluated:
        """Evaluate the current policy. ``executor``: the run's, for the tasks of the exam."""
        config, longest = self._config, self._config.rollout.max_response_tokens
        samples, seed = config.eval.samples, config.run.seed
        sampling = Sampling(samples=samples, temperature=TEMPERATURE, max_tokens=longest, seed=seed)
        found: list[Sample] = []
        names = {each.suite.grader for each in self._loaded}
        async with (
            AnswerExecutor(config) as programs,
            open_graders(names, answers=lambda: nullcontext(programs), tasks=lambda: nullcontext(executor)) as graders,
            open_tool(config.rollout, self._codec, lambda: nullcontext(programs)) as tool,
        ):
            asked = ((each, graders[of.suite.grader]) for of in self._loaded for each in of.questions)
            problems = (
                question_problem(each, self._prompts[each.suite, each.id], self._codec, by, tool) for each, by in asked
            )
            await answer_all(problems, sampling, generate=generate, codec=self._codec, step=step, done=found.extend)
        found = in_order(found, self.questions)
        ks = (PASS_AT,) if samples >= PASS_AT else ()
        alike = [each.suite.name for each in self._loaded if each.suite.groups_alike]
        protocol = {
            "suites": {each.suite.name: each.on_record for each in self._loaded},
            "template_text": self._codec.template,
            "stops": asdict(self._codec.stops),
            **on_record(config.rollout),
            "samples": samples,
            "temperature": TEMPERATURE,
            "max_response_tokens": longest,
            "seed": seed,
        }
        return Evaluated(metrics(rows(found, ks, samples, alike)), found, protocol)


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
