"""Profile of one update: a trace for a viewer, and a table of where its time went."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

MATRIX_PRODUCTS = ("gemm", "cutlass", "nvjet", "xmma", "addmm", "::mm", "bmm", "matmul", "linear", "attention", "flash")
"""Parts of the names of operations and kernels that are bound by arithmetic; those of attention among them."""
COMMUNICATION = ("nccl", "c10d", "gloo")


@contextmanager
def profiled(trace: Path, device: torch.device) -> Iterator[dict[str, float]]:
    """Profile the context into the file `trace`, for ui.perfetto.dev; afterwards the dictionary holds `by_phase`."""
    on_gpu = device.type == "cuda"
    phases: dict[str, float] = {}
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]) as recorded:
        started = time.perf_counter()
        yield phases
        if on_gpu:
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
    trace.parent.mkdir(parents=True, exist_ok=True)
    recorded.export_chrome_trace(str(trace))
    phases |= by_phase(((name, ms / 1e3) for name, ms, _ in operations(recorded.key_averages(), on_gpu)), seconds)


def operations(events: Iterable[Any], on_gpu: bool) -> list[tuple[str, float, int]]:
    """Return name, milliseconds and calls of a profile's kernels on a GPU, or else of its operations on the CPU."""
    if on_gpu:
        # An annotation, such as an optimizer's step, spans kernels that are counted themselves.
        alone = (event for event in events if not (event.self_cpu_time_total or event.is_user_annotation))
        kernels = [event for event in alone if event.self_device_time_total]
        return [(event.key, event.self_device_time_total / 1e3, event.count) for event in kernels]
    return [(event.key, event.self_cpu_time_total / 1e3, event.count) for event in events]


def by_phase(operations: Iterable[tuple[str, float]], seconds: float) -> dict[str, float]:
    """Sum up operations, by name and seconds, of an update of that many `seconds`: what is missing is idle.

    Kernels of several streams may run at once, so that a GPU is idle for longer than this says.
    """
    phases = {"matrix products": 0.0, "communication": 0.0, "memory-bound": 0.0}
    for name, its in operations:
        lower = name.lower()
        is_product = any(part in lower for part in MATRIX_PRODUCTS)
        is_message = any(part in lower for part in COMMUNICATION)
        phases["communication" if is_message else "matrix products" if is_product else "memory-bound"] += its
    return phases | {"idle": max(0.0, seconds - sum(phases.values()))}


def table(phases: Mapping[str, float]) -> str:
    """A line per phase: its seconds, and their share of all."""
    everything = sum(phases.values()) or 1.0
    return "\n".join(f"  {name:<16}{spent:9.3f} s {spent / everything:6.1%}" for name, spent in phases.items())
