"""Scripted answers, the real executor: marks, rows and the part of the exam that a run asks."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from azr.config import Config, EvalConfig, ExecutorConfig, RolloutConfig, RunConfig
from azr.evaluation import result
from azr.evaluation.evaluate import Marks, sit
from azr.evaluation.periodic import InRunExam, part
from azr.evaluation.suite import ExamTask
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


def question(kind: str, number: int = 0, band: str = "short") -> ExamTask:
    inputs = ("1", "2", "3", "4") if kind == "induction" else ("1",)
    outputs = tuple(str(int(given) + 1) for given in inputs)
    program = f"def f(a):\n    return a + {number + 1}"
    return ExamTask(band, Task(id=f"{kind}-{number}", kind=kind, program=program, inputs=inputs, outputs=outputs,
                               fingerprint="", message="add"))  # fmt: skip


class Model:
    """Right when greedy; at temperature 1 the answers of a list in turn."""

    def __init__(self, right: dict[str, str], sampled: list[str]) -> None:
        self._right, self._sampled = right, sampled
        self.asked: Counter[tuple[float, int, int]] = Counter()

    async def __call__(
        self, prompt_ids: list[int], *, n: int, max_tokens: int, temperature: float, seed: int | None = None
    ) -> list[Completion]:
        self.asked[temperature, n, max_tokens] += 1
        (kind,) = (kind for kind in self._right if f"<|{kind}|>" in CODEC.decode(prompt_ids))
        texts = [self._right[kind]] if temperature == 0 else [text or self._right[kind] for text in self._sampled]
        return [completion(prompt_ids, text) for text in texts[:n]]


def completion(prompt_ids: list[int], text: str) -> Completion:
    ids = tuple(CODEC.encode(text))
    return Completion(prompt_ids=tuple(prompt_ids), response_ids=ids, logprobs=(0.0,) * len(ids),
                      finish_reason=FinishReason.STOP, weight_version=0)  # fmt: skip


RIGHT = {
    "deduction": "<|output|>2<|end|>",
    "abduction": "<|input|>1<|end|>",
    "induction": "<|program|>def f(b):\n    return 1 + b<|end|>",
}


async def test_every_question_is_asked_greedily_and_at_temperature_1_and_graded_by_running():
    model = Model(RIGHT, ["", "<|output|>9<|end|>", "never ends", ""])
    async with SandboxPool(CONFIG.executor) as pool:
        marks = await sit(CONFIG, CODEC, model, pool, [question(kind) for kind in RIGHT], samples=4)
    assert [(m.id, m.greedy, m.right, m.graded) for m in marks] == [(f"{kind}-0", True, 2, 4) for kind in RIGHT]
    assert model.asked == {(0.0, 1, 77): 3, (1.0, 4, 77): 3}


def marks(kind: str, band: str, right: int, greedy: bool | None = True, graded: int = 8) -> Marks:
    return Marks(id=f"{kind}/{band}/{right}", kind=kind, band=band, greedy=greedy, right=right, graded=graded)


MARKS = [
    marks("deduction", "short", 8), marks("deduction", "short", 4), marks("deduction", "novel", 0, greedy=False),
    marks("abduction", "short", 2, greedy=None), marks("abduction", "novel", 0, greedy=None, graded=0),
]  # fmt: skip


def values(kind: str, band: str) -> dict[str, float]:
    (row,) = (row for row in result.rows(MARKS) if (row.kind, row.band) == (kind, band))
    return {measure: share.value for measure, share in row.estimates.items()}


def test_rows_leave_out_what_the_executor_lost_and_weigh_kinds_alike():
    assert values("deduction", "short") == {"greedy": 1.0, "accuracy": 0.75, "pass@8": 1.0}
    assert values("deduction", "all") == pytest.approx({"greedy": 2 / 3, "accuracy": 0.5, "pass@8": 2 / 3})
    assert values("abduction", "all") == {"accuracy": 0.25, "pass@8": 1.0}
    assert values("abduction", "novel") == {}
    assert values("all", "all") == pytest.approx({"greedy": 2 / 3, "accuracy": (0.5 + 0.25) / 2, "pass@8": 5 / 6})


def test_metrics_have_intervals_for_kinds_and_names_that_are_paths():
    named = result.metrics(result.rows(MARKS))
    assert named["deduction/short/accuracy"] == 0.75
    assert named["mean/accuracy"] == pytest.approx(0.375)
    assert named["deduction/accuracy_low"] <= named["deduction/accuracy"] <= named["deduction/accuracy_high"]


def test_the_table_and_the_file_say_the_same(tmp_path: Path):
    rows = result.rows(MARKS)
    shown = result.table(rows).splitlines()
    assert shown[0].split() == ["kind", "band", "tasks", "greedy", "accuracy", "pass@8"]
    assert shown[1].startswith("deduction  short      2  100.0% [100.0, 100.0]")
    assert len({len(line) for line in shown}) == 1
    result.write(tmp_path / "new" / "exam.json", {"model": "m"}, MARKS, rows)
    tree = json.loads((tmp_path / "new" / "exam.json").read_text())
    assert tree["model"] == "m" and len(tree["marks"]) == len(MARKS)
    assert tree["rows"][0]["estimates"]["accuracy"]["value"] == 0.75


def test_a_part_is_the_same_every_time_and_spread_over_the_bands():
    paper = tuple(question("deduction", n, band) for band in ("short", "long") for n in range(10)) + tuple(
        question("induction", n) for n in range(3)
    )
    asked = part(paper, 4)
    assert asked == part(paper, 4)
    assert [q.band for q in asked[:4]] == ["short", "short", "long", "long"] and len(asked) == 7
    assert part(paper, 100) == paper


def with_exam(**options) -> Config:
    return replace(CONFIG, run=RunConfig(steps=10), eval=EvalConfig(**options))


def test_exams_are_at_the_start_every_few_steps_and_at_the_end():
    exam = InRunExam(with_exam(every=4), CODEC)
    assert [step for step in range(11) if exam.due(step, last=step == 10)] == [0, 4, 8, 10]
    assert not any(InRunExam(with_exam(), CODEC).due(step, last=step == 10) for step in range(11))
    assert len(exam.paper) == 3 * 64 and len(exam.programs) > 600


def test_a_run_without_an_exam_refuses_no_program():
    exam = InRunExam(with_exam(path=None), CODEC)
    assert not exam.programs and not exam.paper
    with pytest.raises(ValueError, match=r"exam\.path is none"):
        InRunExam(with_exam(path=None, every=1), CODEC)


def test_questions_must_fit_into_prompts():
    small = replace(with_exam(every=1), rollout=RolloutConfig(max_prompt_tokens=50))
    with pytest.raises(ValueError, match=r"has \d+ tokens, but rollout\.max_prompt_tokens is 50; raise it"):
        InRunExam(small, CODEC)


async def test_a_run_gets_metrics_of_its_part():
    exam = InRunExam(with_exam(every=4, tasks_per_kind=2, samples=1), CODEC)
    async with SandboxPool(CONFIG.executor) as pool:
        found = await exam.take(Model(RIGHT, [""]), pool)
    assert {"mean/accuracy", "mean/accuracy_low", "deduction/greedy", "induction/short/accuracy"} <= found.keys()
    assert "mean/pass@8" not in found
