"""Every status, triggered for real."""

import asyncio
import time

import pytest

from azr import values
from azr.config import ExecutorConfig
from azr.execution import CallStatus, ExecutionRequest
from azr.executor.pool import SandboxPool
from azr.executor.protocol import MAX_PROGRAM_BYTES
from tests.executor.conftest import CONFIG, call, descendants, zygotes

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_ok_states_the_canonical_value_and_the_time(pool):
    output = await call(pool, "def f(n, s):\n    return {s: [i * i for i in range(n)]}", "3, 'a'")
    assert (output.status, output.value, output.error) == (CallStatus.OK, "{'a': [0, 1, 4]}", None)
    busy = await call(pool, "def f():\n    return sum(i for i in range(1_000_000))")
    assert busy.status is CallStatus.OK
    assert 0 < busy.cpu_s <= busy.wall_s < CONFIG.wall_s


BODIES = {
    CallStatus.RAISED: {
        "return 1 / 0": "ZeroDivisionError", "raise SystemExit": "SystemExit", "return f()": "RecursionError",
        "raise KeyboardInterrupt": "KeyboardInterrupt", "raise SystemError": "SystemError",
        "class Odd(Exception): pass\n    raise Odd": "Odd", "raise type('not a name', (Exception,), {})": "Exception",
        "return next(iter(()))": "StopIteration", "import json.tool": "ModuleNotFoundError",
    },
    CallStatus.TIMEOUT: dict.fromkeys(("while True: pass", "return 7 ** 9 ** 9"), "the time limit passed"),
    CallStatus.MEMORY: dict.fromkeys(
        ("x = []\n    while True: x.append(bytearray(10**7))", "return ' ' * 10**11"), "the program ran out of memory"),
    CallStatus.OUTPUT_TOO_LARGE: {
        "return 'a' * 10**6": "the returned value: ", "return [0] * 10**6": "the returned value: ",
        "return 1 << 10**6": "the returned value: ",
        "x = []\n    x.append(x)\n    return x": "the returned value: nested",
    },
    CallStatus.REJECTED: {
        "import numpy": "line 2: imports numpy", "return f": "the returned value: function is not plain data",
        "return (i for i in ())": "the returned value: generator",
    },
}  # fmt: skip


@pytest.mark.parametrize("status", BODIES)
async def test_status_of_a_body(pool, hasty, status):
    for body, error in BODIES[status].items():
        output = await call(hasty if status is CallStatus.TIMEOUT else pool, f"def f():\n    {body}")
        assert (output.status, output.value) == (status, None), body
        assert output.error.startswith(error), body


SAME = "def f(x): return x"
REJECTED = [
    ("def g(): return 1", "", "the program defines no function f"), ("f = 3", "", "the program defines no function f"),
    (SAME, "x", "argument text: the name 'x' is not plain data"), (SAME, "1, y=2", "argument text: "),
    ("def f(:", "", "line 1: invalid syntax"), ("x = " + "-" * 10_000 + "1", "", "line 1: cannot be parsed"),
    ("import os\ndef f(): return 1", "", "line 1: imports os"),
    ("def f(): return 1\n" + "#" * MAX_PROGRAM_BYTES, "", "the program is longer than 16384 bytes"),
    (SAME, "'" + "a" * values.MAX_BYTES + "'", "argument text: the text is longer"),
    (SAME, "'" + "a" * 2**20 + "'", "the inputs are longer than"),
]  # fmt: skip


async def test_rejected_before_anything_runs(pool):
    for program, inputs, error in REJECTED:
        output = await call(pool, program, inputs)
        assert (output.status, output.value) == (CallStatus.REJECTED, None), error
        assert output.error.startswith(error)


async def test_crashed_processes_are_told_from_exceptions(pool):
    crash = "import sys\ndef f():\n    sys.setrecursionlimit(10**9)\n    return sorted([0], key=lambda _: f())"
    for program in (crash, "import posix\ndef f(): posix._exit(0)", "import posix\ndef f(): posix.abort()"):
        output = await call(pool, program, static_check=False)
        assert output.status is CallStatus.CRASHED
        assert output.error.startswith("the process ")


async def test_the_screen_says_why_and_can_be_switched_off(pool):
    program = "import os\ndef f(): return os.sep"
    static_check = await pool.execute(ExecutionRequest(program=program, inputs=("", "")))
    assert static_check.static_check == ("line 1: imports os",)
    assert [output.status for output in static_check.outputs] == [CallStatus.REJECTED] * 2
    assert (await call(pool, program, static_check=False)).value == "'/'"


async def test_each_input_gets_its_own_verdict_after_a_failure_but_after_two_timeouts(pool, hasty):
    program = "def f(x):\n    if x == 1:\n        while True: pass\n    if x == 2: return ' ' * 10**11\n    return x"
    result = await hasty.execute(ExecutionRequest(program=program, inputs=("0", "1", "2", "'x'", "y")))
    assert [o.status.value for o in result.outputs] == ["ok", "timeout", "memory", "ok", "rejected"]
    crashing = "import posix\ndef f(x):\n    if x: posix._exit(3)\n    return x"
    result = await pool.execute(ExecutionRequest(program=crashing, inputs=("1", "0", "1", "0"), static_check=False))
    assert [o.status.value for o in result.outputs] == ["crashed", "ok", "crashed", "ok"]
    assert result.outputs[0].error == "the process exited with code 3"
    program = "def f(x):\n    while x: pass\n    return x"
    result = await hasty.execute(ExecutionRequest(program=program, inputs=("1", "0", "2", "''", "[]")))
    assert [o.status.value for o in result.outputs] == ["timeout", "ok", "timeout", "timeout", "timeout"]
    assert result.outputs[3].wall_s == 0


async def test_all_calls_together_have_a_deadline():
    program = "def f(x):\n    n = 0\n    for i in range(2_500_000): n += i\n    return n"
    async with SandboxPool(ExecutorConfig(workers=1, wall_s=0.25), repeats=1) as pool:
        slow = await pool.execute(ExecutionRequest(program=program, inputs=tuple(str(i) for i in range(128))))
    assert slow.outputs[-1].status is CallStatus.TIMEOUT
    assert sum(o.cpu_s for o in slow.outputs) < 8 * 0.25 + 0.5


async def test_a_deadline_that_passes_between_two_calls_ends_their_process():
    """Nobody reads what the zygote passes on, so it does not come to the next call in time."""
    async with SandboxPool(ExecutorConfig(workers=1, wall_s=0.25), repeats=1) as pool:
        inputs = tuple(str(number) for number in range(128))
        running = asyncio.ensure_future(
            pool.execute(ExecutionRequest(program="def f(x): return [x] * 15_000", inputs=inputs))
        )
        await asyncio.sleep(0.1)
        time.sleep(8 * 0.25 + 0.5)
        assert (await running).outputs[-1].status in (CallStatus.TIMEOUT, CallStatus.OUTPUT_TOO_LARGE)
        (zygote,) = zygotes(pool)
        assert not descendants(zygote)
        assert (await call(pool, "def f(): return 1")).value == "1"


async def test_every_call_gets_a_module_of_its_own_and_dataclasses_and_encodings_work_without_files(pool):
    program = "seen = []\ndef f(x):\n    seen.append(x)\n    return seen"
    result = await pool.execute(ExecutionRequest(program=program, inputs=("1", "2")))
    assert [o.value for o in result.outputs] == ["[1]", "[2]"]
    program = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom collections import Counter\n"
        "@dataclass\nclass P:\n    x: int\n"
        "def f(s):\n    print(s)\n    return P(3).x, s.encode('utf-16-le'), Counter(s).most_common(1), '\\N{BULLET}'"
    )
    assert (await call(pool, program, "'aab'")).value == "(3, b'a\\x00a\\x00b\\x00', [('a', 2)], '•')"
