import pytest
import torch

from azr.algorithms.logprobs import Chunks, token_logprobs, token_losses

TOKENS, HIDDEN, VOCAB = 23, 8, 31


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(VOCAB, HIDDEN, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(VOCAB, (TOKENS,), generator=generator)


def full(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, temperature: float, cap: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = hidden @ weight.t()
    logprobs = ((logits if cap is None else cap * (logits / cap).tanh()) / temperature).log_softmax(-1)
    return logprobs.gather(-1, target[:, None]).squeeze(-1), -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("chunk", [1, 7, 23, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("cap", [None, 2.0, 30.0])
def test_chunked_equals_full_in_value_and_gradient(cap: float | None, chunk: int, temperature: float) -> None:
    hidden, weight, target = inputs(torch.float64)
    mix = torch.randn(2, TOKENS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grads = []
    for logprobs, entropy in (
        full(hidden, weight, target, temperature, cap),
        token_logprobs(hidden, weight, target, Chunks(temperature, chunk, cap=cap)),
    ):
        grads.append(
            (logprobs, entropy, *torch.autograd.grad((mix[0] * logprobs + mix[1] * entropy).sum(), (hidden, weight)))
        )
    for expected, got in zip(*grads, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("temperature", "cap"), [(1.0, None), (0.6, None), (0.6, 2.0)])
def test_a_loss_in_the_forward_pass_has_the_same_bits(temperature, cap, dtype, trained, with_entropy) -> None:
    hidden, weight, target = inputs(dtype)
    weight.requires_grad_(trained)
    mix = torch.randn(2, TOKENS, generator=torch.Generator().manual_seed(1))

    def token_loss(logprobs: torch.Tensor, entropy: torch.Tensor, at: slice) -> torch.Tensor:
        loss = (mix[0, at] * logprobs.exp()).sum() / 7
        return loss + (mix[1, at] * entropy.square()).sum() if with_entropy else loss

    def gradients(loss: torch.Tensor) -> list[torch.Tensor | None]:
        hidden.grad = weight.grad = None
        (loss * 2).backward()
        return [hidden.grad, weight.grad]

    with Watch() as apart:
        logprobs, entropy = token_logprobs(hidden, weight, target, Chunks(temperature, 5, cap=cap))
        expected = gradients(token_loss(logprobs, entropy, slice(None)))
    with Watch() as together:
        loss, *scores = token_losses(hidden, weight, target, Chunks(temperature, 5, cap=cap), token_loss)
        got = gradients(loss)
    torch.testing.assert_close(loss, token_loss(logprobs, entropy, slice(None)))
    assert torch.equal(scores[0], logprobs) and torch.equal(scores[1], entropy)
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True) if other is not None)
    assert (got[1] is None) == (expected[1] is None) == (not trained)
    chunks = -(-TOKENS // 5)
    assert (together.products, apart.products) == ((2 + trained) * chunks, (3 + trained) * chunks)


class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts matrix products, and the rows of the largest logits."""

    products, largest = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.products += function is torch.ops.aten.mm.default
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dim() == 2 and out.shape[1] == VOCAB:
            self.largest = max(self.largest, out.shape[0])
        return out


def test_sixteen_bit_weights_give_float32_numbers() -> None:
    hidden, weight, target = inputs(torch.bfloat16)
    logprobs, entropy = token_logprobs(hidden, weight, target, Chunks(1.0, 5, cap=2.0))
    assert logprobs.dtype == entropy.dtype == torch.float32
    expected = full(hidden.float(), weight.float(), target, 1.0, 2.0)
    torch.testing.assert_close((logprobs, entropy), expected, rtol=1e-5, atol=1e-5)
    (logprobs.sum() + entropy.sum()).backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_never_more_logits_than_a_chunk() -> None:
    hidden, weight, target = inputs(torch.float32)
    with Watch() as seen:
        logprobs, entropy = token_logprobs(hidden, weight, target, Chunks(1.0, 4))
        (logprobs.sum() + entropy.sum()).backward()
    assert seen.largest == HIDDEN  # the transposed weight; no logits beyond 4 rows


def test_one_output_alone_has_its_gradient_and_the_entropy_is_left_out_where_it_is_not_wanted() -> None:
    hidden, weight, target = inputs(torch.float64)
    for output in (0, 1):
        assert torch.autograd.gradcheck(
            lambda h, w, at=output: token_logprobs(h, w, target, Chunks(0.8, 5))[at], (hidden, weight)
        )
    both, _ = token_logprobs(hidden, weight, target, Chunks(0.8, 5))
    alone, entropy = token_logprobs(hidden, weight, target, Chunks(0.8, 5), with_entropy=False)
    assert entropy is None and torch.equal(alone, both)
    grads = [torch.autograd.grad(logprobs.sum(), (hidden, weight)) for logprobs in (both, alone)]
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_no_tokens_give_zero_gradients_not_none() -> None:
    hidden, weight, target = inputs(torch.float64)
    logprobs, _ = token_logprobs(hidden[:0], weight, target[:0], Chunks(1.0, 5))
    (logprobs.sum() / 7).backward()
    assert logprobs.shape == (0,) and not weight.grad.any() and not hidden.grad.any()
    hidden.grad = weight.grad = None
    token_losses(hidden[:0], weight, target[:0], Chunks(1.0, 5), lambda *_: 1 / 0)[0].backward()
    assert not weight.grad.any() and not hidden.grad.any()
