"""Rows are answered by a scripted sampler, or by traces, and graded by the real graders in processes and sandboxes."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from azr.config import Config, DataConfig, ExecutorConfig, RewardConfig, RolloutConfig
from azr.datasets.choice import load_rows
from azr.datasets.play import DataPlay
from azr.datasets.rows import DataRow, RowOrder, grader_names
from azr.errors import UserError
from azr.evaluation.periodic import AnswerExecutor
from azr.graders import open_graders
from azr.prompts.codec import PromptCodec
from azr.records import NO_ROWS_TAKEN, Completion, Judgement, RowsLeft, Sample
from azr.runs.metrics import malformed_share, sampled_tokens
from azr.selfplay.play import StepResult
from azr.selfplay.rewards import can_teach, mark_unlearnable_group
from tests import chat_tokenizers
from tests.datasets.test_rows import write
from tests.mistakes import mistake
from tests.runs.factory import completion, sample

PROGRAM = "def f(a):\n    return a + 1"
ROWS = [
    {"id": "sum", "prompt": "2 + 2? In \\boxed{}.", "grader": "math", "answer": "4", "source": "sums"},
    {"id": "pick", "prompt": "A or B?", "grader": "choice", "answer": "B", "options": ["x", "y"], "source": "picks"},
    {"id": "call", "prompt": "Write f.", "grader": "calls", "entry": "f", "inputs": [[1], [2]], "outputs": [2, 3]},
    {"id": "echo", "prompt": "Echo.", "grader": "stdin", "inputs": ["5\n"], "outputs": ["5\n"]},
    {"id": "value", "prompt": "f(1)?", "grader": "value", "program": PROGRAM, "input": "1", "output": "2"},
]
RIGHT = {
    "sum": r"\boxed{4}", "pick": "The answer is B.", "call": f"```python\n{PROGRAM}\n```",
    "echo": "```python\nprint(input())\n```", "value": "```output\n2\n```",
}  # fmt: skip
WRONG = {
    "sum": r"\boxed{5}", "pick": "The answer is A.", "call": "```python\ndef f(a):\n    return a\n```",
    "echo": "```python\nprint(6)\n```", "value": "```output\n3\n```",
}  # fmt: skip


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
        reason = "stop" if ends else "length"
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
        played, again = [await data.play(step, Sampler(codec).generate, lambda name: nullcontext()) for step in (1, 2)]
    assert len(played.samples) == 20 and {each.used for each in played.samples} == {"trained"}
    for row in ROWS:
        group = [each for each in played.samples if each.group == f"data:0:{row['id']}"]
        assert {(each.role, each.kind, each.problem_id) for each in group} == {
            ("solver", row.get("source", "data"), row["id"])
        }
        outcomes = Counter(each.judgement.verdict for each in group)
        assert outcomes == {"right": 1, "wrong": 1, "malformed": 2}, (row["id"], outcomes)
        assert sorted(each.reward for each in group) == [-0.25, -0.25, 0.0, 1.0]
        assert sum(each.accuracy for each in group) == 1.0
        cut_off = [each for each in group if each.completion.finish_reason == "length"]
        assert [each.reward for each in cut_off] == [-0.25]
        assert cut_off[0].judgement.detail.startswith("cut off after")
        reasons = {each.judgement.reason for each in group if each.verdict == "malformed"}
        assert reasons == {"unclosed_thinking", "cut_off"}
    assert malformed_share(played.samples, "solver") == 0.5
    assert {each.group.split(":")[1] for each in again.samples} == {"1"}, "another epoch makes other groups"


def test_prompts_that_do_not_fit_are_counted_and_never_cut(config: Config, codec: PromptCodec, tmp_path: Path):
    long = {**ROWS[0], "id": "long", "prompt": "How many? " * 200}
    some = replace(config, data=replace(config.data, path=str(write(tmp_path / "some.jsonl", *ROWS, long))))
    rows, notes = load_rows(some, codec)
    assert [row.question.id for row in rows] == [row["id"] for row in ROWS]
    assert len(notes) == 1 and notes[0].startswith("1 of 6 rows of ") and "over 400 tokens" in notes[0]
    none = replace(config, data=replace(config.data, path=str(write(tmp_path / "none.jsonl", long))))
    with mistake("rollout.max_prompt_tokens", says="Every prompt of "):
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
            return await played.play(step, Uniform(codec, times).generate, lambda name: nullcontext())

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
    assert [int(id) for id in left.ids] == dealt[fewest:], "the next step takes the next row, a resumed one too"
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
            samples.append(sample("solver", "sums", judgement=judged, accuracy=accuracy, used=used))
        return samples

    for teaches, grades in (
        (True, [(0.0, 0.3), (0.0, 0.7)]), (True, [(1.0, 1.0), (0.0, None)]), (False, [(0.0, 0.3), (0.0, 0.3)]),
        (False, [(1.0, None), (None, None)]), (False, []), (False, [(None, None)]),
    ):  # fmt: skip
        samples = group(*grades)
        assert can_teach(samples) == teaches
        kept = "trained"
        if not teaches:
            kept = "unlearnable"
            mark_unlearnable_group(samples)
        assert [each.used for each in samples] == [kept if a is not None else "ungraded" for a, _ in grades]


SUM = ROWS[0]
SOLVED, UNSOLVED = "<think>\nTwo and two.</think>\\boxed{4}", "<think>\nOne.</think>\\boxed{3}"


class Continuing:
    """Goes on with a wrong answer, and remembers what it was asked."""

    def __init__(self, codec: PromptCodec) -> None:
        self.codec, self.asked = codec, list[tuple[list[int], int, int]]()

    async def generate(self, prompt_ids, *, n: int, max_tokens: int, **options: Any) -> list[Completion]:
        self.asked.append((list(map(int, prompt_ids)), n, max_tokens))
        ids = [*self.codec.encode("5"), self.codec.stops.token_ids[0]]
        return [completion(ids, prompt_ids, logprobs=-1.5, versions=3) for _ in range(n)]


async def play_row(
    config: Config, codec: PromptCodec, folder: Path, row: dict[str, Any], step: int = 1, **change: Any
) -> tuple[StepResult, Continuing]:
    data = DataConfig(path=str(write(folder / "rows.jsonl", row)), prompts=1, **change)
    config, sampler = replace(config, data=data), Continuing(codec)
    rows, _ = load_rows(config, codec)
    async with open_graders(grader_names(rows), answers=partial(AnswerExecutor, config)) as graders:
        order = order_of(rows)
        order.take(1, step - 1) if step > 1 else None
        played = DataPlay(config=config, codec=codec, rows=rows, graders=graders, order=order)
        return await played.play(step, sampler.generate, lambda name: nullcontext()), sampler


def by_origin(played: StepResult, origin: str) -> list[Sample]:
    return [each for each in played.samples if each.origin == origin]


async def test_a_trace_takes_the_place_of_one_answer(config, codec, tmp_path) -> None:
    row = {**SUM, "traces": [SOLVED, UNSOLVED]}
    played, sampler = await play_row(config, codec, tmp_path, row, samples=3, traces=1)
    (trace,), sampled = by_origin(played, "trace"), by_origin(played, "sampled")
    assert len(sampled) == 3 and {each.group for each in played.samples} == {"data:0:sum"}
    text = codec.decode(trace.completion.response_ids)
    assert text == SOLVED.removeprefix("<think>") + "<|im_end|>", "the prompt has opened the thinking"
    assert trace.completion.response_ids[-1] in codec.stops.token_ids
    assert trace.reward == 1.0 and trace.accuracy == 1.0 and not trace.completion.logprobs.any()
    assert trace.trace_tokens == len(trace.completion.response_ids)
    assert np.array_equal(trace.completion.prompt_ids, sampled[0].completion.prompt_ids)
    assert [(n, most) for _, n, most in sampler.asked] == [(3, 100)], "a trace is not sent to an engine"
    assert played.data == {"epoch": 0, "rows": 1, "traces": 1, "long_traces": 0, "long_prompts": 0}
    later, _ = await play_row(config, codec, tmp_path, row, step=2, samples=3, traces=1)
    assert [each.reward for each in by_origin(later, "trace")] == [0.0], "the next epoch takes the next trace"
    lacking, _ = await play_row(config, codec, tmp_path, {**SUM, "traces": [SOLVED]}, samples=3, traces=2)
    assert [each.origin for each in lacking.samples].count("sampled") == 4 and len(lacking.samples) == 5


def load(config: Config, codec: PromptCodec, folder: Path, *rows: dict[str, Any], **change: Any) -> list[str]:
    data = DataConfig(path=str(write(folder / "rows.jsonl", *rows)), **change)
    return load_rows(replace(config, data=data), codec)[1]


def test_fields_that_nothing_reads_and_prompts_that_ask_for_no_form_are_named_once(config, codec, tmp_path) -> None:
    asks = {**SUM, "level": 1}, {**SUM, "id": "x", "prompt": "2 + 2? #### ends it.", "by": "Ann", "none": None}
    (note,) = load(config, codec, tmp_path, *asks)
    assert note.startswith("nothing reads these fields of ") and note.endswith("rows.jsonl: by, level")
    rows = SUM, {**SUM, "id": "plain", "prompt": "2 + 2?"}, {**ROWS[4], "prompt": "f(1)?"}
    (note,) = load(config, codec, tmp_path, *rows)
    assert note.startswith("1 of the first 2 prompts for the grader math do not say where the answer is to be")
    assert load(replace(config, reward=replace(config.reward, format="thought")), codec, tmp_path, *rows) == []


def test_rows_without_traces_and_traces_that_close_no_thinking_are_counted_or_refused(config, codec, tmp_path) -> None:
    rows = SUM, {**SUM, "id": "traced", "traces": [SOLVED]}
    (note,) = load(config, codec, tmp_path, *rows, samples=2, traces=1)
    assert note.startswith("1 of 2 rows of ") and note.endswith("the policy answers once more for each that is lacking")
    (note,) = load(config, codec, tmp_path, *rows, samples=0, traces=1)
    assert note.endswith("are left out: they have no traces")
    for samples in (0, 3):
        with mistake("data.traces", says="No row of "):
            load(config, codec, tmp_path, SUM, samples=samples, traces=1)
    spoken = {**SUM, "traces": ["It is \\boxed{4}."]}
    note = load(config, codec, tmp_path, spoken, traces=1)[0]
    assert "rows.jsonl has </think>, and prompts end with <think>: traces are learned as thoughts" in note
    notes = load(config, codec, tmp_path, spoken, {**SUM, "id": "x", "traces": [SOLVED]}, traces=1)
    assert not any("never end" in note for note in notes)
    assert load(config, codec, tmp_path, spoken, traces=0) == []


def test_malformed_traces_are_counted_and_those_without_tokens_named_by_their_row(config, codec, tmp_path) -> None:
    unboxed = {**SUM, "id": "unboxed", "traces": [SOLVED, "<think>\nTwo.</think>It is 4."]}
    tagged = {**SUM, "id": "tags", "prompt": "2 + 2? In <answer> and </answer>, in \\boxed{}.", "traces": [SOLVED]}
    (note,) = load(config, codec, tmp_path, {**SUM, "traces": [SOLVED]}, unboxed, tagged, samples=2, traces=1)
    assert note.startswith("2 traces of the first 3 rows that have some are malformed by reward.format=strict (")
    assert "1 no box" in note and "1 no answer" in note
    thought = replace(config, reward=replace(config.reward, format="thought"))
    assert load(thought, codec, tmp_path, {**SUM, "traces": [SOLVED]}, unboxed, tagged, samples=2, traces=1) == []
    assert load(config, codec, tmp_path, unboxed, samples=0, traces=1) == [], "nothing is paid"
    rows = {**SUM, "traces": [SOLVED]}, {**SUM, "id": "x", "traces": [SOLVED, "\\boxed{4}<|im_end|>\n"]}
    with pytest.raises(UserError, match=r"rows.jsonl, row 2: a trace holds <\|im_end\|>, which ends a response"):
        load(config, codec, tmp_path, *rows, traces=1)
    load(config, codec, tmp_path, *rows, traces=0)
    words = WordLevel({"<unk>": 0, "</s>": 1, "2": 2, "+": 3, "?": 4}, unk_token="<unk>")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")
    chat_tokenizers.save(fast, tmp_path / "words")
    small = PromptCodec.load(replace(config, model=replace(config.model, path=str(tmp_path / "words"))))
    load(config, small, tmp_path, {**SUM, "traces": ["2 + 2"]}, traces=1)
    with pytest.raises(UserError, match=r"row 1: the model's tokenizer has no tokens for a part of its traces"):
        load(config, small, tmp_path, {**SUM, "traces": ["2 + 2", "2 + 3"]}, traces=1)


def test_a_conversation_that_the_template_cannot_write_is_named_by_its_row(config, tmp_path) -> None:
    refuses = "{{ raise_exception('no system') if messages[0]['role'] == 'system' }}{{ messages[-1]['content'] }}"
    (tmp_path / "template.jinja").write_text(refuses)
    folder = chat_tokenizers.save(chat_tokenizers.chatml(), tmp_path / "model")
    model = replace(config.model, path=str(folder), template=str(tmp_path / "template.jinja"))
    strict = PromptCodec.load(replace(config, model=model))
    turns = [{"role": "system", "content": "Think."}, {"role": "user", "content": "?"}]
    with pytest.raises(UserError, match=r"row 2: The chat template cannot write this conversation: no system"):
        load(config, strict, tmp_path, SUM, {**SUM, "id": "x", "prompt": turns})


async def test_fine_tuning_asks_no_engine_and_long_traces_are_left_out_or_refused(config, codec, tmp_path) -> None:
    row = {**SUM, "traces": [SOLVED, UNSOLVED]}
    played, sampler = await play_row(config, codec, tmp_path, row, samples=0, traces=2)
    assert [each.origin for each in played.samples] == ["trace", "trace"] and sampler.asked == []
    assert sum(sampled_tokens(played.samples).values()) == 0
    row = {**SUM, "traces": ["<think>" + "so " * 200 + "</think>\\boxed{4}"]}
    with mistake("rollout.max_response_tokens", "data.samples", says="Every trace of "):
        await play_row(config, codec, tmp_path, row, samples=0, traces=1)
    played, _ = await play_row(config, codec, tmp_path, row, samples=2, traces=1)
    assert played.data["long_traces"] == 1 and [each.origin for each in played.samples] == ["sampled"] * 3
