"""Faults of the AZR executor that ours must not share, each by its number in the project's fact sheet."""

from __future__ import annotations

import pytest

from azr import values
from azr.execution import CallStatus, ExecutionRequest
from azr.executor.pool import SandboxPool
from tests.executor.conftest import CONFIG, call

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def run(pool, program, *inputs, repeats=2):
    return await pool.execute(ExecutionRequest(program=program, inputs=inputs or ("",), repeats=repeats))


@pytest.mark.parametrize(
    "program",
    [
        "def f(): return list({'ab', 'cd', 'ef', 'gh', 'ij', 'kl', 'mn'})",
        "def f(): return hash('a')",
        "def f(): return ''.join({str(n) for n in range(20)})",
        "def f():\n    if hash('a') % 1000: raise ValueError(1)",
        "class A: pass\ndef f(): return id(A)",
    ],
)
async def test_bug_1_non_deterministic_programs_are_caught(pool, program):
    result = await run(pool, program)
    if result.outputs[0].status is CallStatus.RAISED:
        assert result.deterministic
    else:
        assert result.deterministic is False and not result.ok


@pytest.mark.parametrize("module", ["random", "time", "uuid", "datetime", "secrets", "os"])
async def test_bug_1_sources_of_chance_are_screened(pool, module):
    result = await run(pool, f"def f():\n    import {module}\n    return 1")
    assert result.static_check == (f"line 2: imports {module}",)
    assert not result.ok


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("raise Exception", "Exception"),
        ("raise StopIteration", "StopIteration"),
        ("raise SystemExit", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("class Silent(Exception): pass\n    raise Silent", "Silent"),
    ],
)
async def test_bug_1_exceptions_without_the_word_error_are_exceptions(pool, statement, name):
    result = await run(pool, f"def f():\n    {statement}")
    assert (result.outputs[0].status, result.outputs[0].error) == (CallStatus.RAISED, name)
    assert not result.ok and result.deterministic


async def test_bug_1_nan_is_deterministic_and_objects_are_refused(pool):
    nan = await run(pool, "def f(): return [float('nan')]")
    assert nan.ok and nan.deterministic and nan.outputs[0].value == "[nan]"
    thing = await run(pool, "class A: pass\ndef f(): return A()")
    assert thing.outputs[0].status is CallStatus.REJECTED


async def test_bug_2_values_are_whole_or_refused(pool):
    long = await run(pool, "def f(): return list(range(300))")
    assert values.parse(long.outputs[0].value) == list(range(300))
    assert (await run(pool, "def f(): return ' ' * 70_000")).outputs[0].status is CallStatus.OUTPUT_TOO_LARGE


async def test_bug_6_one_differing_call_is_enough_and_a_timeout_is_no_label(pool, hasty):
    """Order of a set of strings differs between interpreters for the second input only."""
    result = await run(pool, "def f(x): return list({str(n) for n in range(x)})", "1", "30")
    assert [o.status for o in result.outputs] == [CallStatus.OK, CallStatus.OK]
    assert result.deterministic is False
    slow = await run(hasty, "def f():\n    while True: pass")
    assert (slow.outputs[0].status, slow.deterministic) == (CallStatus.TIMEOUT, None)


async def test_bug_7_strings_are_not_evaluated_again(pool):
    result = await run(pool, "def f(): return '1+1'")
    assert values.parse(result.outputs[0].value) == "1+1"
    counter = await run(pool, "from collections import Counter\ndef f(): return Counter('aab')")
    assert counter.outputs[0].status is CallStatus.REJECTED


async def test_bug_8_inputs_of_several_lines_work(pool):
    assert (await call(pool, "def f(a, b): return a + b", "[1,\n 2],\n[3]\n")).value == "[1, 2, 3]"


async def test_bug_16_sandboxes_differ_in_hash_seed_and_a_run_s_seed_decides_them(pool):
    program = "def f(): return hash('abc')"
    async with SandboxPool(CONFIG, repeats=1) as other:
        hashes = {(await call(one, program)).value for one in (pool, other)}
    assert len(hashes) == 2
    again = []
    for seed in (3, 3, 4):
        async with SandboxPool(CONFIG, repeats=1, seed=seed) as seeded:
            again.append((await call(seeded, program)).value)
    assert again[0] == again[1] != again[2]
    deterministic = await run(pool, "def f(): return {'ab', 'cd', 'ef', 'gh', 'ij', 'kl', 'mn'}")
    assert deterministic.ok and deterministic.deterministic


@pytest.mark.parametrize("text", ["0) or True or (0", "0) or (1", "0) #", "*[0]", "x=0", "(lambda: 0)()"])
async def test_an_input_cannot_leave_its_call(pool, text):
    output = await call(pool, "def f(x): return x == 41", text)
    assert output.status is CallStatus.REJECTED


async def test_an_identifier_that_ends_in_input_is_no_offence(pool):
    assert (await call(pool, "def parse_input(x): return x\ndef f(x): return parse_input(x)", "1")).value == "1"
