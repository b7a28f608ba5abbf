"""A deterministic run that loses its engine, its executor, a trainer and its driver ends as one that lost nothing."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.runs import Strike, assert_same_rollouts, assert_same_states, content, run_struck, succeed
from tests.e2e.runs import run as command

# Starts take half a minute each, and two minutes on a loaded machine without AVX-512.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]
STEPS = 3
OPTIONS = [
    *("--run.deterministic", "--run.steps", str(STEPS), "--eval.every", "0", "--checkpoint.every", "1"),
    *("--selfplay.proposer-prompts", "3", "--selfplay.solver-prompts", "1", "--selfplay.group-size", "3"),
    *("--selfplay.seed-tasks", "3", "--rollout.max-response-tokens", "64", "--rollout.refill", "2"),
]


def mini(root: Path) -> list[object]:
    return ["tests.e2e.three_kinds", *OPTIONS, "--run.root", root]


def named(pid: int, name: str) -> psutil.Process:
    """The one descendant of a process that has this in its command line."""
    (found,) = (p for p in psutil.Process(pid).children(recursive=True) if name in " ".join(p.cmdline()))
    return found


def kills(name: str) -> Strike:
    return lambda pid: named(pid, name).kill()


def of_class(name: str) -> Strike:
    """Kills the actor of this class among a process's descendants."""
    return kills(f"ray::{name}")


def with_signal(number: signal.Signals) -> Strike:
    """Signals the whole process group, as Ctrl-C, `timeout` and `systemctl stop` do."""
    return lambda pid: os.killpg(pid, number)


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
    succeed(*mini(root))
    return root / "three_kinds"


def noting(family: set[int], strike: Strike) -> Strike:
    """Also remembers which processes there are."""

    def struck(pid: int) -> None:
        family.update(child.pid for child in psutil.Process(pid).children(recursive=True))
        strike(pid)

    return struck


@pytest.fixture(scope="module")
def suffered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("suffered")
    killed: set[int] = set()
    ended: set[int] = set()
    engine, driver = noting(killed, of_class("RolloutEngine")), noting(killed, with_signal(signal.SIGKILL))
    code, output = run_struck(*mini(root), when={"step 1/3 · valid": engine, "step 2/3 · valid": driver})
    assert code == -signal.SIGKILL and "another one is started in its place" in output, output[-3000:]
    executor, critic = of_class("ExecutorPool"), noting(ended, of_class("CriticWorker"))
    code, output = run_struck(
        *mini(root), "--resume", when={"continuing after step": executor, "step 2/3 · valid": critic}
    )
    assert code == 0, output[-3000:]
    assert "critic rank 0 died" in output and "everything is restarted" in output
    assert gone_after(ended, 10), "processes of the run that has ended are left"
    # Ray's own agents look for their killed head for a minute.
    assert gone_after(killed, 100), "processes of the killed driver are left"
    return root / "three_kinds"


def test_no_step_is_missing_or_doubled_and_numbers_texts_and_weights_are_the_same(straight, suffered) -> None:
    first, second = content(straight), content(suffered)
    assert [line["step"] for line in second] == list(range(1, STEPS + 1))
    assert first == second
    assert all(line["policy/grad_norm"] > 0 and line["critic/grad_norm"] > 0 for line in first)
    assert (straight / "tasks.jsonl").read_text() == (suffered / "tasks.jsonl").read_text()
    names = sorted(path.name for path in (straight / "rollouts").iterdir())
    assert len(names) == 1 + STEPS, "seeding and every step"
    assert_same_rollouts(straight, suffered, range(STEPS + 1))
    assert_same_states(straight, suffered, STEPS, "policy", "critic")
    assert sorted(path.name for path in (suffered / "checkpoints").iterdir()) == ["step_000002", "step_000003"]
    assert not [path for path in suffered.rglob(".*")]


def test_a_run_that_is_asked_to_end_leaves_no_process(tmp_path: Path) -> None:
    stopped: set[int] = set()
    code, output = run_struck(*mini(tmp_path), when={"step 1/3 · valid": noting(stopped, with_signal(signal.SIGTERM))})
    assert code == 128 + signal.SIGTERM, output[-3000:]
    assert gone_after(stopped, 10), "processes of the run that was stopped are left"


PRIVATE_SHM = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$0" "$@"')
root_alone = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount file systems")


@root_alone
def test_stops_jumps_of_the_clock_a_second_resume_and_a_full_shm_change_nothing(straight, tmp_path: Path) -> None:
    """Nor does a copy of the folder that is made meanwhile, which continues by itself to the same end."""
    clock = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "clock.so", clock], check=True)
    jump, run, copy = tmp_path / "jump", tmp_path / "three_kinds", tmp_path / "copy" / "three_kinds"

    def first(pid: int) -> None:
        jump.touch()
        kills("EngineCore")(pid)

    def second(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        trainer = named(pid, "ray::CriticWorker")
        trainer.suspend()
        until = time.monotonic() + 60
        shutil.copytree(run, copy)
        refused = command(*mini(tmp_path), "--resume")
        assert refused.returncode == 2 and f"is in use by process {pid} on " in refused.stderr, refused.stderr
        jump.unlink()
        time.sleep(max(0.0, until - time.monotonic()))
        trainer.resume()
        os.kill(pid, signal.SIGCONT)

    more = {"LD_PRELOAD": str(tmp_path / "clock.so"), "AZR_TEST_JUMP": str(jump)}
    strikes = {"step 1/3 · valid": first, "step 2/3 · valid": second}
    code, output = run_struck(*mini(tmp_path), when=strikes, before=PRIVATE_SHM, more=more)
    assert code == 0, output[-3000:]
    succeed(*mini(tmp_path / "copy"), "--resume")
    for each in (run, copy):
        assert content(each) == content(straight)
        assert_same_rollouts(straight, each, range(STEPS + 1))
        assert_same_states(straight, each, STEPS, "policy", "critic")


@root_alone
def test_a_full_disk_and_a_dead_raylet_or_agent_end_a_run_with_a_sentence_and_it_goes_on(
    straight, tmp_path: Path
) -> None:
    """What comes first decides whether Ray ends the driver, with its own text, or the run ends by itself."""
    full, ended, struck = tmp_path / "full", set[int](), list[float]()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3g", "tmpfs", tmp_path], check=True)

    def fill(pid: int) -> None:
        piece = bytes(2**22)
        with pytest.raises(OSError, match="No space left"), full.open("wb", buffering=0) as file:
            while True:
                file.write(piece)

    def timed(strike: Strike) -> Strike:
        def strikes(pid: int) -> None:
            struck.append(time.monotonic())
            strike(pid)

        return noting(ended, strikes)

    try:
        for line, strike, codes, said in (
            ("step 2/3 · valid", fill, (1,), "could not be written: the disk is full: --resume continues"),
            ("continuing after step", kills("raylet/raylet"), (1, 2), ""),
            ("continuing after step", kills("ray::DashboardAgent"), (1, 2), ""),
        ):
            resume = ["--resume"] * (strike is not fill)
            code, output = run_struck(*mini(tmp_path), *resume, when={line: timed(strike)})
            took = time.monotonic() - struck[-1]
            full.unlink(missing_ok=True)
            assert code in codes and said in output and took < 120, f"{code} after {took:.0f} s: {output[-3000:]}"
            assert gone_after(ended, 100), f"processes are left after {line}"
        succeed(*mini(tmp_path), "--resume")
        run = tmp_path / "three_kinds"
        assert content(run) == content(straight)
        assert_same_rollouts(straight, run, range(STEPS + 1))
        assert_same_states(straight, run, STEPS, "policy", "critic")
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
