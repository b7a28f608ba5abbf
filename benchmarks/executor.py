"""How fast model-written programs run behind each wall, against the bare fork: ``python -m benchmarks.executor``.

One table from one run. Machines are noisy, so the floor and the backends take turns for some rounds; a figure is the
median of its rounds, and a share is the median of the shares within each round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from azr.config import ExecutorConfig
from azr.execution import CallStatus, ExecutionRequest
from azr.executor import backends
from azr.executor.backends.sandbox import OPTIONS
from azr.executor.pool import SandboxPool
from azr.executor.protocol import REPEATS, SUSPECT_FACTOR
from azr.executor.static_check import ALLOWED_MODULES
from benchmarks import fork_floor
from benchmarks.programs import Program, programs

SLOTS = 2
WINDOW = 4
ORIGINAL_MIXED_PER_S, ORIGINAL_BATCH_PER_S = 3.5, 21.8
"""The original's rates with 5% bad programs: at its default, and with two workers and a limit of 2 s."""


@dataclass(frozen=True, slots=True)
class Lap:
    """One timed pass over some programs."""

    calls_per_s: float
    latencies_s: tuple[float, ...]
    """Of the programs that end well, sorted."""

    def percentile_ms(self, share: float) -> float:
        return 1000 * self.latencies_s[min(len(self.latencies_s) - 1, int(share * len(self.latencies_s)))]


def floor(work: Sequence[Program]) -> float:
    """Programs per second of `SLOTS` bare processes with the same modules loaded; see ``fork_floor``."""
    lines = "".join(json.dumps([program.source, program.inputs[0]]) + "\n" for program in work)
    command = [sys.executable, *OPTIONS, fork_floor.__file__, str(SLOTS), ",".join(ALLOWED_MODULES)]
    return len(work) / float(subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout)


async def lap(pool: SandboxPool, work: Sequence[Program], in_flight: int, repeats: int = 1) -> Lap:
    """Run every program once, with some in flight. Raises AssertionError when one ends otherwise than it should."""
    gate = asyncio.Semaphore(in_flight)
    latencies: list[float] = []

    async def one(program: Program) -> None:
        async with gate:
            started = time.perf_counter()
            request = ExecutionRequest(program=program.source, inputs=program.inputs, repeats=repeats)
            result = await pool.execute(request)
            if program.ending == "ok":
                latencies.append(time.perf_counter() - started)
            assert {output.status for output in result.outputs} <= _endings(program), (program, result)

    started = time.perf_counter()
    await asyncio.gather(*map(one, work))
    seconds = time.perf_counter() - started
    return Lap(sum(len(program.inputs) for program in work) / seconds, tuple(sorted(latencies)))


def _endings(program: Program) -> set[CallStatus]:
    """On a slow machine hoarding memory takes longer than the limit."""
    return {CallStatus(program.ending)} | ({CallStatus.TIMEOUT} if program.ending == "memory" else set())


async def clean_rounds(backends: Sequence[str], count: int, rounds: int) -> tuple[float, dict[str, list[Lap]], dict]:
    """Median floor, laps and shares of the floor by backend."""
    pools = {name: SandboxPool(_config(name, workers=SLOTS), repeats=1) for name in backends}
    laps: dict[str, list[Lap]] = {name: [] for name in backends}
    shares: dict[str, list[float]] = {name: [] for name in backends}
    floors = []
    for pool in pools.values():
        await pool.start()
    for index in range(rounds):
        work = programs(count, seed=index + 1)
        before = floor(work)
        for name, pool in pools.items():
            laps[name].append(await lap(pool, work, WINDOW * SLOTS))
            after = floor(work)
            shares[name].append(laps[name][-1].calls_per_s / statistics.mean((before, after)))
            floors.append(after)
            before = after
    for pool in pools.values():
        await pool.close()
    return statistics.median(floors), laps, shares


async def single(backend: str, work: Sequence[Program], **options: float) -> Lap:
    config = _config(backend, **options)
    async with SandboxPool(config, repeats=1) as pool:
        return await lap(pool, work, WINDOW * config.workers)


async def validations(backend: str, count: int) -> dict[str, tuple[float, int]]:
    """Programs per second when proposals are validated, and runs of each, by what is suspect about them."""
    rates = {}
    async with SandboxPool(_config(backend, workers=SLOTS)) as pool:
        for name, runs in (("suspect", REPEATS * SUSPECT_FACTOR), ("plain", REPEATS)):
            # Suspects first: they have the further zygotes started that only they need.
            for seed in (80, 81):
                work = [
                    each for each in programs(2 * count, seed=seed) if ("set()" in each.source) == (name == "suspect")
                ]
                rate = (await lap(pool, work[:count], WINDOW * SLOTS, REPEATS)).calls_per_s
            rates[name] = rate, runs
    return rates


async def soak(backend: str, count: int) -> tuple[list[int], list[int]]:
    """Resident KiB of this process and of all its descendants' zygotes, at ten points over ``count`` requests."""
    own, rest = [], []
    async with SandboxPool(_config(backend, workers=SLOTS), repeats=1) as pool:
        for tenth in range(10):
            await lap(pool, programs(count // 10, seed=1000 + tenth), WINDOW * SLOTS)
            own.append(_resident(os.getpid()))
            rest.append(sum(map(_resident, _zygotes())))
    return own, rest


def _config(backend: str, **options: float) -> ExecutorConfig:
    return ExecutorConfig(backend=backend, **options)


def _resident(process: int) -> int:
    try:
        with open(f"/proc/{process}/status", encoding="ascii") as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)
    except FileNotFoundError:
        return 0


def _zygotes() -> list[int]:
    """Interpreters that run the executor's worker and are not programs that one of them has forked."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as command, open(f"/proc/{name}/stat", encoding="ascii") as stat:
                if b"executor/zygote.py" in command.read() and "(python" in (text := stat.read()):
                    parents[int(name)] = int(text.rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return [process for process, parent in parents.items() if parent not in parents]


async def main(options: argparse.Namespace) -> None:
    usable = [name for name, works, _ in backends.report(ExecutorConfig()) if works]
    print(f"{os.cpu_count()} cores, {SLOTS} slots, {options.programs} programs a lap, {options.rounds} rounds\n")
    bare, laps, shares = await clean_rounds(usable, options.programs, options.rounds)
    row("bare fork, compile, run, pipe", f"{bare:,.0f} programs/s")
    rates = {}
    for name in usable:
        rates[name] = statistics.median(lap.calls_per_s for lap in laps[name])
        p50, p99 = (statistics.median(lap.percentile_ms(share) for lap in laps[name]) for share in (0.5, 0.99))
        row(
            f"{name}, clean",
            f"{rates[name]:,.0f} programs/s",
            f"{statistics.median(shares[name]):.0%} of the floor",
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms at window {WINDOW}",
        )
    for name in usable:
        many = await single(name, programs(options.programs // 5, inputs=10, seed=77), workers=SLOTS)
        row(
            f"{name}, ten inputs a program",
            f"{many.calls_per_s:,.0f} calls/s",
            f"{many.calls_per_s / rates[name]:.1f} times one input",
        )
    for name in usable:
        work = programs(options.mixed, bad_share=0.05, seed=78)
        mixed = await single(name, work, workers=2 * (os.cpu_count() or 1))
        equal = await single(name, programs(options.mixed // 2, bad_share=0.05, seed=79), workers=2, wall_s=2.0)
        row(
            f"{name}, 5% bad, default limits",
            f"{mixed.calls_per_s:,.0f} programs/s",
            f"{mixed.calls_per_s / ORIGINAL_MIXED_PER_S:.0f} times the original's default",
        )
        row(
            f"{name}, 5% bad, 2 s, 2 slots",
            f"{equal.calls_per_s:,.0f} programs/s",
            f"{equal.calls_per_s / ORIGINAL_BATCH_PER_S:.1f} times the original's batch call",
        )
    for name in usable:
        for kind, (rate, runs) in (await validations(name, options.programs // 4)).items():
            row(
                f"{name}, validation, {kind}",
                f"{rate:,.0f} programs/s",
                f"{runs} runs each, {rate * runs:,.0f} runs/s, {rate * runs / bare:.0%} of the floor",
            )
    if options.soak:
        own, rest = await soak(usable[0], options.soak)
        row(f"{usable[0]}, {options.soak:,} requests", f"pool {_trend(own)}", f"zygotes {_trend(rest)}")


def _trend(sizes: Sequence[int]) -> str:
    return f"{' '.join(f'{size / 1024:.0f}' for size in sizes)} MiB"


def row(*cells: str) -> None:
    print(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, (34, 20, 36, 0), strict=False)).rstrip(), flush=True
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=2000, help="programs of a lap")
    parser.add_argument("--rounds", type=int, default=3, help="turns that floor and backends take")
    parser.add_argument("--mixed", type=int, default=1000, help="programs of the laps with bad ones among them")
    parser.add_argument("--soak", type=int, default=0, help="requests over which memory is watched")
    asyncio.run(main(parser.parse_args()))
