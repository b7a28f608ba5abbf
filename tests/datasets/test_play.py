"""Rows are answered by a scripted sampler and graded by the real graders, in their processes and sandboxes."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from azr.config import Config, DataConfig, ExecutorConfig, RewardConfig, RolloutConfig
from azr.datasets.choice import load_rows
from azr.datasets.play import DataPlay
from azr.datasets.rows import DataRow, RowOrder, grader_names
from azr.errors import UserError
from azr.evaluation.graders import open_graders
from azr.evaluation.periodic import AnswerExecutor
from azr.prompts.codec import PromptCodec
from azr.records import NO_ROWS_TAKEN, Completion, FinishReason, Judgement, Reason, Role, RowsLeft, Sample
from azr.runs.metrics import malformed_share
from azr.selfplay.play import StepResult
from azr.selfplay.rewards import can_teach
from tests import chat_tokenizers
from tests.datasets.test_rows import write
from tests.runs.factory import completion, sample

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
    """Answers rightly, wrongly, rightly in thinking that is not closed, and rightly in what is cut off."""

    def __init__(self, codec: PromptCodec) -> None:
        self.codec, self.asked = codec, Counter[str]()

    async def generate(self, prompt_ids, *, n: int, seed: int | None = None, **options: Any) -> list[Completion]:
        text = self.codec.decode(prompt_ids)
        (id,) = (row["id"] for row in ROWS if row["prompt"] in text)
        self.asked[id] += 1
        thought = "The prompt has opened the thinking.</think>"
        answers = [(f"{thought}{RIGHT[id]}", True), (f"{thought}{WRONG[id]}", True), (RIGHT[id], True)]
        answers.append((f"{thought}{RIGHT[id]}", False))
        assert n == len(answers) and seed is not None
        return [self._completion(prompt_ids, text, ends) for text, ends in answers]

    def _completion(self, prompt_ids: list[int], text: str, ends: bool) -> Completion:
        ids = self.codec.encode(text) + [self.codec.stops.token_ids[0]] * ends
        reason = FinishReason.STOP if ends else FinishReason.LENGTH
        return completion(ids, prompt_ids, logprobs=-1.0, finish=reason)


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
    chat_tokenizers.save(chat_tokenizers.chatml(), folder)
    model = replace(config.model, path=str(folder), template="tokenizer", thinking="open")
    return PromptCodec.load(replace(config, model=model))


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory, config: Config) -> PromptCodec:
    return chat_codec(config, tmp_path_factory.mktemp("chatml"))


def order_of(rows: Sequence[DataRow]) -> RowOrder:
    return RowOrder([row.question.id for row in rows], "digest", seed=1)


async def test_every_grader_pays_what_is_right_and_only_that(ray_cluster: None, config: Config, codec: PromptCodec):
    rows, _ = load_rows(config, codec)
    async with open_graders(grader_names(rows), answers=partial(AnswerExecutor, config)) as graders:
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
        reasons = {each.judgement.reason for each in group if each.verdict == "malformed"}
        assert reasons == {Reason.UNCLOSED_THINKING, Reason.CUT_OFF}
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


SUMS = [{"id": f"{i:02d}", "prompt": f"Row {i:02d}: 2 + 2?", "grader": "math", "answer": "4"} for i in range(12)]
TAUGHT = {0: False, 1: True, 2: False}
"""Whether a row is answered rightly and wrongly, by its number modulo 3: the others are all right, or all wrong."""


class Uniform(Sampler):
    """Answers most rows all right or all wrong, after random times."""

    def __init__(self, codec: PromptCodec, times: int) -> None:
        super().__init__(codec)
        self._times = random.Random(times)

    async def generate(self, prompt_ids: list[int], *, n: int, **options: Any) -> list[Completion]:
        await asyncio.sleep(self._times.random() * 0.01)
        row = int(self.codec.decode(prompt_ids).partition("Row ")[2][:2])
        right = [row % 3 == 0 or (row % 3 == 1 and i == 0) for i in range(n)]
        return [self._completion(prompt_ids, rf"Hm.</think>\boxed{{{4 if r else 5}}}", True) for r in right]


@pytest.fixture
async def refilled(config: Config, codec: PromptCodec, tmp_path: Path):
    """Plays a step of rows of two answers each."""
    path = str(write(tmp_path / "rows.jsonl", *SUMS))
    async with open_graders({"math"}, answers=partial(AnswerExecutor, config)) as graders:

        async def play(order: RowOrder, step: int, prompts: int, refill: int, times: int = 0) -> StepResult:
            data = replace(config.data, path=path, prompts=prompts, samples=2)
            changed = replace(config, data=data, rollout=replace(config.rollout, refill=refill))
            rows, _ = load_rows(changed, codec)
            played = DataPlay(config=changed, codec=codec, rows=rows, graders=graders, order=order)
            return await played.play(step, Uniform(codec, times), lambda name: nullcontext())

        yield play


def order_of_sums(left: RowsLeft = NO_ROWS_TAKEN) -> RowOrder:
    return RowOrder([row["id"] for row in SUMS], "digest", 1, left)


async def test_rows_are_asked_until_enough_of_them_teach(refilled):
    dealt = [row for _, row in order_of_sums().take(1, 12)]
    fewest = next(n for n in range(13) if sum(TAUGHT[row % 3] for row in dealt[:n]) == 2)
    assert 2 < fewest < 8, "the seed makes the case"
    orders = [order_of_sums() for _ in range(3)]
    first, *others = [await refilled(each, 1, prompts=2, refill=4, times=i) for i, each in enumerate(orders)]
    assert all(other == first for other in others), "whatever comes in first"
    assert {int(each.problem_id) for each in first.samples} == set(dealt[:fewest]) and first.data["rows"] == fewest
    for each in first.samples:
        assert each.used == ("trained" if TAUGHT[int(each.problem_id) % 3] else "unlearnable")
        assert each.reward is not None
    left = orders[0].left_after(1)
    assert [int(id) for id in left.ids] == dealt[fewest:], "the next step goes on with the next row, a resumed one too"
    later = [await refilled(each, 2, prompts=2, refill=1) for each in (orders[0], order_of_sums(left))]
    assert later[0] == later[1] and {each.used for each in later[0].samples} == {"trained"}
    assert {int(each.problem_id) for each in later[0].samples} == set(dealt[fewest : fewest + 2])


async def test_asking_for_rows_ends_at_its_bound(refilled):
    played = await refilled(order_of_sums(), 1, prompts=6, refill=2)
    assert played.data["rows"] == 12 and len(played.samples) == 24
    taught = Counter(each.group for each in played.samples if each.used == "trained")
    assert len(taught) == 4 and set(taught.values()) == {2}, "no more of the twelve teach"


def test_scores_between_right_and_wrong_can_teach():
    def group(*grades: tuple[float | None, float | None]) -> list[Sample]:
        samples = []
        for accuracy, score in grades:
            judged = Judgement(verdict="right" if accuracy else "wrong", score=score)
            used = "ungraded" if accuracy is None else "trained"
            samples.append(sample(Role.SOLVER, "sums", judgement=judged, accuracy=accuracy, used=used))
        return samples

    for teaches, grades in (
        (True, [(0.0, 0.3), (0.0, 0.7)]), (True, [(1.0, 1.0), (0.0, None)]), (False, [(0.0, 0.3), (0.0, 0.3)]),
        (False, [(1.0, None), (None, None)]), (False, []), (False, [(None, None)]),
    ):  # fmt: skip
        samples = group(*grades)
        assert can_teach(samples) == teaches
        kept = "trained" if teaches else "unlearnable"
        assert [each.used for each in samples] == [kept if a is not None else "ungraded" for a, _ in grades]
