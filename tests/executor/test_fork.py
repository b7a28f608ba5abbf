"""Forking: a machine without a process to give harms nobody."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from azr.execution import ExecutionRequest
from azr.executor.pool import SandboxPool
from tests import tables
from tests.executor.conftest import CONFIG, require, zygotes

NOBODY = 65534
SCRIPT = tables.programs(Path(__file__).with_name("programs.txt"), "process")["no process to fork"]


def leave_no_process(process: int) -> None:
    """Takes a container's room for processes other than the ones it has."""
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "pids"):
            Path("/sys/fs/cgroup", controllers, path.lstrip("/"), "pids.max").write_text("1")
            return
    raise AssertionError(f"process {process} is in no group that limits processes")


def test_a_fork_that_fails_raises_and_gives_no_number():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "refused: the machine has no process to give\n"), done.stderr


async def test_zygotes_that_cannot_fork_are_replaced_and_kill_nobody():
    require("docker")
    if os.geteuid() != 0:
        pytest.skip("only root can write to a container's control group")
    bystander = subprocess.Popen(["sleep", "60"], user=NOBODY)
    try:
        async with SandboxPool(replace(CONFIG, backend="docker")) as pool:
            assert (await pool.execute(ExecutionRequest(program="def f(x): return x + 1", inputs=("1",)))).ok
            before = zygotes(pool)
            for process in before:
                leave_no_process(process)
            # Each that cannot fork is lost once, and a program that has met two of them is given up.
            for turn in range(len(before)):
                request = ExecutionRequest(program=f"def f(x): return x + {turn}", inputs=("1",), repeats=1 + turn % 2)
                result = await pool.execute(request)
                assert result.lost or result.outputs[0].value == str(turn + 1)
            assert not result.lost
            assert set(before) - set(zygotes(pool)), "the zygote that could not fork is gone"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
