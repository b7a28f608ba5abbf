"""Two programs in two sandboxes that map the same C library: neither may wake or watch the other."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
from dataclasses import replace

import pytest

from azr import values
from azr.executor.pool import SandboxPool
from tests.executor.conftest import CONFIG, call
from tests.executor.hostile.channels import LIBRARY

pytestmark = pytest.mark.asyncio(loop_scope="session")
_SECONDS = (1.5, 4.0, 10.0)
"""How long one waits: longer where a busy machine runs the other one too late."""
_TIMED_OUT, _REFUSED = 110, 1
PAIR = """
import struct
def wait(private, seconds):
    nanoseconds = struct.pack('qq', int(seconds), int(seconds % 1 * 10**9))
    word = c['c_uint32'].from_address(library()).value
    return syscall(202, library(), private, word, nanoseconds, 0, 0)
def wake(private, times):
    return [syscall(202, library(), 1 | private, 100)[::-1] for _ in range(times)]
"""
OUTSIDE = (
    "import ctypes, sys\nc = vars(ctypes)\ndef namespace(name): return c\ndef syscall"
    + LIBRARY.split("def syscall")[1]
    + PAIR
    + """
def wake_one():
    while True:
        if (woken := wake(0, 1)[0][1]): return woken
print('ready', flush=True)
print(wait(0, 20) if sys.argv[1] == 'wait' else wake_one())
"""
)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the programs name x86-64's system calls")
async def test_without_a_filter_processes_wake_each_other():
    """What the filter closes is real: two processes that share nothing but the C library."""

    def both() -> str:
        waiter = subprocess.Popen([sys.executable, "-c", OUTSIDE, "wait"], stdout=subprocess.PIPE, text=True)
        assert waiter.stdout.readline() == "ready\n"
        subprocess.run([sys.executable, "-c", OUTSIDE, "wake"], check=True, stdout=subprocess.DEVNULL)
        return waiter.communicate()[0]

    assert await asyncio.to_thread(both) == "(0, 0)\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the programs name x86-64's system calls")
async def test_no_program_wakes_another(backend):
    program = LIBRARY + "c = namespace('ctypes')\n" + PAIR
    waits = f"def f(seconds): return [wait(0, seconds), wait(128, seconds)]\n{program}"
    wakes = f"def f(times, _): return sorted({{*wake(0, times), *wake(128, times)}})\n{program}"
    one = replace(CONFIG, backend=backend, workers=1)
    async with SandboxPool(one, repeats=1) as first, SandboxPool(one, repeats=1) as second:
        await asyncio.gather(*(call(pool, "def f(): return 1") for pool in (first, second)))
        for seconds in _SECONDS:
            waiting = asyncio.ensure_future(call(first, waits, str(seconds), static_check=False))
            await asyncio.sleep(seconds / 3)
            waking = await call(second, wakes, f"50, {seconds}", static_check=False)
            overlap = not waiting.done()
            waited = await waiting
            if overlap:
                break
        assert overlap, "both ran at the same time"
    assert waited.value is not None and waking.value is not None, (waited, waking)
    assert values.parse(waited.value) == [(-1, _REFUSED), (-1, _TIMED_OUT)]
    assert values.parse(waking.value) == [(0, 0), (_REFUSED, -1)], "errors and numbers of those woken"
