"""A real engine, in float32, against a Hugging Face model with the same weights."""

import asyncio
import time
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from ray.exceptions import RayTaskError

from azr.cluster.weight_transfers import HostOutbox
from azr.rollout.engine import RolloutEngine
from tests.conftest import byte_tokenizer
from tests.rollout.conftest import PROMPT, STOPS, NamedTensors, Served

ENDS = {257, *STOPS.token_ids, byte_tokenizer().convert_tokens_to_ids(STOPS.strings[0])}


async def test_logprobs_are_those_of_the_sampled_tokens_at_the_temperature(served: Served):
    for temperature in (1.0, 0.7):
        completions = await served.engine.generate.remote(PROMPT, n=4, max_tokens=24, temperature=temperature, seed=1)
        assert len(completions) == 4
        assert len({tuple(c.response_ids) for c in completions}) == 4
        for completion in completions:
            assert completion.prompt_ids.tolist() == list(PROMPT)
            assert len(completion.logprobs) == len(completion.response_ids) <= 24
            assert set(completion.weight_versions) == {served.version}
            assert served.logprob_error(completion, temperature) < 1e-4
            assert completion.text == byte_tokenizer().decode(completion.response_ids)


async def test_samples_follow_the_models_distribution(served: Served):
    completions = await served.engine.generate.remote(PROMPT, n=512, max_tokens=1, temperature=1.0)
    drawn = torch.bincount(torch.tensor([c.response_ids[0] for c in completions]), minlength=320) / 512
    with torch.no_grad():
        expected = served.model(torch.tensor([PROMPT])).logits[0, -1].softmax(-1)
    # The expected total variation distance of 512 draws from this distribution is 0.23; from a uniform one 0.5.
    assert float((drawn - expected).abs().sum() / 2) < 0.3


async def test_a_request_may_have_stop_strings_of_its_own(served: Served):
    letters = tuple("abcdefghijklmnopqrstuvwxyz")
    ask = partial(served.engine.generate.remote, PROMPT[:50], n=64, max_tokens=200, temperature=1.0)
    completions, others = await asyncio.gather(ask(stop_strings=letters), ask())
    ends = {int(i) for i in byte_tokenizer().convert_tokens_to_ids(list(letters))}
    ended = [c for c in completions if c.response_ids[-1] in ends]
    assert len(ended) > 5 and {c.finish_reason for c in ended} == {"stop"}
    assert all(not ends & set(c.response_ids[:-1].tolist()) for c in completions)
    assert any(ends & set(c.response_ids[:-1].tolist()) for c in others)


async def test_a_stopped_response_ends_with_an_end_token_or_a_stop_string(served: Served):
    prompt = PROMPT[:50]  # valid UTF-8, as every prompt that was text: else its end is read as the response's beginning
    completions = await served.engine.generate.remote(prompt, n=64, max_tokens=200, temperature=1.0, seed=3)
    reasons = {c.finish_reason for c in completions}
    assert reasons == {"stop", "length"}
    for completion in completions:
        stopped = completion.finish_reason == "stop"
        assert stopped == (completion.response_ids[-1] in ENDS)
        assert not ENDS & set(completion.response_ids[:-1].tolist())
        assert stopped or len(completion.response_ids) == 200
        assert len(completion.logprobs) == len(completion.response_ids)
        assert served.logprob_error(completion, 1.0) < 1e-4
    assert {c.response_ids[-1] for c in completions if c.finish_reason == "stop"} == ENDS


async def test_a_seed_repeats_and_greedy_has_one_answer(served: Served):
    async def sample(n: int, **arguments) -> list[list[int]]:
        answers = await served.engine.generate.remote(PROMPT, n=n, max_tokens=8, **arguments)
        return [c.response_ids.tolist() for c in answers]

    assert await sample(2, temperature=1.0, seed=5) == await sample(2, temperature=1.0, seed=5)
    assert await sample(2, temperature=1.0, seed=5) != await sample(2, temperature=1.0, seed=6)
    assert await sample(1, temperature=0.0) == await sample(1, temperature=0.0)


async def test_long_seeded_prompts_do_not_break_the_engine(served: Served):
    prompts = [[50 + (i * j) % 200 for j in range(250)] for i in range(1, 49)]
    answers = await asyncio.gather(
        *(served.engine.generate.remote(p, n=1, max_tokens=2, temperature=1.0, seed=i) for i, p in enumerate(prompts))
    )
    assert len(answers) == 48


async def test_new_weights_are_served_and_acknowledged_also_of_layers_split_over_buckets(served: Served):
    await served.engine.generate.remote(PROMPT, n=1, max_tokens=4, temperature=1.0)
    # The same prompt as before: a prefix cache that outlived the update would show here.
    await served.push(served.perturbed(1))
    await served.check()
    assert served.version == await served.engine.ping.remote()
    weights = served.perturbed(2)
    names = sorted(weights, key=lambda name: name[::-1])
    tensors = [(name, weights[name]) for name in names]
    # A tied head comes under a name of its own, here long before or after what it is tied to.
    tensors.insert(0, ("lm_head.weight", weights["model.embed_tokens.weight"]))
    # Buckets of one tensor each: every layer is spread over the whole update.
    await served.push(weights, [[each] for each in tensors])
    await served.check()


async def test_buckets_are_loaded_by_index_in_whatever_order_they_come(served: Served):
    version, weights = served.version + 1, served.perturbed(14)
    # A writer overwrites each bucket with the one after the next, so each bucket has a writer of its own here.
    writers = [HostOutbox().open(1 << 18) for _ in HostOutbox().open(1 << 18).pack(version, [weights.items()])]
    buckets = [next(islice(writer.pack(version, [weights.items()]), i, None)) for i, writer in enumerate(writers)]
    assert len(buckets) > 2 and buckets[-1].last
    await served.engine.begin_update.remote(version)
    loading = []
    for bucket in reversed(buckets):
        loading.append(asyncio.ensure_future(served.engine.load_bucket.remote(bucket)))
        await served.engine.ping.remote()
    assert not any(call.done() for call in loading[:-1])
    await asyncio.gather(*loading)
    await served.engine.finish_update.remote(version, buckets[-1].digest)
    served.follow(weights, version)
    await served.check()


async def test_old_and_unannounced_versions_are_refused(served: Served):
    with pytest.raises(RayTaskError, match="not newer"):
        await served.engine.begin_update.remote(served.version)
    (bucket,) = served.writer.pack(served.version + 1, [[("x", torch.ones(1))]])
    with pytest.raises(RayTaskError, match="begin_update first"):
        await served.engine.load_bucket.remote(bucket)
    with pytest.raises(RayTaskError, match="begin_update first"):
        await served.engine.finish_update.remote(served.version + 1, bucket.digest)
    assert await served.engine.generate.remote(PROMPT, n=1, max_tokens=1, temperature=1.0)


async def refuses_to_serve_until_updated(served: Served, seed: int) -> None:
    with pytest.raises(RayTaskError, match="send all weights again"):
        await served.engine.generate.remote(PROMPT, n=1, max_tokens=1, temperature=1.0)
    await served.push(served.perturbed(seed))
    await served.check()


async def test_a_wrong_digest_and_an_incomplete_update_are_refused(served: Served):
    version = (await served.load([served.perturbed(3).items()])).version
    with pytest.raises(RayTaskError, match="digest"):
        await served.engine.finish_update.remote(version, "0" * 64)
    assert await served.engine.ping.remote() < version, "weights that it refuses are not reported as served"
    await refuses_to_serve_until_updated(served, 4)
    weights = served.perturbed(7)
    del weights["model.layers.1.mlp.down_proj.weight"]
    bucket = await served.load([weights.items()])
    with pytest.raises(RayTaskError, match="down_proj"):
        await served.engine.finish_update.remote(bucket.version, bucket.digest)
    await refuses_to_serve_until_updated(served, 8)


@pytest.mark.parametrize("full_check", [False, True])
async def test_a_flipped_byte_is_seen(served: Served, full_check: bool):
    version = served.version + 1
    await served.engine.begin_update.remote(version)
    (bucket,) = served.writer.pack(version, [served.perturbed(12).items()], full_check=full_check)
    served.writer.block.bytes[bucket.start + bucket.padded_nbytes // 2] ^= 16
    with pytest.raises(RayTaskError, match="damaged"):
        await served.engine.load_bucket.remote(bucket)
    await refuses_to_serve_until_updated(served, 13)


async def test_responses_go_on_under_new_weights_with_the_tokens_they_have(served: Served):
    """Each token's log-probability is that of the weights that its version names, given all tokens before it."""
    mixed = 0
    for seed, delay in enumerate((0.1, 0.2, 0.4, 0.8, 1.6)):  # until one meets responses half-way on this machine
        mixed += await interrupted(served, delay, served.perturbed(11 + seed))
        if mixed > 4:
            return
    raise AssertionError(f"only {mixed} responses were interrupted half-way")


async def next_request(served: Served) -> int:
    found: int = await served.engine.__ray_call__.remote(lambda engine: next(engine._request_ids))
    return found


async def interrupted(served: Served, delay: float, weights: NamedTensors) -> int:
    """How many of 32 responses two versions have sampled, after a look at all of them."""
    prompt, before = PROMPT[:50], served.version
    first_id = await next_request(served)
    flying = [served.engine.generate.remote(prompt, n=8, max_tokens=200, temperature=1.0) for _ in range(4)]
    await asyncio.sleep(delay)
    began = time.monotonic()
    await served.engine.begin_update.remote(before + 1)
    assert time.monotonic() - began < 5, "weights do not wait for responses"
    late = [served.engine.generate.remote(prompt, n=2, max_tokens=16, temperature=1.0) for _ in range(2)]
    for bucket in served.writer.pack(before + 1, [weights.items()]):
        await served.engine.load_bucket.remote(bucket)
    await served.engine.finish_update.remote(before + 1, bucket.digest)
    responses = [c for answer in await asyncio.gather(*flying) for c in answer]
    assert len(responses) == 32, "nothing is lost"
    assert await next_request(served) <= first_id + 7, "what runs is kept, not asked for again"
    old_errors = [served.logprob_errors(c, 1.0)[c.weight_versions == before] for c in responses]
    served.model.load_state_dict(weights, strict=False)
    served.version += 1
    new_errors = [served.logprob_errors(c, 1.0)[c.weight_versions == before + 1] for c in responses]
    for errors in (torch.cat(old_errors), torch.cat(new_errors)):
        assert not len(errors) or float(errors.mean()) < 1e-4
    for c in responses:
        assert (np.diff(c.weight_versions) >= 0).all() and set(c.weight_versions.tolist()) <= {before, before + 1}
        stopped = c.finish_reason == "stop"
        assert stopped == (c.response_ids[-1] in ENDS) and not ENDS & set(c.response_ids[:-1].tolist())
        assert stopped or len(c.response_ids) == 200
    after = [c for answer in await asyncio.gather(*late) for c in answer]
    assert all(set(c.weight_versions) == {served.version} and served.logprob_error(c, 1.0) < 1e-4 for c in after)
    return sum(len(old) > 0 and len(new) > 0 for old, new in zip(old_errors, new_errors, strict=True))


async def test_a_sleeping_engine_answers_after_it_woke(served: Served):
    flying = served.engine.generate.remote(PROMPT, n=8, max_tokens=150, temperature=1.0)
    await asyncio.sleep(0.1)
    await served.engine.sleep.remote()
    with pytest.raises(RayTaskError, match="wake"):
        await served.engine.begin_update.remote(served.version + 1)
    answer = asyncio.ensure_future(served.engine.generate.remote(PROMPT, n=1, max_tokens=1, temperature=1.0))
    done, _ = await asyncio.wait([answer], timeout=0.5)
    assert not done
    await served.engine.wake.remote("weights")
    done, _ = await asyncio.wait([answer], timeout=0.5)
    assert not done, "it has no KV cache yet"
    await served.engine.wake.remote("kv_cache")
    assert len(await answer) == 1
    assert max(served.logprob_error(completion, 1.0) for completion in await flying) < 1e-4


async def test_a_pause_does_not_count_as_sampling(served: Served):
    def limit(engine: RolloutEngine, seconds: float) -> None:
        engine._generate_timeout_s = seconds

    await served.engine.__ray_call__.remote(limit, 5.0)
    try:
        flying = served.engine.generate.remote(PROMPT, n=4, max_tokens=150, temperature=1.0)
        await asyncio.sleep(0.1)
        await served.engine.sleep.remote()
        await asyncio.sleep(6)
        for part in ("weights", "kv_cache"):
            await served.engine.wake.remote(part)
        assert len(await flying) == 4
        await served.engine.__ray_call__.remote(limit, 1e-4)
        assert len(await served.engine.generate.remote(PROMPT, n=8, max_tokens=150, temperature=1.0)) < 8
    finally:
        await served.engine.__ray_call__.remote(limit, 1800.0)


async def test_prompts_without_room_and_connections_that_none_needs_are_refused_in_one_sentence(served: Served):
    for prompt in ([], [60] * 512):
        with pytest.raises(RayTaskError, match="a prompt must have 1 to 511 tokens"):
            await served.engine.generate.remote(prompt, n=1, max_tokens=1, temperature=1.0)
    with pytest.raises(RayTaskError, match="HostInbox needs no connection"):
        await served.engine.connect.remote("host", {"address": "here", "timeout_s": 1.0})
    with pytest.raises(RayTaskError, match="group_id"):
        await served.engine.connect.remote("nccl", {"address": "here", "port": 1, "timeout_s": 1.0})
