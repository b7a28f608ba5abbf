"""Traces join a row's group as they are, or as a beginning that the policy goes on from."""

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

from azr.config import Config, DataConfig
from azr.datasets.choice import load_rows
from azr.datasets.play import DataPlay, prefix_share
from azr.datasets.rows import grader_names
from azr.errors import UserError
from azr.evaluation.graders import open_graders
from azr.evaluation.periodic import AnswerExecutor
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Sample
from azr.runs.metrics import sampled_tokens
from azr.selfplay.play import StepResult
from tests import chat_tokenizers
from tests.datasets.test_play import codec as codec
from tests.datasets.test_play import config as config
from tests.datasets.test_play import order_of
from tests.datasets.test_rows import write
from tests.runs.factory import completion

SUM = {"id": "sum", "prompt": "2 + 2?", "grader": "math", "answer": "4", "source": "sums"}
RIGHT, WRONG = "<think>\nTwo and two.</think>\\boxed{4}", "<think>\nOne.</think>\\boxed{3}"


class Sampler:
    """Goes on with a wrong answer, and remembers what it was asked."""

    def __init__(self, codec: PromptCodec) -> None:
        self.codec, self.asked = codec, list[tuple[list[int], int, int]]()

    async def generate(self, prompt_ids, *, n: int, max_tokens: int, **options: Any) -> list[Completion]:
        self.asked.append((list(map(int, prompt_ids)), n, max_tokens))
        ids = [*self.codec.encode("5"), self.codec.stops.token_ids[0]]
        return [completion(ids, prompt_ids, logprobs=-1.5, versions=3) for _ in range(n)]


async def play(
    config: Config, codec: PromptCodec, folder: Path, row: dict[str, Any], step: int = 1, **change: Any
) -> tuple[StepResult, Sampler]:
    data = DataConfig(path=str(write(folder / "rows.jsonl", row)), prompts=1, **change)
    config, sampler = replace(config, data=data), Sampler(codec)
    rows, _ = load_rows(config, codec)
    async with open_graders(grader_names(rows), answers=partial(AnswerExecutor, config)) as graders:
        order = order_of(rows)
        order.take(1, step - 1) if step > 1 else None
        played = DataPlay(config=config, codec=codec, rows=rows, graders=graders, order=order)
        return await played.play(step, sampler, lambda name: nullcontext()), sampler


def by_origin(played: StepResult, origin: str) -> list[Sample]:
    return [each for each in played.samples if each.origin == origin]


async def test_a_whole_trace_takes_the_place_of_one_answer(config, codec, tmp_path) -> None:
    row = {**SUM, "traces": [RIGHT, WRONG]}
    played, sampler = await play(config, codec, tmp_path, row, samples=3, traces=1)
    (trace,), sampled = by_origin(played, "trace"), by_origin(played, "sampled")
    assert len(sampled) == 3 and {each.group for each in played.samples} == {"data:0:sum"}
    text = codec.decode(trace.completion.response_ids)
    assert text == RIGHT.removeprefix("<think>") + "<|im_end|>", "the prompt has opened the thinking"
    assert trace.completion.response_ids[-1] in codec.stops.token_ids
    assert trace.reward == 1.0 and trace.accuracy == 1.0 and not trace.completion.logprobs.any()
    assert trace.trace_tokens == len(trace.completion.response_ids)
    assert np.array_equal(trace.completion.prompt_ids, sampled[0].completion.prompt_ids)
    assert [(n, most) for _, n, most in sampler.asked] == [(3, 100)], "a trace is not sent to an engine"
    assert played.data == {"epoch": 0, "rows": 1, "traces": 1, "long_traces": 0}
    later, _ = await play(config, codec, tmp_path, row, step=2, samples=3, traces=1)
    assert [each.reward for each in by_origin(later, "trace")] == [0.0], "the next epoch takes the next trace"


async def test_for_a_trace_that_a_row_lacks_the_policy_answers_once_more(config, codec, tmp_path) -> None:
    played, _ = await play(config, codec, tmp_path, {**SUM, "traces": [RIGHT]}, samples=3, traces=2)
    assert len(by_origin(played, "sampled")) == 4 and len(played.samples) == 5


def load(config: Config, codec: PromptCodec, folder: Path, *rows: dict[str, Any], **change: Any) -> list[str]:
    data = DataConfig(path=str(write(folder / "rows.jsonl", *rows)), **change)
    return load_rows(replace(config, data=data), codec)[1]


def test_rows_without_traces_are_counted_and_a_file_without_any_is_refused(config, codec, tmp_path) -> None:
    rows = SUM, {**SUM, "id": "traced", "traces": [RIGHT]}
    (note,) = load(config, codec, tmp_path, *rows, samples=2, traces=1)
    assert note.startswith("1 of 2 rows of ") and note.endswith("the policy answers once more for each that is lacking")
    (note,) = load(config, codec, tmp_path, *rows, samples=0, traces=1)
    assert note.endswith("are left out: they have no traces")
    for samples in (0, 3):
        with pytest.raises(UserError, match=r"^No row of .* has traces, and data.traces is 1: prepare them"):
            load(config, codec, tmp_path, SUM, samples=samples, traces=1)


def test_traces_that_close_no_thinking_are_named_where_prompts_open_it(config, codec, tmp_path) -> None:
    spoken = {**SUM, "traces": ["It is \\boxed{4}."]}
    note = load(config, codec, tmp_path, spoken, traces=1)[0]
    assert "rows.jsonl has </think>, and prompts end with <think>: whole traces are learned as thoughts" in note
    notes = load(config, codec, tmp_path, spoken, {**SUM, "id": "x", "traces": [RIGHT]}, traces=1)
    assert not any("never end" in note for note in notes)
    assert load(config, codec, tmp_path, spoken, traces=0) == []


def test_traces_that_the_format_calls_malformed_are_counted_at_the_start(config, codec, tmp_path) -> None:
    unboxed = {**SUM, "id": "unboxed", "traces": [RIGHT, "<think>\nTwo.</think>It is 4."]}
    tagged = {**SUM, "id": "tags", "prompt": "2 + 2? Answer within <answer> and </answer>.", "traces": [RIGHT]}
    (note,) = load(config, codec, tmp_path, {**SUM, "traces": [RIGHT]}, unboxed, tagged, samples=2, traces=1)
    assert note.startswith("2 traces of the first 3 rows that have some are malformed by reward.format=strict (")
    assert "1 no box" in note and "1 no answer" in note
    thought = replace(config, reward=replace(config.reward, format="thought"))
    assert load(thought, codec, tmp_path, {**SUM, "traces": [RIGHT]}, unboxed, tagged, samples=2, traces=1) == []
    assert load(config, codec, tmp_path, unboxed, samples=0, traces=1) == [], "nothing is paid"


def test_a_trace_of_which_the_tokenizer_has_no_tokens_is_named_by_its_row(config, codec, tmp_path) -> None:
    rows = {**SUM, "traces": [RIGHT]}, {**SUM, "id": "x", "traces": [RIGHT, "\\boxed{4}<|im_end|>\n"]}
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


async def test_supervised_fine_tuning_asks_no_engine(config, codec, tmp_path) -> None:
    played, sampler = await play(config, codec, tmp_path, {**SUM, "traces": [RIGHT, WRONG]}, samples=0, traces=2)
    assert [each.origin for each in played.samples] == ["trace", "trace"] and sampler.asked == []
    assert sum(sampled_tokens(played.samples).values()) == 0


async def test_fine_tuning_on_traces_that_are_all_too_long_is_refused(config, codec, tmp_path) -> None:
    row = {**SUM, "traces": ["so " * 400 + "\\boxed{4}"]}
    with pytest.raises(UserError, match=r"^Every trace of .* has over rollout.max_response_tokens=\d+ tokens"):
        await play(config, codec, tmp_path, row, samples=0, traces=1)
    played, _ = await play(config, codec, tmp_path, row, samples=0, traces=1, long_traces="cut")
    assert len(played.samples) == 1


@pytest.mark.parametrize("long_traces", ["drop", "cut"])
async def test_long_traces_are_dropped_or_cut_and_counted(config, codec, tmp_path, long_traces) -> None:
    row = {**SUM, "traces": ["<think>" + "so " * 200 + "</think>\\boxed{4}"]}
    played, _ = await play(config, codec, tmp_path, row, samples=2, traces=1, long_traces=long_traces)
    traces = by_origin(played, "trace")
    assert played.data["long_traces"] == 1 and len(played.samples) == 3
    assert [(len(each.completion.response_ids), each.judgement.verdict) for each in traces] == (
        [(100, "malformed")] if long_traces == "cut" else []
    )


async def test_a_prefix_is_gone_on_from_and_only_what_was_sampled_has_logprobs(config, codec, tmp_path) -> None:
    row = {**SUM, "traces": [RIGHT]}
    shown = {"samples": 1, "traces": 1, "prefix": "linear", "prefix_steps": 4}
    played, sampler = await play(config, codec, tmp_path, row, step=3, **shown)
    (mixed,), (sampled,) = by_origin(played, "prefix"), by_origin(played, "sampled")
    prompt = sampled.completion.prompt_ids.tolist()
    (asked, n, most) = next(each for each in sampler.asked if len(each[0]) > len(prompt))
    count = mixed.trace_tokens
    assert asked == prompt + mixed.completion.response_ids[:count].tolist() and (n, most) == (1, 100 - count)
    assert mixed.completion.prompt_ids.tolist() == prompt
    assert not mixed.completion.logprobs[:count].any() and set(mixed.completion.logprobs[count:]) == {-1.5}
    assert set(mixed.completion.weight_versions[count:]) == {3}
    late, sampler = await play(config, codec, tmp_path, row, step=9, **shown)
    assert {each.origin for each in late.samples} == {"sampled"} and len(sampler.asked) == 2


def test_schedules_of_prefixes() -> None:
    linear = DataConfig(prefix="linear", prefix_steps=10)
    assert [round(prefix_share(linear, step), 2) for step in (1, 6, 11, 99)] == [0.8, 0.4, 0.0, 0.0]
    drawn = [prefix_share(DataConfig(prefix="random"), 1, index) for index in range(500)]
    assert 0.45 < sum(drawn) / 500 < 0.55 and drawn[0] == prefix_share(DataConfig(prefix="random"), 7, 0)
    assert prefix_share(DataConfig(), 5) == 1.0
