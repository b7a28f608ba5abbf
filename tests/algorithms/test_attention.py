import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AttentionInterface, Qwen2ForCausalLM

from azr.algorithms import attention
from azr.algorithms.attention import PADDED, VARLEN, Segments
from azr.algorithms.packing import pack, packed_length, padded_to
from azr.errors import UserError
from tests.runs.factory import completion

from .tiny import completions, groups, score, tiny_config, tiny_policy


@pytest.fixture(autouse=True, params=[256, 0], ids=["short", "long"])
def threshold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs through both ways to attend on a CPU."""
    monkeypatch.setattr(attention, "SHORT", request.param)


@pytest.mark.parametrize("mask", [None, torch.ones(9, 9, dtype=torch.bool).tril().triu(-2)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_both_ways_to_attend_agree(mask: torch.Tensor | None, scale: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    results = []
    shapes = ((2, 6, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8))
    values = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    for attend in (attention.attn_sdpa, attention.attn_matmul):
        inputs = [value.clone().requires_grad_() for value in values]
        out = attend(*inputs, mask, scale)
        out.square().sum().backward()
        results.append([out, *(x.grad for x in inputs)])
    for sdpa, matmul in zip(*results, strict=True):
        torch.testing.assert_close(sdpa, matmul, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sliding_window", [None, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_a_packed_stream_equals_transformers_one_sample_at_a_time(sliding_window: int | None, tied: bool) -> None:
    samples = completions(7)
    config = tiny_config(tied=tied, attention="eager", sliding_window=sliding_window)
    torch.manual_seed(0)
    plain = Qwen2ForCausalLM(config).eval()
    packed = tiny_policy(tied=tied, sliding_window=sliding_window).float()
    packed.hf.load_state_dict(plain.state_dict())
    expected = []
    for c in samples:
        ids = torch.tensor([c.token_ids])
        logprobs = plain(ids).logits[0].log_softmax(-1)
        expected.append(logprobs[len(c.prompt_ids) - 1 : -1].gather(1, ids[0, len(c.prompt_ids) :, None]).squeeze(1))
    order = [3, 0, 6, 2, 5, 1, 4]
    logprobs, _ = score(packed, pack([samples[i] for i in order]))
    torch.testing.assert_close(logprobs, torch.cat([expected[i] for i in order]), rtol=0, atol=2e-6)


@pytest.mark.parametrize("sliding_window", [None, 4])
def test_samples_that_share_their_prompt_get_the_same_logprobs_and_gradients(sliding_window: int | None) -> None:
    samples = groups(3, 4)
    random.Random(0).shuffle(samples)
    apart, together = tiny_policy(sliding_window=sliding_window), tiny_policy(sliding_window=sliding_window)
    batch = pack(samples)
    assert len(batch.token_ids_T) == packed_length(samples) < len(batch.unshared_index_E)
    expected = torch.cat([torch.stack(score(apart, pack([sample])), -1) for sample in samples])
    found = torch.stack(score(together, batch), -1)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    weights = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for result in (expected, found):
        (weights * result).sum().backward()
    for one, other in zip(apart.parameters(), together.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("samples", [groups(3, 4), []], ids=["shared prompts", "dummy"])
@pytest.mark.parametrize("multiple", [1, 8, 128])
def test_a_stream_that_is_rounded_up_gives_the_same_logprobs_and_gradients(samples, multiple) -> None:
    apart, together, batch = tiny_policy(), tiny_policy(), pack(samples)
    rounded = padded_to(batch, multiple)
    assert len(rounded.token_ids_T) % multiple == 0 <= len(rounded.token_ids_T) - len(batch.token_ids_T) < multiple
    assert rounded.cu_seqlens.dtype == torch.int32 and rounded.cu_seqlens[-1] == len(rounded.unshared_index_E)
    results = [torch.stack(score(model, each), -1) for model, each in ((apart, batch), (together, rounded))]
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)
    for result in results:
        result.square().sum().backward()
    for one, other in zip(apart.parameters(), together.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)


def test_gradient_checkpointing_changes_nothing() -> None:
    batch = pack(completions(5))
    grads = []
    for checkpointing in ("none", "selective", "full"):
        model = tiny_policy(gradient_checkpointing=checkpointing).train()
        kept = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logprobs = score(model, batch)[0]
        logprobs.sum().backward()
        grads.append((kept, [p.grad for p in model.parameters()]))
    (all_kept, plain), (some_kept, selective), (least_kept, full) = grads
    assert all_kept > some_kept > least_kept
    for one, *others in zip(plain, selective, full, strict=True):
        assert all(torch.equal(one, other) for other in others)


def test_padding_adds_little_to_the_work() -> None:
    torch.manual_seed(0)
    lengths = torch.randint(1, 2000, (200,))
    borders = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    segments = Segments.of(borders, torch.arange(int(borders[-1])))
    for bucket in segments.buckets:
        assert len(bucket.cells) >= 0.8 * bucket.query_BQ.numel()
    assert len(segments.buckets) <= 35 and segments.max_keys == int(lengths.max())
    found = torch.cat([b.query_BQ.flatten()[b.cells] for b in segments.buckets])[segments.unpad_index_T]
    assert torch.equal(found, torch.arange(int(lengths.sum())))


@pytest.mark.parametrize("shared", [False, True])
def test_the_flash_path_traces_with_the_kernel_s_own_shape_rules(shared: bool) -> None:
    """No GPU is needed on torch's meta device: shapes, types and arguments of the real operator are checked."""
    model = tiny_policy(attention=VARLEN).bfloat16().to("meta")
    batch = pack(groups(2, 3)[:5] if shared else completions(5))
    segments = Segments.of(batch.cu_seqlens, batch.unshared_index_E)
    assert (segments.key_index_E is not None) == shared
    hidden = model.hf.model(
        input_ids=batch.token_ids_T.to("meta")[None],
        position_ids=batch.position_ids_T.to("meta")[None],
        use_cache=False,
        segments=replace(
            segments,
            cu_queries=segments.cu_queries.to("meta"),
            cu_keys=segments.cu_keys.to("meta"),
            key_index_E=segments.key_index_E.to("meta") if shared else None,
        ),
    ).last_hidden_state
    assert hidden.shape == (1, len(batch.token_ids_T), 32)


def attend_one_by_one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, window: tuple[int, int], scale: float | None
) -> torch.Tensor:
    """What flash kernels compute between borders of queries and keys: the last query sees all keys of its sample."""
    assert len(q) == int(segments.cu_queries[-1]) and len(k) == len(v) == int(segments.cu_keys[-1])
    pieces = []
    queries, keys = segments.cu_queries.tolist(), segments.cu_keys.tolist()
    for (q0, q1), (k0, k1) in zip(pairwise(queries), pairwise(keys), strict=True):
        assert 0 < q1 - q0 <= segments.max_queries and k1 - k0 <= segments.max_keys
        distance = torch.arange(q0 - q1, 0)[:, None] - torch.arange(k0 - k1, 0)[None, :]
        mask = (distance >= 0) & (distance <= (window[0] if window[0] >= 0 else k1 - k0))
        q_HQD, k_HLD, v_HLD = (x.transpose(0, 1)[None] for x in (q[q0:q1], k[k0:k1], v[k0:k1]))
        out = F.scaled_dot_product_attention(q_HQD, k_HLD, v_HLD, attn_mask=mask, scale=scale, enable_gqa=True)
        pieces.append(out[0].transpose(0, 1))
    return torch.cat(pieces)


AttentionInterface.register("one_by_one", attention._flat_attention(attend_one_by_one))


@pytest.mark.parametrize("sliding_window", [None, 4])
@pytest.mark.parametrize("shared", [False, True])
def test_queries_of_the_stream_and_gathered_keys_give_the_same_logprobs_and_gradients(sliding_window, shared) -> None:
    samples = groups(3, 4) if shared else completions(7)
    random.Random(0).shuffle(samples)
    if shared:
        samples.append(replace(samples[0], response_ids=(), logprobs=0.0, weight_versions=0))
    batch, results = pack(samples), []
    for name in (PADDED, "one_by_one"):
        model = tiny_policy(sliding_window=sliding_window, attention=name)
        found = torch.stack(score(model, batch), -1)
        found.square().sum().backward()
        results.append([found, *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_attention_keeps_no_copy_of_queries_and_output_for_each_sample_of_a_prompt() -> None:
    """Two prompts of 2,300 tokens with 60 answers of 180 each, 28 query heads and 4 key heads, as in 7B."""
    prompts = [tuple(range(n, n + 2300)) for n in range(2)]
    samples = [completion((5,) * 180, prompt) for prompt in prompts for _ in range(60)]
    batch = pack(samples)
    segments = Segments.of(batch.cu_seqlens, batch.unshared_index_E, "meta", padded=False)
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    tokens = len(batch.token_ids_T)
    layer = torch.nn.Module()
    layer.is_causal = True
    q, k, v = (
        torch.empty(1, heads, tokens, 128, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for heads in (28, 4, 4)
    )
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out, _ = AttentionInterface()[VARLEN](layer, q, k, v, None, segments=segments)
    assert out.shape == (1, tokens, 28, 128)
    every = len(batch.unshared_index_E)
    assert (tokens, every) == (26_200, 297_600)
    nbytes = sum(storage.nbytes() for storage in kept.values())
    assert nbytes == pytest.approx(2 * 128 * (2 * 28 * tokens + 2 * 4 * every), rel=0.02)
    assert nbytes < 0.21 * 2 * 128 * (2 * 28 + 2 * 4) * every, "what laying all of it out would keep"


ARGUMENTS = {
    "softcap": 50.0, "s_aux": torch.zeros(4), "position_bias": torch.zeros(1), "head_mask": torch.ones(4),
    "is_causal": False, "dropout": 0.1, "attention_mask": torch.zeros(1), "what_comes_next_year": True,
}  # fmt: skip


def attend(name: str, is_causal: bool = True, head: int = 8, **arguments: object) -> torch.Tensor:
    """One call of an attention function as a model makes it."""
    layer = torch.nn.Module()
    layer.is_causal = is_causal
    segments = Segments.of(torch.tensor([0, 3], dtype=torch.int32), torch.arange(3))
    heads = torch.randn(1, 4, 3, head, generator=torch.Generator().manual_seed(0))
    given = {"attention_mask": None, "segments": segments, **arguments}
    out, _ = AttentionInterface()[name](layer, heads, heads, heads, **given)
    return out


@pytest.mark.parametrize("name", [PADDED, VARLEN])
def test_arguments_that_would_change_the_result_and_layers_that_look_ahead_are_refused(name: str) -> None:
    for argument, given in ARGUMENTS.items():
        with pytest.raises(UserError, match=f"Module asks its attention for {argument}"):
            attend(name, **{argument: given})
    with pytest.raises(UserError, match="is_causal=False"):
        attend(name, is_causal=False)
    # Those that change nothing pass.
    plain = attend(PADDED)
    arguments = {
        "position_ids": torch.arange(3), "use_cache": False, "is_causal": True, "dropout": 0.0, "softcap": None,
    }  # fmt: skip
    assert torch.equal(plain, attend(PADDED, **arguments))
    for wide in ({"head": 512}, {"head": 512, "sliding_window": 2, "scaling": 1.0}):  # beyond flash kernels
        assert torch.equal(attend(VARLEN, **wide), attend(PADDED, **wide))


def test_samples_of_a_shared_prompt_ask_for_their_responses_alone() -> None:
    samples = [replace(each, prompt_ids=np.resize(each.prompt_ids, 300)) for each in groups(3, 16)]
    batch = pack(samples)
    segments = Segments.of(batch.cu_seqlens, batch.unshared_index_E)
    asked = sum(bucket.query_BQ.numel() for bucket in segments.buckets)
    assert len(batch.token_ids_T) <= asked <= 2 * len(batch.token_ids_T) < len(batch.unshared_index_E) / 2
