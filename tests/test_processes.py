"""Processes end with their owner, and all at once on Ctrl-C while modules load and while a run starts."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from azr.processes import ended_at_once
from tests.runs.factory import until
from tests.tables import programs


@pytest.mark.parametrize("between", [False, True], ids=["its parent", "one above"])
def test_a_process_ends_with_its_owner(tmp_path: Path, between: bool) -> None:
    """The kernel's signal ends a child that holds the interpreter's lock; a look finds an owner that is no parent."""
    pid = tmp_path / "pid"
    child = (
        "import os, pathlib, sys\nfrom azr.processes import end_with\nend_with(int(sys.argv[1]))\n"
        f"pathlib.Path('{pid}').write_text(str(os.getpid()))\n"
        f"{'import time; time.sleep(600)' if between else '9 ** 10**9'}"
    )
    front = ["sh", "-c", '"$@"; true', "sh"] if between else []
    command = [*front, sys.executable, "-c", child]
    owner = f"import os, subprocess\nsubprocess.run([*{command!r}, str(os.getpid())])"
    process = subprocess.Popen([sys.executable, "-c", owner], start_new_session=True)
    try:
        until(lambda: pid.read_text() != "", 60)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        until(lambda: not psutil.pid_exists(int(pid.read_text())), 60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


LOADING = """
import atexit, signal, sys
from azr.cli.main import exit_code, run_as_process
sys.path.append(sys.argv[1])
atexit.register(print, "Python ended slowly")
run_as_process(lambda: exit_code(lambda: {command}))
"""


@pytest.mark.parametrize("command, unwound", [
    ("__import__('interrupted')", ""), ("exec(open(f'{sys.argv[1]}/interrupted.py').read())", "unwound\n"),
], ids=["while a module loads", "later"])  # fmt: skip
def test_ctrl_c_is_a_line_and_unwinds_no_module(tmp_path: Path, command: str, unwound: str) -> None:
    text = "import signal\ntry: signal.raise_signal(signal.SIGINT)\nfinally: print('unwound')\n"
    (tmp_path / "interrupted.py").write_text(text)
    program = [sys.executable, "-c", LOADING.format(command=command), str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, unwound, "interrupted\n")


STARTING = programs(Path(__file__).with_name("programs.txt"), "process")["a run while it starts"]


def test_ctrl_c_while_a_run_starts_ends_all_processes_together(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTING, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started: list[int] = []
    try:
        assert process.stdout.readline().startswith("expected: ")
        *ids, first, second = process.stdout.readline().split()
        started = [*map(int, ids)]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (130, "stopped by SIGINT: nothing had been done yet\n")
        until(lambda: not any(map(psutil.pid_exists, started)))
        assert not Path(first).exists() and not Path(second).exists()
    finally:
        process.kill()
        for each in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def test_signals_are_answered_as_before_once_the_start_is_over() -> None:
    heard: list[int] = []
    before = {signal.SIGUSR1: lambda number, _: heard.append(number), signal.SIGUSR2: signal.SIG_IGN}
    kept = {each: signal.signal(each, handler) for each, handler in before.items()}
    try:
        with ended_at_once([*before], str):
            signal.raise_signal(signal.SIGUSR2)
        signal.raise_signal(signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)
