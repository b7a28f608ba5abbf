"""An engine of two worker processes inside an actor of a placement group, with options of the user's own."""

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import ray
import torch
from ray.exceptions import RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from transformers import AutoModelForCausalLM

from azr.cluster.weight_buckets import WeightBucket
from azr.config import RolloutConfig
from azr.rollout.engine import RolloutEngine
from tests.recipes import engine_config
from tests.rollout.conftest import PROMPT, Served

pytestmark = pytest.mark.long


class TwoWorkers(RolloutEngine):
    """Engine that can give its second worker a damaged bucket."""

    async def load_half_damaged(self, bucket: WeightBucket) -> list[str]:
        """Return what the workers answer to the next call."""
        buckets = [{"bucket": msgspec.msgpack.encode(each)} for each in (bucket, replace(bucket, digest="0" * 64))]
        with pytest.raises(RuntimeError, match="ValueError: weight bucket 0 of version 2 arrived damaged"):
            await self._on_workers("update_weights", list(reversed(buckets)))
        problems: list[str] = await self._llm.collective_rpc("weight_problem", args=("",))
        return problems


async def one_worker_fails(served: Served) -> None:
    """The answer of the other worker is left to no later call, and the next update succeeds."""
    version = served.version + 1
    await served.engine.begin_update.remote(version)
    (bucket,) = served.writer.pack(version, [served.perturbed(2).items()])
    assert all("its digest is" in each for each in await served.engine.load_half_damaged.remote(bucket))
    with pytest.raises(RayTaskError, match=r"without a matching start|must be called before"):
        await served.engine.load_bucket.remote(bucket)
    await served.push(served.perturbed(3))


async def test_two_workers_serve_take_weights_and_count_what_they_do(ray_cluster: None, tiny_model_path: Path) -> None:
    group = placement_group([{"CPU": 1.0}])
    await group.ready()
    # 10 blocks of 32 tokens: room for few of the sequences below, which then take turns.
    few = {"max_concurrent": 16, "engine_options": ("num_gpu_blocks_override:10",)}
    config = RolloutConfig(tensor_parallel=2, max_prompt_tokens=128, max_response_tokens=128, **few)
    strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=0)
    engine = (
        ray.remote(TwoWorkers)
        .options(num_cpus=0.2, scheduling_strategy=strategy)
        .remote(engine_config(tiny_model_path, config, 300.0))
    )
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=torch.float32).eval()
    served = Served(engine, model)
    try:
        start = await asyncio.wait_for(engine.start.remote(), 300)
        assert 0 < start.kv_cache_tokens <= 10 * 32
        assert {"device", "load", "profile", "warm up", "compile"} == start.seconds.keys()
        await served.push(served.perturbed(1))
        completions = await engine.generate.remote(PROMPT, n=6, max_tokens=60, temperature=1.0)
        assert len(completions) == 6
        assert all(served.logprob_error(completion, 1.0) < 1e-4 for completion in completions)
        await one_worker_fails(served)
        counts = await engine.take_counts.remote()
        assert counts["prompt_tokens"] == 6 * len(PROMPT)
        # All but the first sample find the prompt's three full blocks of 32 in the cache, unless it had to go.
        assert 0 < counts["cached_prompt_tokens"] <= 5 * 96
        assert counts["preemptions"] > 0
        assert 0 < counts["recomputed_tokens"] < counts["tokens"]
        # The last token of a sample is never computed; one that was on its way at a preemption is computed twice.
        sampled = sum(len(completion.response_ids) - 1 for completion in completions)
        computed = counts["prompt_tokens"] - counts["cached_prompt_tokens"] + counts["recomputed_tokens"] + sampled
        assert abs(computed - counts["tokens"]) <= 2 * counts["preemptions"]
    finally:
        served.writer.close()
        await engine.shutdown.remote()
        ray.kill(engine)
        remove_placement_group(group)
