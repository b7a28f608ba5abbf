"""A GPU recipe's whole step on a cluster that declares eight GPUs, with a tiny model on the CPU instead of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

ROOT = Path(__file__).parent.parent.parent
TINY = [
    *("--model.path", "data/azr_14m_base", "--model.prompt-format", "compact", "--train.device", "cpu"),
    *("--train.data-parallel", "2", "--rollout.engines", "1", "--rollout.tensor-parallel", "2"),
    *("--run.steps", "1", "--selfplay.proposer-prompts", "4", "--selfplay.solver-prompts", "2"),
    *("--selfplay.seed-tasks", "1", "--rollout.max-prompt-tokens", "384", "--rollout.max-response-tokens", "128"),
    *("--eval.every", "0"),
]
PLAY = ("propose", "validate", "estimate", "solve", "verify")
PHASES = (*PLAY, "critic values", "reference logprobs", "train critic", "train policy", "push")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "num_gpus": 8, "include_dashboard": False})
    try:
        yield found.address
    finally:
        found.shutdown()


@pytest.mark.timeout(900)
def test_one_step_with_two_ranks_and_an_engine_of_two_parts(address: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "playground.azr_coder14b_ppo", *TINY]
    where = ["--run.root", str(tmp_path), "--cluster.address", address]
    done = subprocess.run(
        [*command, *where], cwd=ROOT, env=os.environ | {"DEBUG": "1"}, capture_output=True, text=True, timeout=850
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (step,) = map(json.loads, (tmp_path / "azr_coder14b_ppo" / "metrics.jsonl").read_text().splitlines())
    assert all(step[f"seconds/{phase}"] > 0 for phase in PHASES)
    assert step["weights/version"] == 1 and step["weights/push_gb_s"] > 0
    assert step["policy/grad_norm"] > 0 and step["critic/grad_norm"] > 0
    assert step["policy/kl_reference"] == pytest.approx(0, abs=1e-3)
    assert 0 < step["policy/mismatch_mean"] < 0.02, "an engine in two parts samples from the trainers' policy"
