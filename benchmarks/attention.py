"""How a packed policy update attends, forward and backward, by sample length.

python -m benchmarks.attention

On a CPU: torch's kernel against plain matrix products. On a GPU: torch's flash kernel against FlashAttention 4, with
samples that share prompts, and how far apart outputs and gradients are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from azr.algorithms import attention
from azr.algorithms.kernels import flash_attn_problem
from azr.algorithms.packing import pack
from azr.records import Completion

TOKENS, HEADS, KV_HEADS, WIDTH, REPEATS = 4096, 6, 2, 64, 7


def cpu_seconds(attend: Callable[..., Tensor], inputs: list[Tensor]) -> float:
    """Median CPU time of a forward and a backward."""
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        attend(*inputs, None, None).sum().backward()
        times.append(time.process_time() - started)
    return statistics.median(times)


def compare_on_gpu() -> None:
    """Print milliseconds of both kernels, and the farthest of output and gradients as a share of its norm."""
    print("16,384 tokens, 12 heads of 128, 2 key heads, bfloat16: milliseconds, and the largest relative difference")
    for prompt, response in ((200, 800), (2000, 200)):
        samples = [
            Completion(prompt_ids=(group,) * prompt, response_ids=(1,) * response, logprobs=(-1.0,) * response,
                       finish_reason="stop", weight_versions=0)
            for group in range(16384 // (prompt + 4 * response)) for _ in range(4)
        ]  # fmt: skip
        batch = pack(samples)
        segments = attention.Segments.of(batch.cu_seqlens, batch.unshared_index_E, "cuda", padded=False)
        index = segments.key_index_E
        assert index is not None
        inputs = [
            torch.randn(len(batch.token_ids_T), heads, 128, device="cuda", dtype=torch.bfloat16) for heads in (12, 2, 2)
        ]
        found = {}
        attends = {"torch": attention._attend_torch}
        if (problem := flash_attn_problem()) is None:
            attends["FlashAttention 4"] = attention._attend_flash
        for name, attend in attends.items():
            leaves = [x.clone().requires_grad_() for x in inputs]
            times = []
            for _ in range(REPEATS):
                torch.cuda.synchronize()
                started = time.perf_counter()
                q, k, v = leaves[0], *(x.index_select(0, index) for x in leaves[1:])
                out = attend(q, k, v, segments, (-1, 0), None)
                gradients = torch.autograd.grad(out.float().square().sum(), leaves)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - started)
            found[name] = (1e3 * statistics.median(times), [out.detach(), *gradients])
        (_, first), *others = found.values()
        distances = [
            float((one - other).float().norm() / one.float().norm())
            for _, tensors in others
            for one, other in zip(first, tensors, strict=True)
        ]
        apart = f"{max(distances):.2g} apart" if distances else f"FlashAttention 4 cannot be imported: {problem}"
        times_ms = ", ".join(f"{name} {ms:.2f}" for name, (ms, _) in found.items())
        print(f"prompts of {prompt} with 4 responses of {response}: {times_ms}; {apart}", flush=True)


def main() -> None:
    if torch.cuda.is_available():
        compare_on_gpu()
        return
    torch.set_num_threads(1)
    print(f"{TOKENS} tokens, {HEADS} heads of {WIDTH}, bfloat16, one thread: CPU milliseconds forward and backward")
    print(f"{'length':>8}{'kernel':>10}{'products':>10}{'ratio':>8}")
    for length in (32, 64, 128, 256, 512, 1024):
        shapes = [(TOKENS // length, heads, length, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        inputs = [torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
        kernel, products = (
            1e3 * cpu_seconds(attend, inputs) for attend in (attention.attn_sdpa, attention.attn_matmul)
        )
        print(f"{length:>8}{kernel:>10.1f}{products:>10.1f}{kernel / products:>8.2f}")


if __name__ == "__main__":
    main()
