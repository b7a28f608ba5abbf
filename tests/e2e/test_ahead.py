"""The real run one step ahead, with stragglers carried over: killed in the middle and resumed, nothing is missing."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.runs import metrics, rollouts, run_struck, succeed

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]
STEPS, PROMPTS, KINDS = 4, 8, ("deduction", "abduction", "induction")
OPTIONS = [
    *("--cluster.no-colocate", "--rollout.staleness", "2", "--rollout.partial"),
    *("--run.steps", str(STEPS), "--eval.every", "0", "--checkpoint.every", "1", "--algorithm.kl.coef", "0"),
    *("--selfplay.proposer-prompts", str(PROMPTS), "--selfplay.solver-prompts", str(PROMPTS)),
    *("--selfplay.group-size", "3", "--selfplay.seed-tasks", "4"),
]


def mini(root: Path) -> list[object]:
    return ["tests.e2e.three_kinds", *OPTIONS, "--run.root", root]


def test_every_proposal_of_every_step_is_there_once(tmp_path: Path) -> None:
    strike = {"step 2/4 · valid": lambda pid: os.kill(pid, signal.SIGKILL)}
    code, output = run_struck(*mini(tmp_path), when=strike)
    assert code == -signal.SIGKILL, output[-3000:]
    assert "continuing after step" in succeed(*mini(tmp_path), "--resume")
    run = tmp_path / "three_kinds"
    steps = [line for line in metrics(run) if line["step"]]
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for kind in KINDS:
        assert sum(step[f"{kind}/proposer/funnel/proposed"] for step in steps) == STEPS * PROMPTS
    assert all(step["staleness/dropped"] == 0 and step["staleness/max"] <= 2 for step in steps)
    assert max(step["staleness/max"] for step in steps) >= 1
    assert sum(step["seconds/learned beside play"] for step in steps) > 0
    assert all(step["policy/mismatch_mean"] < 0.05 for step in steps)
    ids: Counter[str] = Counter()
    for step in steps:
        ids.update(row["problem_id"] for row in rollouts(run, step["step"]) if row["role"] == "proposer")
    assert set(ids.values()) == {1}
    stored = Counter(json.loads(line)["id"] for line in (run / "tasks.jsonl").read_text().splitlines())
    assert set(stored.values()) == {1}
