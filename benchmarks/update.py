"""What a policy update costs: forward, backward and optimizer step of random tokens, by kernels and checkpointing.

    python -m benchmarks.update --size 1.5B --kernels plain auto --checkpointing full selective none
    python -m benchmarks.update --size 7B --layers 8 --json update.json

It is the run's own worker with its engine on random weights, without Ray. Every combination of the options
is a process of its own; one that does not fit in memory leaves the others alone. A line holds tokens per second, their
share of the device's peak by 6 operations per parameter and token and with attention's on top, and the peak of memory;
then follow the 15 kernels that took longest. On a CPU only the tiny size is of use, and there is no share.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from azr.algorithms.packing import PackedBatch, pack
from azr.cluster.push_choice import decide_push
from azr.config import AlgorithmConfig, Config, ModelConfig, RolloutConfig, TrainConfig
from azr.hardware import Device
from azr.records import Completion
from azr.train.policy import PolicyWorker
from benchmarks.random_model import SIZES, make

PEAK_TFLOPS = 989.0
"""Of an H100 SXM in bfloat16, dense."""
ROWS = 15


def operations(events: Iterable[Any], on_gpu: bool) -> list[tuple[str, float, int]]:
    """Return name, milliseconds and calls of a profile's kernels on a GPU, or else of its operations on the CPU."""
    if on_gpu:
        # An annotation, such as an optimizer's step, spans kernels that are counted themselves.
        alone = (event for event in events if not (event.self_cpu_time_total or event.is_user_annotation))
        kernels = [event for event in alone if event.self_device_time_total]
        return [(event.key, event.self_device_time_total / 1e3, event.count) for event in kernels]
    return [(event.key, event.self_cpu_time_total / 1e3, event.count) for event in events]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One combination. Where it did not run, `error` says why and all numbers are 0."""

    size: str
    layers: int
    kernels: str
    checkpointing: str
    attention: str
    error: str | None = None
    runs_with: str = ""
    parameters: int = 0
    """That are multiplied: without an input embedding of its own, which with few layers would flatter the share."""
    tokens: int = 0
    """In all micro-batches of a step."""
    seconds: float = 0.0
    """Of a step: the fastest."""
    tokens_per_s: float = 0.0
    share_6n: float = 0.0
    """Of the peak: 6 operations per token and parameter that it is multiplied with; 0 on a CPU."""
    share_with_attention: float = 0.0
    busy_s: float = 0.0
    """Of a step: all kernels together. What is missing to `seconds` the GPU waited; 0 on a CPU."""
    peak_gib: float = 0.0
    """Most bytes of tensors on the GPU; 0 on a CPU."""
    table: list[tuple[str, float, int]] = field(default_factory=list)
    """Kernels of one step, or operations on a CPU, that took longest: name, milliseconds, calls."""
    cpu_table: list[tuple[str, float, int]] = field(default_factory=list)
    """On a GPU: what took the CPU longest meanwhile, under the profiler, which slows it down."""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints and writes every combination; 1 when one failed for another reason than memory."""
    options = _parser().parse_args(argv)
    if options.measure is not None:
        print(json.dumps(asdict(measure(options, Path(options.measure)))))
        return 0
    results = []
    with tempfile.TemporaryDirectory() as folder:
        model = make(options.size, Path(folder, "model"), options.layers)
        torch.cuda.empty_cache()  # the weights were made there
        for kernels, checkpointing, attention in product(options.kernels, options.checkpointing, options.attention):
            results.append(_in_process(options, model, kernels, checkpointing, attention))
            print(_line(results[-1]), flush=True)
            if options.json is not None:  # at once: the rest may be out of time
                options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    for result in results:
        print(f"\n{result.kernels}, {result.checkpointing}, {result.attention}: ms and calls of a step")
        for name, ms, calls in result.table:
            print(f"{ms:10.1f} {calls:6} {name[:100]}")
    return int(any(result.error not in (None, "out of memory") for result in results))


def measure(options: argparse.Namespace, model: Path) -> Result:
    """In this process, which must not have imported DeepSpeed yet: a step to warm up, those measured, one profiled."""
    device: Device = "cuda" if torch.cuda.is_available() else "cpu"
    (kernels,), (checkpointing,), (attention,) = options.kernels, options.checkpointing, options.attention
    os.environ |= {"DS_ACCELERATOR": device, "DS_BUILD_OPS": "0"}
    config = Config(
        model=ModelConfig(path=str(model)),
        train=TrainConfig(
            device=device,
            dtype="bfloat16" if device == "cuda" else "float32",
            tokens_per_micro_batch=options.tokens,
            kernels=kernels,
            gradient_checkpointing=checkpointing,
            attention=attention,
            shard=options.shard,
        ),
        rollout=RolloutConfig(temperature=1.0),
        algorithm=AlgorithmConfig(),
    )
    worker = PolicyWorker("policy", 0, 1, device, decide_push(config, device))
    worker._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    worker.init_process_group(("127.0.0.1", worker._store.port))
    worker.build()
    micros = tuple(_micro_batch(options, seed) for seed in range(options.micro_batches))
    responses = sum(len(micro.target_R) for micro in micros)
    generator = torch.Generator().manual_seed(0)
    columns = {
        "rollout_logprobs": torch.full((responses,), -12.0),
        "advantages": torch.randn(responses, generator=generator),
    }

    def step() -> float:
        started = time.perf_counter()
        worker.update((micros,), (float(responses),), columns)
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = min(step() for _ in range(options.steps))
    activity = torch.profiler.ProfilerActivity
    kinds = [activity.CPU, activity.CUDA] if device == "cuda" else [activity.CPU]
    with torch.profiler.profile(activities=kinds) as profile:
        step()
    events = profile.key_averages()
    dist.destroy_process_group()

    shape = SIZES[options.size]
    layers = options.layers or shape.layers
    everything = sum(p.ds_numel for p in worker.engine.module.parameters())
    parameters = everything - (0 if shape.tied else shape.embedding)
    tokens = sum(len(micro.token_ids_T) for micro in micros)
    # A causal score and its use are 4 operations per pair of tokens and width of the heads, and twice that backwards.
    pairs = sum(int(length) ** 2 / 2 for micro in micros for length in micro.cu_seqlens.diff())
    attending = 3 * 4 * pairs * layers * shape.query
    # The output head is computed for response tokens alone.
    multiplied = 6 * (parameters * tokens - shape.embedding * (tokens - responses))
    peak = options.peak_tflops * 1e12 * seconds if device == "cuda" else float("inf")
    return Result(
        size=options.size,
        layers=layers,
        kernels=kernels,
        checkpointing=checkpointing,
        attention=attention,
        runs_with=worker.computes_with(),
        parameters=parameters,
        tokens=tokens,
        seconds=seconds,
        tokens_per_s=tokens / seconds,
        share_6n=multiplied / peak,
        share_with_attention=(multiplied + attending) / peak,
        busy_s=sum(ms for _, ms, _ in operations(events, True)) / 1e3,
        peak_gib=torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0,
        table=_slowest(events, device),
        cpu_table=_slowest(events, "cpu") if device == "cuda" else [],
    )


def _slowest(events: Any, device: Device) -> list[tuple[str, float, int]]:
    """Kernels on a GPU, operations on a CPU."""
    return sorted(operations(events, device == "cuda"), key=lambda row: -row[1])[:ROWS]


def _micro_batch(options: argparse.Namespace, seed: int) -> PackedBatch:
    """Random samples, as many as fit, each with a prompt of its own and a response of half to all of the longest."""
    dice, vocabulary = random.Random(seed), SIZES[options.size].vocabulary
    samples: list[Completion] = []
    left = options.tokens
    while True:
        response = dice.randint(options.response // 2, options.response)
        if left < options.prompt + response and samples:
            return pack(samples)
        left -= options.prompt + response
        samples.append(
            Completion(
                prompt_ids=tuple(dice.randrange(vocabulary) for _ in range(options.prompt)),
                response_ids=tuple(dice.randrange(vocabulary) for _ in range(response)),
                logprobs=(-12.0,) * response,
                finish_reason="stop",
                weight_versions=0,
            )
        )


def _in_process(options: argparse.Namespace, model: Path, kernels: str, checkpointing: str, attention: str) -> Result:
    given = ["size", "layers", "tokens", "prompt", "response", "micro_batches", "steps", "peak_tflops", "shard"]
    command = [sys.executable, "-m", "benchmarks.update", "--measure", str(model), "--kernels", kernels]
    command += ["--checkpointing", checkpointing, "--attention", attention]
    for name in given:
        if (value := getattr(options, name)) is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return Result(**json.loads(done.stdout.splitlines()[-1]))
    error = "out of memory" if "OutOfMemoryError" in done.stderr else done.stderr.strip()[-2000:]
    layers = options.layers or SIZES[options.size].layers
    names = {"kernels": kernels, "checkpointing": checkpointing, "attention": attention}
    return Result(size=options.size, layers=layers, error=error, **names)


def _line(result: Result) -> str:
    head = f"{result.size} x {result.layers} layers  {result.kernels:6} {result.checkpointing:10} {result.attention:11}"
    if result.error is not None:
        return f"{head} {result.error}"
    return (
        f"{head} {result.tokens_per_s:9,.0f} tokens/s  {result.share_6n:6.1%} of peak (6N)  "
        f"{result.share_with_attention:6.1%} with attention  GPU busy {result.busy_s / result.seconds:4.0%}  "
        f"{result.peak_gib:5.1f} GiB  {result.runs_with}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.update", description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="1.5B" if torch.cuda.is_available() else "tiny")
    parser.add_argument("--layers", type=int, help="another number of layers than the size has")
    parser.add_argument("--kernels", nargs="+", choices=("auto", "liger", "compile", "plain"), default=["auto"])
    parser.add_argument("--checkpointing", nargs="+", choices=("full", "selective", "none"), default=["full"])
    parser.add_argument("--attention", nargs="+", choices=("auto", "flash_attn", "torch"), default=["auto"])
    parser.add_argument("--shard", choices=("auto", "zero3", "none"), default="auto", help="train.shard")
    parser.add_argument("--tokens", type=int, default=16384, help="most of a micro-batch")
    parser.add_argument("--prompt", type=int, default=200, help="tokens of each prompt")
    parser.add_argument("--response", type=int, default=1024, help="tokens of the longest response")
    parser.add_argument("--micro-batches", type=int, default=4, help="of one optimizer step")
    parser.add_argument("--steps", type=int, default=3, help="measured, after one that is not")
    parser.add_argument("--peak-tflops", type=float, default=PEAK_TFLOPS)
    parser.add_argument("--json", type=Path, help="also write all numbers into this file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
