"""How fast new weights get to the engines, by every way that is open to a recipe, in one start of its actors.

python -m benchmarks.push PUSHES OUT.json playground.RECIPE [--section.option value ...]

Each way is measured with buckets of 256 MiB and of 1 GiB.

On one GPU: `ipc` and `host`; NCCL takes no two processes on one GPU. On two, with `--cluster.no-colocate
--train.data-parallel 1`: `nccl` and `host`. `compare` is for scripts that have started the actors already.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import statistics
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from azr.cli.run import parse
from azr.cluster.push_choice import TRANSFERS, refusal
from azr.cluster.weight_transfers import OUTBOXES
from azr.config import Config
from azr.config_rules import check
from azr.prompts.codec import PromptCodec
from azr.runs.metrics import PhaseClock
from azr.system import System
from azr.train import policy
from azr.train.policy import PolicyWorker

BUCKET_MIB = (256, 1024)


async def compare(system: System, config: Config, clock: PhaseClock, *, first: int, pushes: int) -> dict[str, float]:
    """GB/s by way and size of buckets: medians over that many turns, of versions from `first` on.

    The policy is left with the last way that is open.
    """
    ranks = system.policy.actors
    results, version = dict[str, float](), first
    for name, mib in product(TRANSFERS, BUCKET_MIB):
        if reason := refusal(name, config, system.placement.device):
            print(f"{name} is closed: it {reason}")
            continue
        await asyncio.gather(*(actor.__ray_call__.remote(_take, name, mib << 20) for actor in ranks))
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
        results[f"push by {name}, {mib} MiB, GB/s"] = rate
        print(f"{name}, {mib} MiB: {rate:.2f} GB/s, {reports[0].nbytes / 1e9:.2f} GB in {seconds:.3f} s, {parts}")
    return results


def _take(worker: PolicyWorker, name: str, bucket_nbytes: int) -> None:
    policy.bucket_bytes = lambda transfer, weights, largest: max(bucket_nbytes, largest)
    before = worker._outbox
    before.close()
    worker._outbox = OUTBOXES[name](before.device, before.control, before.engine_gpus)


async def measure(config: Config, pushes: int) -> dict[str, float]:
    clock, codec = PhaseClock(), PromptCodec.load(config)
    system = await System.start(config, codec.stops, clock.phase, 0)
    try:
        return await compare(system, config, clock, first=1, pushes=pushes)
    finally:
        await system.stop()


def main(argv: Sequence[str]) -> None:
    pushes, out, recipe, *options = argv
    config = parse(importlib.import_module(recipe).config, options).config
    check(config)
    Path(out).write_text(json.dumps(asyncio.run(measure(config, int(pushes))), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
