"""How fast new weights get to the engines, by every way that is open to a recipe, in one start of its actors.

python -m benchmarks.push PUSHES playground.RECIPE [--section.option value ...]

On one GPU: `ipc` and `host`; NCCL takes no two processes on one GPU. On two, with `--cluster.no-colocate
--train.data-parallel 1`: `nccl` and `host`. `compare` is for scripts that have started the actors already.
"""

from __future__ import annotations

import asyncio
import importlib
import statistics
import sys
from collections.abc import Sequence

from azr.cli.run import parse
from azr.cluster.push_choice import TRANSFERS, refusal
from azr.cluster.weight_transfers import make_outbox
from azr.config import Config
from azr.prepare import check
from azr.prompts.codec import PromptCodec
from azr.runs.metrics import PhaseClock
from azr.system import System
from azr.train.policy import PolicyWorker


async def compare(system: System, config: Config, clock: PhaseClock, *, first: int, pushes: int) -> dict[str, str]:
    """By way: medians over that many turns, of versions from `first` on, or why it is closed.

    The policy is left with the last way that is open.
    """
    ranks = system.policy.actors
    results, version = {}, first
    for name in TRANSFERS:
        if reason := refusal(name, config, system.placement.device):
            results[name] = f"closed: it {reason}"
            continue
        await asyncio.gather(*(actor.__ray_call__.remote(_take, name) for actor in ranks))
        reports = []
        for _ in range(pushes):
            await system.turns.offload_engines_onload_trainers(clock.phase)
            reports.append(await system.turns.sync_and_onload_engines(version, clock.phase))
            assert reports[-1].transfer == name
            version += 1
        rate = statistics.median(report.nbytes / report.seconds / 1e9 for report in reports)
        parts = [
            f"{part} {statistics.median(report.parts[part] for report in reports):.3f} s" for part in reports[0].parts
        ]
        seconds = statistics.median(report.seconds for report in reports)
        results[name] = f"{rate:.2f} GB/s: {reports[0].nbytes / 1e9:.2f} GB in {seconds:.3f} s ({', '.join(parts)})"
    return results


def _take(worker: PolicyWorker, name: str) -> None:
    before = worker._outbox
    before.close()
    worker._outbox = make_outbox(name, before.device, before.control, before.engine_gpus)


async def measure(config: Config, pushes: int) -> dict[str, str]:
    clock, codec = PhaseClock(), PromptCodec.load(config)
    system = await System.start(config, codec.stops, clock.phase, 0)
    try:
        return await compare(system, config, clock, first=1, pushes=pushes)
    finally:
        await system.stop()


def main(argv: Sequence[str]) -> None:
    pushes, recipe, *options = argv
    config = parse(importlib.import_module(recipe).config, options).config
    check(config)
    for name, result in asyncio.run(measure(config, int(pushes))).items():
        print(f"{name:<5} {result}")


if __name__ == "__main__":
    main(sys.argv[1:])
