"""An engine without Ray, whose tokens are seen as they come."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from azr.config import RolloutConfig
from azr.errors import UserError
from azr.records import Completion
from azr.rollout.engine import RolloutEngine
from azr.rollout.quiet_start import quiet_start

pytestmark = pytest.mark.long

PROMPT = list(b"def f(x):")


def engine_of(model: Path, max_model_len: int = 512) -> RolloutEngine:
    rollout = RolloutConfig(max_concurrent=1)
    return RolloutEngine(
        str(model), rollout, generate_timeout_s=math.inf, dtype="float32", max_model_len=max_model_len
    )  # fmt: skip


@pytest.fixture(scope="module")
def started(tiny_model_path: Path) -> Iterator[tuple[asyncio.Runner, RolloutEngine]]:
    engine = engine_of(tiny_model_path)
    with asyncio.Runner() as runner:
        with quiet_start(str(tiny_model_path)):
            runner.run(engine.start())
        yield runner, engine
        runner.run(engine.shutdown())


def test_tokens_come_one_by_one_and_are_those_of_the_response(started):
    runner, engine = started
    seen: list[list[int]] = []

    async def sample(at_most: int = 1000) -> Completion:
        seen.clear()

        def look(tokens: Sequence[int]) -> None:
            seen.append(list(tokens))
            if len(seen) == at_most:
                raise asyncio.CancelledError

        (only,) = await engine.generate(PROMPT, n=1, max_tokens=40, seed=3, on_tokens=look)
        return only

    whole = runner.run(sample()).response_ids.tolist()
    assert len(seen) > 12 and seen[-1] == whole
    assert all(tokens == whole[: len(tokens)] for tokens in seen)
    with pytest.raises(asyncio.CancelledError):
        runner.run(sample(at_most=2))
    assert len(seen[-1]) < 40
    assert runner.run(sample()).response_ids.tolist() == whole, "one that was cancelled leaves nothing behind"


def test_what_vllm_refuses_is_told_in_one_sentence(tiny_model_path: Path):
    said = r"vLLM does not start with .*tiny_model.*: .*max_model_len"
    with pytest.raises(UserError, match=said) as refusal, quiet_start(str(tiny_model_path)):
        asyncio.run(engine_of(tiny_model_path, max_model_len=4096).start())
    assert "\n" not in str(refusal.value)
