"""A deterministic engine answers a prompt to the last bit the same, whatever else it is asked and when."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError

from azr.config import RolloutConfig
from azr.records import Completion
from azr.rollout.engine import RolloutEngine
from tests.recipes import engine_config

pytestmark = pytest.mark.long
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def engine(ray_cluster: None, tiny_model_path: Path) -> Iterator[Any]:
    config = RolloutConfig(max_prompt_tokens=256, max_response_tokens=256)
    engine = ray.remote(RolloutEngine).remote(
        engine_config(tiny_model_path, config, LIMIT_S, "bfloat16", deterministic=True)
    )
    ray.get(engine.start.remote(), timeout=300)
    yield engine
    ray.get(engine.shutdown.remote(), timeout=60)
    ray.kill(engine)


def requests() -> list[dict[str, Any]]:
    """Prompts with common beginnings, one to six samples of each, greedy ones among them."""
    dice = random.Random(0)
    common = [dice.randrange(256) for _ in range(96)]
    return [
        {
            "prompt_ids": common[: 32 * (index % 4)] + [dice.randrange(256) for _ in range(dice.randint(1, 60))],
            "n": 1 if greedy else dice.randint(1, 6), "max_tokens": dice.randint(8, 48),
            "temperature": 0.0 if greedy else 1.0, "seed": 1000 * index,
        }
        for index in range(12)
        for greedy in [index % 5 == 0]
    ]  # fmt: skip


async def ask(engine: Any, prompts: list[dict[str, Any]], wait_s: float) -> list[list[Completion]]:
    """Answers in the order of the requests, which come in a random one, up to `wait_s` seconds apart."""

    async def one(request: dict[str, Any]) -> list[Completion]:
        await asyncio.sleep(wait_s * random.random())
        return await engine.generate.remote(**request)

    order = random.sample(range(len(prompts)), len(prompts))
    answers = await asyncio.gather(*(one(prompts[index]) for index in order))
    return [answer for _, answer in sorted(zip(order, answers, strict=True))]


async def test_order_and_timing_of_requests_change_no_bit(engine: Any) -> None:
    prompts = requests()
    first = [await engine.generate.remote(**request) for request in prompts]
    assert len({tuple(c.response_ids) for answer in first for c in answer}) > len(prompts)
    for wait_s in (0.0, 0.5):
        assert await ask(engine, prompts, wait_s) == first


async def test_a_request_that_is_given_up_leaves_nothing_behind(engine: Any) -> None:
    prompts = requests()[:3]
    first = [await engine.generate.remote(**request) for request in prompts]
    long = engine.generate.remote([1] * 100, n=4, max_tokens=250, temperature=1.0, seed=5)
    await asyncio.sleep(0.05)
    ray.cancel(long)
    with pytest.raises(RayTaskError):
        await long
    assert await ask(engine, prompts, 0.0) == first
    assert await engine.__ray_call__.remote(lambda actor: actor._num_running) == 0
