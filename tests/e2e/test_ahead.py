"""The real run one step ahead, with stragglers carried over: killed in the middle and resumed, nothing is missing."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]
ROOT = Path(__file__).parent.parent.parent
STEPS, PROMPTS, KINDS = 4, 8, ("deduction", "abduction", "induction")
OPTIONS = [
    *("--cluster.no-colocate", "--rollout.staleness", "2", "--rollout.partial"),
    *("--run.steps", str(STEPS), "--eval.every", "0", "--checkpoint.every", "1", "--algorithm.kl.coef", "0"),
    *("--selfplay.proposer-prompts", str(PROMPTS), "--selfplay.solver-prompts", str(PROMPTS)),
    *("--selfplay.group-size", "3", "--selfplay.seed-tasks", "4"),
]


def mini(root: Path, *options: str, kill_after: str | None = None) -> tuple[int, str]:
    """Exit code and output; SIGKILL strikes half a second after the first line that begins so."""
    command = [sys.executable, "-m", "tests.e2e.three_kinds", *OPTIONS, "--run.root", str(root), *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if kill_after is not None and line.startswith(kill_after):
                time.sleep(0.5)
                process.send_signal(signal.SIGKILL)
        return process.wait(60), "".join(lines)
    finally:
        process.kill()


def test_every_proposal_of_every_step_is_there_once(tmp_path: Path) -> None:
    code, output = mini(tmp_path, kill_after="step 2/4 · valid")
    assert code == -signal.SIGKILL, output[-3000:]
    code, output = mini(tmp_path, "--resume")
    assert code == 0 and "going on after step" in output, output[-3000:]
    run = tmp_path / "three_kinds"
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in metrics if line["step"]]
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for kind in KINDS:
        assert sum(step[f"{kind}/proposer/funnel/proposed"] for step in steps) == STEPS * PROMPTS
    assert all(step["staleness/dropped"] == 0 and step["staleness/max"] <= 2 for step in steps)
    assert max(step["staleness/max"] for step in steps) >= 1
    assert sum(step["seconds/learned beside play"] for step in steps) > 0
    assert all(step["policy/mismatch_mean"] < 0.05 for step in steps)
    ids: Counter[str] = Counter()
    for step in steps:
        with gzip.open(run / "rollouts" / f"step_{step['step']:06d}.jsonl.gz", "rt") as file:
            ids.update(row["problem_id"] for row in map(json.loads, file) if row["role"] == "proposer")
    assert set(ids.values()) == {1}
    stored = Counter(json.loads(line)["id"] for line in (run / "tasks.jsonl").read_text().splitlines())
    assert set(stored.values()) == {1}
