"""How a packed policy update attends on a CPU: torch's kernel against plain matrix products, by sample length.

python -m benchmarks.attention
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from azr.algorithms import attention

TOKENS, HEADS, KV_HEADS, WIDTH, REPEATS = 4096, 6, 2, 64, 7


def cpu_seconds(attend: Callable[..., Tensor], inputs: list[Tensor]) -> float:
    """Median CPU time of a forward and a backward."""
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        attend(*inputs, None, None).sum().backward()
        times.append(time.process_time() - started)
    return statistics.median(times)


def main() -> None:
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
