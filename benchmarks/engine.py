"""Milliseconds of a decoded token of a full batch: with the executor in the engine's process or in one of its own, with
and without log-probabilities.

python -m benchmarks.engine MODEL OUT.json [--executors uni mp] [--sequences 96 192] [--tokens 256]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from azr.hardware import keep_kernels
from azr.rollout.vllm_adapter import cpu_choices

PROMPT_TOKENS = 32


def measure(model: str, executor: str, sequences: list[int], tokens: int) -> dict[str, float]:
    """By batch and whether there are log-probabilities. Of two runs, the faster one; a CPU's engine is not compiled."""
    keep_kernels()
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    llm = LLM(
        model=model,
        dtype="bfloat16",
        distributed_executor_backend=executor,
        max_model_len=PROMPT_TOKENS + tokens,
        max_num_seqs=max(sequences),
        logprobs_mode="processed_logprobs",
        **(cpu_choices(PROMPT_TOKENS + tokens) if current_platform.is_cpu() else {"gpu_memory_utilization": 0.5}),
    )
    found = {}
    for count in sequences:
        prompts = [{"prompt_token_ids": [5 + (7 * i + j) % 200 for j in range(PROMPT_TOKENS)]} for i in range(count)]
        for name, logprobs in (("with", 0), ("without", None)):
            sampling = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=logprobs)
            times = []
            for _ in range(2):
                started = time.perf_counter()
                llm.generate(prompts, sampling, use_tqdm=False)
                times.append(time.perf_counter() - started)
            found[f"{executor}, {count} sequences, {name} logprobs, ms a token"] = 1e3 * min(times) / tokens
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--executors", nargs="+", choices=("uni", "mp"), default=["uni", "mp"])
    parser.add_argument("--sequences", type=int, nargs="+", default=[96, 192])
    parser.add_argument("--tokens", type=int, default=256, help="of each response")
    options = parser.parse_args()
    if len(options.executors) == 1:
        found = measure(options.model, options.executors[0], options.sequences, options.tokens)
        options.out.write_text(json.dumps(found))
        return
    found = {}
    for executor in options.executors:  # each in a process of its own, which gives the GPU's memory back
        command = [sys.executable, "-m", "benchmarks.engine", options.model, str(options.out), "--executors", executor]
        command += ["--sequences", *map(str, options.sequences), "--tokens", str(options.tokens)]
        subprocess.run(command, check=True)
        found |= json.loads(options.out.read_text())
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
