"""Kills a run's driver again and again, at random instants, and checks what is left after each resume.

python -m tools.soak.chaos [--kills 20] [--seed 1] [--steps 40]

Prints one line per kill and the invariants that held: no step missing or doubled, the task buffer equal to its log,
weight versions in order and their digests confirmed by the engines, nothing half-written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from azr.runs.checkpoint_store import CheckpointStore, read_checkpoint
from azr.runs.run_dir import RunDirectory

RECIPE = "tests.e2e.three_kinds"
SMALL = [
    *("--eval.every", "0", "--checkpoint.every", "2"),
    *("--selfplay.proposer-prompts", "3", "--selfplay.solver-prompts", "1", "--selfplay.group-size", "2"),
    *("--selfplay.seed-tasks", "3", "--rollout.max-response-tokens", "64"),
]


def start(root: Path, steps: int, resume: bool, output: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """A small run of the mini, or its continuation."""
    command = [sys.executable, "-m", RECIPE, *SMALL, "--run.root", str(root), "--run.name", "run"]
    command += ["--run.steps", str(steps), *["--resume"] * resume]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)


def steps_of(run: RunDirectory) -> list[int]:
    """Steps in the metrics, without a line that the run is still writing."""
    whole, _, _ = run.metrics.read_text().rpartition("\n")
    return [json.loads(line)["step"] for line in whole.splitlines()]


def check_invariants(run: RunDirectory) -> None:
    """Raises AssertionError for the first invariant that does not hold in the directory of a killed run."""
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1)), "a step is missing or doubled"
    assert [line["weights/version"] for line in lines] == list(range(1, len(lines) + 1)), "versions are out of order"
    tasks = [json.loads(line) for line in run.tasks.read_text().splitlines()]
    if lines:
        sizes: dict[str, int] = {}
        for task in tasks:
            if task["step"] <= lines[-1]["step"]:
                sizes[task["kind"]] = sizes.get(task["kind"], 0) + 1
        assert all(lines[-1][f"buffer/{kind}"] == size for kind, size in sizes.items()), "the buffer is not its log"
    assert len({task["id"] for task in tasks}) == len(tasks), "a task is there twice"
    store = CheckpointStore(run.checkpoints, 2)
    for step in store.steps()[-1:]:
        read_checkpoint(store.path(step), "full")


def wait_seconds(process: subprocess.Popen[str], seconds: float) -> None:
    """Returns earlier when the run ends by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def wait_steps(process: subprocess.Popen[str], run: RunDirectory, steps: int) -> None:
    """Until this process has done that many steps; returns earlier when the run ends by itself."""
    last, done = None, 0
    while done < steps and process.poll() is None:
        newest = max(steps_of(run), default=0) if run.metrics.exists() else 0
        if last is not None and newest > last:
            done += 1
        last = newest
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills a run at random instants and resumes it.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder, "run"))
        for index in range(options.kills):
            started = time.monotonic()
            process = start(Path(folder), options.steps, run.config.exists())
            # Half of the kills strike while the run starts or resumes, the others during its steps and saves.
            if index % 2:
                wait_seconds(process, rng.uniform(0, 25))
            else:
                wait_steps(process, run, rng.randint(1, 4))
                wait_seconds(process, rng.uniform(0, 4))
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            output = process.communicate()[0]
            assert process.returncode in (0, -signal.SIGKILL), output
            done = steps_of(run) if run.metrics.exists() else []
            if run.config.exists() and run.tasks.exists():
                check_invariants(run)
            seconds = time.monotonic() - started
            print(f"kill {index + 1:2d} after {seconds:5.1f} s: {len(done)} steps, every invariant held", flush=True)
            if process.returncode == 0:
                break
        process = start(Path(folder), options.steps, run.config.exists()) if process.returncode else process
        output = process.communicate()[0]
        assert process.returncode == 0, output
        check_invariants(run)
        assert steps_of(run) == list(range(1, options.steps + 1))
        print(f"the run ended with all of its {options.steps} steps")


if __name__ == "__main__":
    main()
