"""Scripted answers, the real executor: scores, and the subset of the exam that a run evaluates."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from azr.config import Config, EvalConfig, ExecutorConfig, RolloutConfig, RunConfig
from azr.errors import UserError
from azr.evaluation.evaluate import evaluate
from azr.evaluation.periodic import PeriodicEval
from azr.evaluation.suite import BenchmarkTask, subset
from azr.executor.pool import SandboxPool
from azr.records import Completion, FinishReason, Task
from azr.selfplay.prompt_codec import PromptCodec
from azr.tasks.prompts import CompactFormat
from tests.conftest import byte_tokenizer

CODEC = PromptCodec(byte_tokenizer(), CompactFormat())
CONFIG = Config(
    rollout=RolloutConfig(max_prompt_tokens=512, max_response_tokens=77, temperature=0.3),
    executor=ExecutorConfig(workers=1, wall_s=5.0),
)


def benchmark_task(kind: str, index: int = 0, difficulty: str = "short") -> BenchmarkTask:
    inputs = ("1", "2", "3", "4") if kind == "induction" else ("1",)
    outputs = tuple(str(int(given) + 1) for given in inputs)
    program = f"def f(a):\n    return a + {index + 1}"
    task = Task(id=f"{kind}-{index}", kind=kind, program=program, inputs=inputs, outputs=outputs, fingerprint="",
                message="add")  # fmt: skip
    return BenchmarkTask(difficulty, task)


class Model:
    """Right when greedy; at temperature 1 the answers of a list in turn."""

    def __init__(self, right: dict[str, str], sampled: list[str]) -> None:
        self._right, self._sampled = right, sampled
        self.calls: Counter[tuple[float, int, int]] = Counter()

    async def __call__(
        self, prompt_ids: list[int], *, n: int, max_tokens: int, temperature: float, seed: int | None = None
    ) -> list[Completion]:
        self.calls[temperature, n, max_tokens] += 1
        (kind,) = (kind for kind in self._right if f"<|{kind}|>" in CODEC.decode(prompt_ids))
        texts = [self._right[kind]] if temperature == 0 else [text or self._right[kind] for text in self._sampled]
        return [completion(prompt_ids, text) for text in texts[:n]]


def completion(prompt_ids: list[int], text: str) -> Completion:
    ids = tuple(CODEC.encode(text))
    return Completion(prompt_ids=tuple(prompt_ids), response_ids=ids, logprobs=0.0,
                      finish_reason=FinishReason.STOP, weight_versions=0)  # fmt: skip


RIGHT = {
    "deduction": "<|output|>2<|end|>",
    "abduction": "<|input|>1<|end|>",
    "induction": "<|program|>def f(b):\n    return 1 + b<|end|>",
}


async def test_every_task_is_asked_greedily_and_at_temperature_1_and_graded_by_running():
    model = Model(RIGHT, ["", "<|output|>9<|end|>", "never ends", ""])
    async with SandboxPool(CONFIG.executor) as pool:
        scores = await evaluate(CONFIG, CODEC, model, pool, [benchmark_task(kind) for kind in RIGHT], samples=4)
    assert [(s.id, s.greedy, s.right, s.graded) for s in scores] == [(f"{kind}-0", True, 2, 4) for kind in RIGHT]
    assert model.calls == {(0.0, 1, 77): 3, (1.0, 4, 77): 3}


def test_a_subset_is_the_same_every_time_and_spread_over_the_difficulties():
    benchmark = tuple(
        benchmark_task("deduction", n, difficulty) for difficulty in ("short", "long") for n in range(10)
    ) + tuple(benchmark_task("induction", n) for n in range(3))
    chosen = subset(benchmark, 4)
    assert chosen == subset(benchmark, 4)
    assert [task.difficulty for task in chosen[:4]] == ["short", "short", "long", "long"] and len(chosen) == 7
    assert subset(benchmark, 100) == benchmark


def with_eval(**options) -> Config:
    return replace(CONFIG, run=RunConfig(steps=10), eval=EvalConfig(**options))


def test_evaluations_are_at_the_start_every_few_steps_and_at_the_end():
    periodic = PeriodicEval(with_eval(every=4), CODEC)
    assert [step for step in range(11) if periodic.should_run(step, last=step == 10)] == [0, 4, 8, 10]
    assert not any(PeriodicEval(with_eval(), CODEC).should_run(step, last=step == 10) for step in range(11))
    assert len(periodic.benchmark) == 3 * 64 and len(periodic.programs) > 600


def test_a_run_without_an_exam_refuses_no_program():
    periodic = PeriodicEval(with_eval(path=None), CODEC)
    assert not periodic.programs and not periodic.benchmark
    with pytest.raises(UserError, match=r"eval\.path is none"):
        PeriodicEval(with_eval(path=None, every=1), CODEC)


def test_tasks_must_fit_into_prompts():
    small = replace(with_eval(every=1), rollout=RolloutConfig(max_prompt_tokens=50))
    with pytest.raises(UserError, match=r"has \d+ tokens, but rollout\.max_prompt_tokens is 50; raise it"):
        PeriodicEval(small, CODEC)


async def test_a_run_gets_metrics_of_its_subset():
    periodic = PeriodicEval(with_eval(every=4, tasks_per_kind=2, samples=1), CODEC)
    async with SandboxPool(CONFIG.executor) as pool:
        named = await periodic.run(Model(RIGHT, [""]), pool)
    assert {"mean/accuracy", "mean/accuracy_low", "deduction/greedy", "induction/short/accuracy"} <= named.keys()
    assert "mean/pass@8" not in named
