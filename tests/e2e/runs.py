"""Commands in processes of their own, as a user starts them, and what their runs left."""

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
LIMIT_S = 850.0
Strike = Callable[[int], None]
"""What happens to a process, by its id."""


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Run a module with its options to the end."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)], env=os.environ | {"HF_HUB_OFFLINE": "1"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip


def succeed(*command: object) -> str:
    """Return what a command prints; it must succeed."""
    done = run(*command)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def run_struck(
    *command: object, when: Mapping[str, Strike], before: Sequence[str] = (), more: Mapping[str, str] = {}
) -> tuple[int, str]:
    """Exit code and output; each strike comes half a second after the first line that begins so. `before`: words before
    the command; `more`: environment."""
    strikes = dict(when)
    process = subprocess.Popen(
        [*before, sys.executable, "-m", *map(str, command)], env=os.environ | more, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines: list[str] = []
    deadline = time.monotonic() + LIMIT_S
    try:
        for line in process.stdout:
            assert time.monotonic() < deadline, "".join(lines)
            lines.append(line)
            for beginning in [beginning for beginning in strikes if line.startswith(beginning)]:
                time.sleep(0.5)
                strikes.pop(beginning)(process.pid)
        code = process.wait(60)
    finally:
        process.kill()
    assert not strikes, "".join(lines)
    return code, "".join(lines)


def metrics(folder: Path) -> list[dict]:
    """Lines of a run's metrics."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def rollouts(folder: Path, step: int) -> list[dict]:
    """Samples of a step of a run."""
    with gzip.open(folder / "rollouts" / f"step_{step:06d}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def assert_same_rollouts(first: Path, second: Path, steps: Iterable[int]) -> None:
    """Texts of two runs are the same, bit for bit."""
    for step in steps:
        name = f"rollouts/step_{step:06d}.jsonl.gz"
        ours, theirs = (gzip.decompress((run / name).read_bytes()) for run in (first, second))
        assert ours == theirs and ours, name


def assert_same_states(first: Path, second: Path, step: int, *models: str) -> None:
    """Weights and optimizer states of two runs' checkpoints are the same, bit for bit."""
    for place in ("policy/model.safetensors", *(f"trainers/{model}/rank_000.safetensors" for model in models)):
        ours, theirs = (load_file(run / "checkpoints" / f"step_{step:06d}" / place) for run in (first, second))
        assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours), place


MEASURED = (
    "start/", "seconds/", "tokens_per_s/", "driver/", "executor/", "engines/", "weights/push_s", "weights/push_gb_s",
)  # fmt: skip
"""What a metrics line says about time and about processes, not about what was played and learned."""


def content(folder: Path) -> list[dict]:
    """Metrics that are the same in every run of a deterministic recipe."""
    return [{name: value for name, value in line.items() if not name.startswith(MEASURED)} for line in metrics(folder)]
