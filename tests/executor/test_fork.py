"""Forking: a child learns nothing about its number, and a machine without a process to give harms nobody."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from azr.execution import ExecutionRequest
from azr.executor.pool import SandboxPool
from tests.executor.conftest import CONFIG, call, require, zygotes
from tests.executor.hostile.attack import ROUTES

ROOT = Path(__file__).parents[2]
NOBODY = 65534
CONTROL_BLOCK_BYTES = 0x900
"""Of glibc's thread control block, up to where the kernel writes on which core the thread runs."""
LOOK = (
    ROUTES
    + f"""
def f(number):
    c = namespace('ctypes')
    own = c['CDLL'](None).pthread_self
    own.restype = c['c_void_p']
    return list((c['c_uint32'] * ({CONTROL_BLOCK_BYTES} // 4)).from_address(own()))
"""
)
SCRIPT = """
import os, resource
from azr.executor.seal import Lockdown
lockdown = Lockdown(memory_mb=4096, cpu_s=10)
child = lockdown.fork()
if child == 0:
    os._exit(7)
assert child > 0 and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # no limit on processes binds root
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    child = lockdown.fork()
except OSError as error:
    print("refused:", error.strerror)
else:
    os._exit(8)
"""


def own_control_block() -> list[int]:
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_void_p
    return list((ctypes.c_uint32 * (CONTROL_BLOCK_BYTES // 4)).from_address(libc.pthread_self()))


async def test_a_program_cannot_count_the_programs_before_it(backend):
    """The C library keeps the thread's id, which in a sandbox counts its processes, in memory that ctypes reaches."""
    assert own_control_block().count(threading.get_native_id()) == 1, "that memory would hold the id"
    async with SandboxPool(replace(CONFIG, backend=backend, workers=1), repeats=1) as pool:
        seen = [await call(pool, LOOK, str(number), static_check=False) for number in range(3)]
    assert seen[0].value is not None, seen[0]
    assert len({one.value for one in seen}) == 1


def leave_no_process(process: int) -> None:
    """Takes a container's room for processes other than the ones it has."""
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "pids"):
            Path("/sys/fs/cgroup", controllers, path.lstrip("/"), "pids.max").write_text("1")
            return
    raise AssertionError(f"process {process} is in no group that limits processes")


def test_a_fork_that_fails_raises_and_gives_no_number():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT, timeout=60)
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
