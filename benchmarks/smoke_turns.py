"""Engines and trainers of a recipe take turns on a GPU many times: does the memory come back, how fast is a turn.

python -m benchmarks.smoke_turns TURNS OUT.json playground.RECIPE [--section.option value ...]

`benchmarks.gpu_smoke` runs it. Beside the turns it measures generation by a full batch, one update on what was
generated, and how far the engine's log-probabilities are from the policy's.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from azr.cli.run import parse
from azr.config import Config
from azr.config_rules import check
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Sample
from azr.runs.metrics import PhaseClock
from azr.system import System
from azr.train.learner import Learner

PROMPT_TOKENS = 512


def gpu_memory_gib() -> float:
    """Of the fullest GPU of this machine, GiB in use by anyone; 0 without one."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        return 0.0
    return max(float(line) for line in answer.split()) / 1024


async def measure(config: Config, turns: int) -> dict[str, float]:
    """Seconds, GiB and tokens per second by name."""
    clock, codec = PhaseClock(), PromptCodec.load(config)
    started = time.perf_counter()
    system = await System.start(config, codec.stops, clock.phase, 0)
    try:
        by_phase = clock.step_timing().seconds
        results = {"start_s": time.perf_counter() - started - by_phase.pop("start Ray")}
        results |= {f"start: {phase}": seconds for phase, seconds in by_phase.items()}
        results |= await take_turns(system, turns, clock)
        completions = await generate(system, config, results)
        await learn(system, config, completions, clock, results)
        return results
    finally:
        await system.stop()


async def take_turns(system: System, turns: int, clock: PhaseClock) -> dict[str, float]:
    """Memory while either side works, first and last, and the median seconds of each turn."""
    learning, playing, to_trainers, to_engines, pushes = [], [], [], [], []
    for version in range(1, turns + 1):
        started = time.perf_counter()
        await system.turns.offload_engines_onload_trainers(clock.phase)
        to_trainers.append(time.perf_counter() - started)
        learning.append(gpu_memory_gib())
        started = time.perf_counter()
        pushed = await system.turns.sync_and_onload_engines(version, clock.phase)
        to_engines.append(time.perf_counter() - started)
        await system.engines.generate([20] * PROMPT_TOKENS, n=1, max_tokens=4)  # it serves again
        playing.append(gpu_memory_gib())
        pushes.append(pushed.nbytes / pushed.seconds / 1e9)
    return {
        "turns": turns,
        "to trainers s": statistics.median(to_trainers),
        "to engines s": statistics.median(to_engines),
        "push GB/s": statistics.median(pushes),
        "GiB while learning, first": learning[0],
        "GiB while learning, last": learning[-1],
        "GiB while playing, first": playing[0],
        "GiB while playing, last": playing[-1],
    }


async def generate(system: System, config: Config, results: dict[str, float]) -> list[Completion]:
    """As many responses of full length as a step of the recipe asks for, all at once."""
    rng, count = random.Random(1), 2 * len(config.selfplay.kinds) * config.selfplay.solver_prompts
    prompts = [[rng.randrange(20, 600) for _ in range(PROMPT_TOKENS)] for _ in range(count)]
    started = time.perf_counter()
    answers = await asyncio.gather(
        *(system.engines.generate(prompt, n=1, max_tokens=config.rollout.max_response_tokens) for prompt in prompts)
    )
    seconds = time.perf_counter() - started
    completions = [completion for answer in answers for completion in answer]
    results["generated tokens/s"] = sum(len(each.response_ids) for each in completions) / seconds
    return completions


async def learn(
    system: System, config: Config, completions: Sequence[Completion], clock: PhaseClock, results: dict[str, float]
) -> None:
    """One update on these responses with random rewards."""
    rng = random.Random(2)
    trajectories = [
        Sample(
            completion=completion,
            role="solver",
            kind=config.selfplay.kinds[index % len(config.selfplay.kinds)],
            problem_id=f"{index}",
            group=f"{index}",
            reward=rng.random(),
        )
        for index, completion in enumerate(completions)
    ]
    await system.turns.offload_engines_onload_trainers(clock.phase)
    clock.step_timing()
    learner = Learner(config, system.policy, system.critic, system.reference, clock.phase)
    learned = await learner.learn(trajectories, step=1)
    seconds = clock.step_timing().seconds["train policy"]
    tokens = sum(t.completion.num_tokens for t in trajectories)
    results["update tokens/s"] = tokens / seconds
    results |= {f"mismatch {name}": learned["policy"][f"mismatch_{name}"] for name in ("mean", "p99")}


def main(argv: Sequence[str]) -> None:
    turns, out, recipe, *options = argv
    config = parse(importlib.import_module(recipe).config, options).config
    check(config)
    results = asyncio.run(measure(config, int(turns)))
    Path(out).write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
