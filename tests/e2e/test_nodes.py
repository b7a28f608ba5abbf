"""The mini on a Ray cluster of several nodes, each a raylet of this machine: the same numbers, and a node that dies."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ray.cluster_utils import Cluster

from tests.e2e.runs import metrics, rollouts

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]
OPTIONS = [
    *("--run.deterministic", "--run.steps", "2", "--eval.every", "0", "--checkpoint.every", "1"),
    *("--train.dtype", "float32"),
    *("--selfplay.proposer-prompts", "4", "--selfplay.solver-prompts", "2", "--selfplay.group-size", "3"),
    *("--selfplay.seed-tasks", "3", "--rollout.max-response-tokens", "64"),
]
SPREAD = ["--train.data-parallel", "2", "--rollout.engines", "2"]
DEADLINE_S = 500


def begin(root: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.e2e.three_kinds", *OPTIONS, "--run.root", str(root), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(run: subprocess.Popen[str]) -> str:
    try:
        output, _ = run.communicate(timeout=DEADLINE_S)
    finally:
        run.kill()
    assert run.returncode == 0, output[-3000:]
    return output


def texts(root: Path, step: int) -> list[tuple]:
    return [(row["group"], row["response"], row["reward"]) for row in rollouts(root / "three_kinds", step)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head that holds nothing, and three nodes with room for one rank and one engine each."""
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield found
    finally:
        found.shutdown()


def trainers_under(node: object) -> list[psutil.Process]:
    (raylet,) = node.all_processes["raylet"]
    family = psutil.Process(raylet.process.pid).children(recursive=True)
    return [process for process in family if "ray::PolicyWorker" in " ".join(process.cmdline())]


def test_two_nodes_play_and_learn_as_one_and_survive_the_loss_of_a_third(cluster: Cluster, tmp_path: Path) -> None:
    nodes = [cluster.add_node(num_cpus=1, include_dashboard=False) for _ in range(3)]
    run = begin(tmp_path / "spread", *SPREAD, "--cluster.address", cluster.address)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not any((tmp_path / "spread").glob("three_kinds/checkpoints/step_000001/manifest.json")):
            assert run.poll() is None and time.monotonic() < deadline, run.communicate(timeout=60)[0][-3000:]
            time.sleep(0.2)
        used = [node for node in nodes if trainers_under(node)]
        assert len(used) == 2, "two ranks of one CPU slot each need two nodes"
        cluster.remove_node(used[-1], allow_graceful=False)
        output = finish(run)
    finally:
        run.kill()
    assert "everything is restarted" in output

    finish(begin(tmp_path / "one"))
    spread, one = (metrics(tmp_path / name / "three_kinds") for name in ("spread", "one"))
    assert [line["step"] for line in spread] == [line["step"] for line in one] == [1, 2]
    for step in (1, 2):
        assert texts(tmp_path / "spread", step) == texts(tmp_path / "one", step)
    for ours, theirs in zip(spread, one, strict=True):
        for name in ("policy/loss", "policy/grad_norm", "policy/entropy", "policy/kl_reference", "critic/loss"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-6), name
        assert 0 < ours["policy/mismatch_mean"] < 1e-4, "engines and trainer agree in float32"
