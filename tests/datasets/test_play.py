"""Rows are answered by a scripted sampler and graded by the real graders, in their processes and sandboxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from azr.config import Config, DataConfig, ExecutorConfig, RewardConfig, RolloutConfig
from azr.datasets.choice import load_rows
from azr.datasets.order import RowOrder
from azr.datasets.play import DataPlay
from azr.datasets.rows import DataRow
from azr.errors import UserError
from azr.evaluation.graders import open_graders
from azr.evaluation.periodic import answer_executor
from azr.prompts.codec import PromptCodec
from azr.records import Completion, FinishReason, Role
from azr.runs.metrics import malformed_share
from tests import chat_tokenizers
from tests.datasets.test_rows import write

PROGRAM = "def f(a):\n    return a + 1"
ROWS = [
    {"id": "sum", "prompt": "2 + 2?", "grader": "math", "answer": "4", "source": "sums"},
    {"id": "pick", "prompt": "A or B?", "grader": "choice", "answer": "B", "options": ["x", "y"], "source": "picks"},
    {"id": "call", "prompt": "Write f.", "grader": "calls", "entry": "f", "inputs": [[1], [2]], "outputs": [2, 3]},
    {"id": "echo", "prompt": "Echo.", "grader": "stdin", "inputs": ["5\n"], "outputs": ["5\n"]},
    {"id": "value", "prompt": "f(1)?", "grader": "value", "program": PROGRAM, "input": "1", "output": "2"},
]
RIGHT = {
    "sum": r"\boxed{4}",
    "pick": "The answer is B.",
    "call": f"```python\n{PROGRAM}\n```",
    "echo": "```python\nprint(input())\n```",
    "value": "```output\n2\n```",
}
WRONG = {
    "sum": r"\boxed{5}",
    "pick": "The answer is A.",
    "call": "```python\ndef f(a):\n    return a\n```",
    "echo": "```python\nprint(6)\n```",
    "value": "```output\n3\n```",
}


class Sampler:
    """Answers rightly, wrongly, without an answer, and with a right one that is cut off."""

    def __init__(self, codec: PromptCodec) -> None:
        self.codec, self.asked = codec, Counter[str]()

    async def generate(
        self, prompt_ids: list[int], *, n: int, max_tokens: int, temperature=None, seed: int | None = None
    ) -> list[Completion]:
        text = self.codec.decode(prompt_ids)
        (id,) = (row["id"] for row in ROWS if row["prompt"] in text)
        self.asked[id] += 1
        answers = [(RIGHT[id], True), (WRONG[id], True), ("", True), (RIGHT[id], False)]
        assert n == len(answers) and seed is not None
        return [self._completion(prompt_ids, text, ends) for text, ends in answers]

    def _completion(self, prompt_ids: list[int], text: str, ends: bool) -> Completion:
        ids = self.codec.encode(text) + [self.codec.stops.token_ids[0]] * ends
        reason = FinishReason.STOP if ends else FinishReason.LENGTH
        return Completion(
            prompt_ids=prompt_ids, response_ids=ids, logprobs=-1.0, finish_reason=reason, weight_versions=0
        )


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("data")
    return Config(
        data=DataConfig(path=str(write(folder / "rows.jsonl", *ROWS)), prompts=5, samples=4),
        reward=RewardConfig(wrong=0.0, malformed=-0.25),
        rollout=RolloutConfig(max_prompt_tokens=400, max_response_tokens=100),
        executor=ExecutorConfig(workers=2),
    )


def chat_codec(config: Config, folder: Path) -> PromptCodec:
    folder.mkdir()
    chat_tokenizers.save(chat_tokenizers.chatml(), folder)
    return PromptCodec.load(
        replace(config, model=replace(config.model, path=str(folder), template="tokenizer", thinking="open"))
    )


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory, config: Config) -> PromptCodec:
    return chat_codec(config, tmp_path_factory.mktemp("tokenizer") / "chatml")


def order_of(rows: Sequence[DataRow]) -> RowOrder:
    return RowOrder([row.question.id for row in rows], "digest", seed=1)


async def test_every_grader_pays_what_is_right_and_only_that(ray_cluster: None, config: Config, codec: PromptCodec):
    rows, _ = load_rows(config, codec)
    async with open_graders({row.grader for row in rows}, answers=partial(answer_executor, config)) as graders:
        data = DataPlay(config=config, codec=codec, rows=rows, graders=graders, order=order_of(rows))
        played, again = [await data.play(step, Sampler(codec), lambda name: nullcontext()) for step in (1, 2)]
    assert len(played.samples) == 20 and {each.used for each in played.samples} == {"trained"}
    for row in ROWS:
        group = [each for each in played.samples if each.group == f"data:0:{row['id']}"]
        assert {(each.role, each.kind, each.problem_id) for each in group} == {
            (Role.SOLVER, row.get("source", "data"), row["id"])
        }
        outcomes = Counter(each.judgement.verdict for each in group)
        assert outcomes == {"right": 1, "wrong": 1, "malformed": 2}, (row["id"], outcomes)
        assert sorted(each.reward for each in group) == [-0.25, -0.25, 0.0, 1.0]
        assert sum(each.accuracy for each in group) == 1.0
        cut_off = [each for each in group if each.completion.finish_reason is FinishReason.LENGTH]
        assert [each.reward for each in cut_off] == [-0.25]
        assert cut_off[0].judgement.detail.startswith("cut off after")
    assert malformed_share(played.samples, Role.SOLVER) == 0.5
    assert {each.group.split(":")[1] for each in again.samples} == {"1"}, "another epoch makes other groups"


def test_prompts_that_do_not_fit_are_counted_and_never_cut(config: Config, codec: PromptCodec, tmp_path: Path):
    long = {**ROWS[0], "id": "long", "prompt": "How many? " * 200}
    some = replace(config, data=replace(config.data, path=str(write(tmp_path / "some.jsonl", *ROWS, long))))
    rows, notes = load_rows(some, codec)
    assert [row.question.id for row in rows] == [row["id"] for row in ROWS]
    assert len(notes) == 1 and notes[0].startswith("1 of 6 rows of ") and "over 400 tokens" in notes[0]
    none = replace(config, data=replace(config.data, path=str(write(tmp_path / "none.jsonl", long))))
    with pytest.raises(UserError, match=r"Every prompt of .* has over rollout.max_prompt_tokens=400 tokens"):
        load_rows(none, codec)
