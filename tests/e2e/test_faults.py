"""A deterministic run that loses its engine, its executor, a trainer and its driver ends as one that lost nothing."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

# A start takes half a minute, and there are six of them.
pytestmark = pytest.mark.timeout(1800)
ROOT = Path(__file__).parent.parent.parent
STEPS = 5
OPTIONS = [
    *("--run.deterministic", "--run.steps", str(STEPS), "--eval.every", "0", "--checkpoint.every", "1"),
    *("--selfplay.proposer-prompts", "3", "--selfplay.solver-prompts", "1", "--selfplay.group-size", "3"),
    *("--selfplay.seed-tasks", "3", "--rollout.max-response-tokens", "64"),
]
MEASURED = (
    "start/",
    "seconds/",
    "tokens_per_s/",
    "driver/",
    "executor/",
    "engines/",
    "weights/push_s",
    "weights/push_gb_s",
)
"""What a metrics line says about time and about processes, not about what was played and learned."""
DEADLINE_S = 500


def of_class(name: str) -> Callable[[int], None]:
    """Kills the actor of this class among a process's descendants."""

    def kill(pid: int) -> None:
        (found,) = (p for p in psutil.Process(pid).children(recursive=True) if f"ray::{name}" in " ".join(p.cmdline()))
        found.kill()

    return kill


def with_signal(number: signal.Signals) -> Callable[[int], None]:
    """Signals the whole process group, as Ctrl-C, `timeout` and `systemctl stop` do."""
    return lambda pid: os.killpg(pid, number)


def run(root: Path, *options: str, when: Mapping[str, Callable[[int], None]] | None = None) -> tuple[int, str]:
    """Exit code and output of the mini; each fault strikes half a second after the first line that begins so."""
    faults = dict(when or {})
    command = [sys.executable, "-m", "tests.e2e.three_kinds", *OPTIONS, "--run.root", str(root), *options]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    lines: list[str] = []
    try:
        deadline = time.monotonic() + DEADLINE_S
        for line in process.stdout:
            assert time.monotonic() < deadline, "".join(lines)
            lines.append(line)
            for beginning in [beginning for beginning in faults if line.startswith(beginning)]:
                time.sleep(0.5)
                faults.pop(beginning)(process.pid)
        code = process.wait(60)
    finally:
        process.kill()
    assert not faults, "".join(lines)
    return code, "".join(lines)


def gone_after(pids: set[int], patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while any(psutil.pid_exists(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("straight")
    code, output = run(root)
    assert code == 0, output[-3000:]
    return root / "three_kinds"


def noting(family: set[int], strike: Callable[[int], None]) -> Callable[[int], None]:
    """Also remembers which processes there are."""

    def struck(pid: int) -> None:
        family.update(child.pid for child in psutil.Process(pid).children(recursive=True))
        strike(pid)

    return struck


@pytest.fixture(scope="module")
def suffered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("suffered")
    killed: set[int] = set()
    stopped: set[int] = set()

    code, output = run(
        root,
        when={
            "step 1/5 · valid": noting(killed, of_class("RolloutEngine")),
            "step 2/5 · valid": noting(killed, with_signal(signal.SIGKILL)),
        },
    )
    assert code == -signal.SIGKILL and "another one is started in its place" in output, output[-3000:]
    code, output = run(
        root,
        "--resume",
        when={
            "going on after step": noting(stopped, of_class("ExecutorPool")),
            "step 3/5 · valid": noting(stopped, of_class("CriticWorker")),
            "step 4/5 · valid": noting(stopped, with_signal(signal.SIGTERM)),
        },
    )
    assert code == 128 + signal.SIGTERM, output[-3000:]
    assert "critic rank 0 died" in output and "everything is restarted" in output
    assert gone_after(stopped, 10), "processes of the run that was stopped are left"
    code, output = run(root, "--resume")
    assert code == 0 and "going on after step 4" in output, output[-3000:]
    # Ray's own agents look for their killed head for a minute.
    assert gone_after(killed, 100), "processes of the killed driver are left"
    return root / "three_kinds"


def content(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith(MEASURED)} for line in lines]


def test_no_step_is_missing_or_doubled_and_every_number_is_the_same(straight: Path, suffered: Path) -> None:
    first, second = content(straight), content(suffered)
    assert [line["step"] for line in second] == list(range(1, STEPS + 1))
    assert first == second
    assert all(line["policy/grad_norm"] > 0 and line["critic/grad_norm"] > 0 for line in first)


def test_tasks_and_texts_are_the_same_line_for_line(straight: Path, suffered: Path) -> None:
    assert (straight / "tasks.jsonl").read_text() == (suffered / "tasks.jsonl").read_text()
    names = sorted(path.name for path in (straight / "rollouts").iterdir())
    assert len(names) == 1 + STEPS, "seeding and every step"
    for name in names:
        first, second = (gzip.decompress((folder / "rollouts" / name).read_bytes()) for folder in (straight, suffered))
        assert first == second and first


def test_weights_and_optimizer_states_are_the_same_bit_for_bit(straight: Path, suffered: Path) -> None:
    places = (
        "policy/model.safetensors",
        "trainers/policy/rank_000.safetensors",
        "trainers/critic/rank_000.safetensors",
    )
    for place in places:
        first, second = (
            load_file(folder / "checkpoints" / f"step_{STEPS:06d}" / place) for folder in (straight, suffered)
        )
        assert first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


def test_the_last_checkpoints_stay_and_nothing_half_written(suffered: Path) -> None:
    assert sorted(path.name for path in (suffered / "checkpoints").iterdir()) == ["step_000004", "step_000005"]
    assert not [path for path in suffered.rglob(".*")]


def test_a_second_run_of_the_name_is_told_how_to_go_on(suffered: Path) -> None:
    code, output = run(suffered.parent)
    assert code == 2 and "go on with it by --resume, begin again with --restart, or choose another --run.name" in output
