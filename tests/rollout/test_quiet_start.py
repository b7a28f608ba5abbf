"""An engine without Ray."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from azr.config import RolloutConfig
from azr.errors import UserError
from azr.rollout.engine import RolloutEngine
from azr.rollout.quiet_start import quiet_start

pytestmark = pytest.mark.long

PROMPT = list(b"def f(x):")


def engine_of(model: Path, max_model_len: int = 512) -> RolloutEngine:
    options = {"generate_timeout_s": math.inf, "dtype": "float32", "max_model_len": max_model_len}
    return RolloutEngine(str(model), RolloutConfig(max_concurrent=1), **options)


def test_a_request_that_was_cancelled_leaves_nothing_behind(tiny_model_path: Path):
    engine = engine_of(tiny_model_path)

    async def sample(seconds: float | None = None) -> list[int]:
        async with asyncio.timeout(seconds):
            (only,) = await engine.generate(PROMPT, n=1, max_tokens=400, seed=3)
        return only.response_ids.tolist()

    with asyncio.Runner() as runner:
        with quiet_start(str(tiny_model_path)):
            runner.run(engine.start())
        whole = runner.run(sample())
        with pytest.raises(TimeoutError):
            runner.run(sample(seconds=0.01))
        assert runner.run(sample()) == whole
        runner.run(engine.shutdown())


def test_what_vllm_refuses_is_told_in_one_sentence(tiny_model_path: Path):
    said = r"vLLM does not start with .*tiny_model.*: .*max_model_len"
    with pytest.raises(UserError, match=said) as refusal, quiet_start(str(tiny_model_path)):
        asyncio.run(engine_of(tiny_model_path, max_model_len=4096).start())
    assert "\n" not in str(refusal.value)
