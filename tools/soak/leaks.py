"""Watches every process of a long run for memory and file descriptors that only grow.

python -m tools.soak.leaks [--steps 200] [--warm-up 50]

Prints one row per kind of process: unique memory (USS), descriptors and their growth from the first quarter after the
warm-up to the last quarter of the run, and what the run holds in shared memory.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from azr.runs.run_dir import RunDirectory
from tools.soak.chaos import start, steps_of

SHARED = Path("/dev/shm")
PERIOD_S = 3.0
ALLOWED = 0.05


@dataclass(frozen=True)
class ProcessSample:
    """All processes of one kind at one time."""

    step: int
    uss_mib: float
    descriptors: int


def kind_of(process: psutil.Process, driver: int) -> str:
    if process.pid == driver:
        return "driver"
    words = " ".join(process.cmdline())
    # An actor's title changes with the method it runs.
    return words.strip().split(".")[0].split("(")[0] if words.startswith(("ray::", "VLLM::")) else process.name()


def sample_processes(driver: int, step: int) -> dict[str, ProcessSample]:
    """One sample per kind of process."""
    by_kind: dict[str, list[tuple[float, int]]] = defaultdict(list)
    parent = psutil.Process(driver)
    for process in [parent, *parent.children(recursive=True)]:
        try:
            by_kind[kind_of(process, driver)].append((process.memory_full_info().uss / 2**20, process.num_fds()))
        except psutil.Error:  # it ended in the meantime
            continue
    return {
        kind: ProcessSample(step, sum(uss for uss, _ in of_kind), sum(fds for _, fds in of_kind))
        for kind, of_kind in by_kind.items()
    }


def shared_mib() -> float:
    return sum(path.stat().st_size for path in SHARED.rglob("*") if path.is_file()) / 2**20


def table(samples: dict[str, list[ProcessSample]], first: int, last: int) -> list[str]:
    """Rows of kinds that lived through the whole time; the growth is that of the median."""
    quarter = (last - first) // 4
    rows = []
    for kind, of_kind in sorted(samples.items()):
        early = [sample for sample in of_kind if first <= sample.step < first + quarter]
        late = [sample for sample in of_kind if sample.step > last - quarter]
        if not early or not late:
            continue
        before, after = median(s.uss_mib for s in early), median(s.uss_mib for s in late)
        growth = after / before - 1
        fds = f"{median(s.descriptors for s in early):.0f} → {median(s.descriptors for s in late):.0f}"
        flag = "  <-- grows" if growth > ALLOWED and after - before > 2 else ""
        rows.append(f"{kind:24}{before:9.1f} → {after:7.1f} MiB {100 * growth:+6.1f}%   {fds:>13} descriptors{flag}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Watches the processes of a long run.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=50)
    options = parser.parse_args()
    samples: dict[str, list[ProcessSample]] = defaultdict(list)
    shared: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder, "run"))
        process = start(Path(folder), options.steps, resume=False, output=subprocess.DEVNULL)
        while process.poll() is None:
            step = max(steps_of(run), default=0) if run.metrics.exists() else 0
            if step:
                for kind, sample in sample_processes(process.pid, step).items():
                    samples[kind].append(sample)
                shared.append((step, shared_mib()))
            time.sleep(PERIOD_S)
        if process.returncode:
            sys.exit(f"the run failed with exit code {process.returncode}")
    print(f"steps {options.warm_up} to {options.steps}, {len(shared)} samples")
    print("\n".join(table(samples, options.warm_up, options.steps)))
    early = median(mib for step, mib in shared if step < options.warm_up)
    print(f"shared memory files of the machine {early:9.1f} → {shared[-1][1]:7.1f} MiB")


if __name__ == "__main__":
    main()
