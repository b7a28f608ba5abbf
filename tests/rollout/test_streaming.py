"""One engine, one response, token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from azr.config import RolloutConfig
from azr.errors import UserError
from azr.records import Stops
from azr.rollout.streaming import Piece, StreamingEngine

STOPS = Stops(("}",), (294,))
"""A text and a token that a model of random weights writes now and then."""
PROMPT = list(b"def f(x):")


def engine_of(model: Path, max_model_len: int = 512) -> StreamingEngine:
    rollout = RolloutConfig(max_concurrent=1)
    return StreamingEngine(str(model), rollout, stops=STOPS, dtype="float32", seed=1, max_model_len=max_model_len)


@pytest.fixture(scope="module")
def streaming(tiny_model_path: Path) -> Iterator[tuple[asyncio.Runner, StreamingEngine]]:
    engine = engine_of(tiny_model_path)
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        yield runner, engine
        runner.run(engine.shutdown())


async def pieces(
    engine: StreamingEngine, max_tokens: int, temperature: float = 1.0, seed: int | None = None, at_most: int = 1000
) -> list[Piece]:
    got = []
    stream = engine.stream(PROMPT, max_tokens=max_tokens, temperature=temperature, seed=seed)
    async for piece in stream:
        got.append(piece)
        if len(got) == at_most:
            await stream.aclose()
    return got


def ids(got: list[Piece]) -> list[int]:
    return [token_id for piece in got for token_id in piece.token_ids]


def test_greedy_tokens_come_one_by_one_and_are_the_models(streaming, tiny_model_path: Path):
    runner, engine = streaming
    got = runner.run(pieces(engine, 24, temperature=0.0))
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=torch.float32)
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False)[0, len(PROMPT) :]
    assert ids(got) == expected.tolist()
    assert len(got) > 12
    assert [piece.finish_reason for piece in got] == [None] * (len(got) - 1) + ["length"]


def test_a_stop_ends_the_response_and_belongs_to_it(streaming, tiny_model_path: Path):
    runner, engine = streaming
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path)
    ends = set()
    for seed in range(12):
        got = runner.run(pieces(engine, 450, seed=seed))
        last, text = ids(got)[-1], tokenizer.decode(ids(got))
        if got[-1].finish_reason == "stop":
            assert last in (*STOPS.token_ids, tokenizer.eos_token_id) or text.endswith("}")
            assert "}" not in text[:-1]
            ends.add("text" if text.endswith("}") else "token")
    assert ends == {"text", "token"}


def test_the_seed_decides_and_a_closed_stream_leaves_nothing_behind(streaming):
    runner, engine = streaming
    first = ids(runner.run(pieces(engine, 40, seed=3)))
    begun = ids(runner.run(pieces(engine, 40, seed=3, at_most=2)))
    assert 2 <= len(begun) < 40 and begun == first[: len(begun)]  # on a busy machine a piece holds several tokens
    assert ids(runner.run(pieces(engine, 40, seed=3))) == first
    assert ids(runner.run(pieces(engine, 40, seed=4))) != first


def test_what_vllm_refuses_is_told_in_one_sentence(tiny_model_path: Path):
    with pytest.raises(UserError, match=r"vLLM does not start with .*tiny_model.*: .*max_model_len") as refusal:
        asyncio.run(engine_of(tiny_model_path, max_model_len=4096).start())
    assert "\n" not in str(refusal.value)
