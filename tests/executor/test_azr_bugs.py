"""Faults of the AZR executor that ours must not share, each by its number in the project's fact sheet.

Others of them: chance that is found out and screened in test_determinism.py, test_static_check.py and the hostile
programs; exceptions without the word error, values that are too long and timeouts in test_statuses.py.
"""

import pytest

from azr import values
from azr.execution import CallStatus, ExecutionRequest
from azr.executor.pool import SandboxPool
from tests.executor.conftest import CONFIG, call

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def run(pool, program, *inputs, repeats=2):
    return await pool.execute(ExecutionRequest(program=program, inputs=inputs or ("",), repeats=repeats))


async def test_bug_1_exceptions_and_nan_are_deterministic(pool):
    raised = await run(pool, "def f(): raise Exception")
    assert (raised.outputs[0].status, raised.outputs[0].error) == (CallStatus.RAISED, "Exception")
    assert not raised.ok and raised.deterministic
    nan = await run(pool, "def f(): return [float('nan')]")
    assert nan.ok and nan.deterministic and nan.outputs[0].value == "[nan]"


async def test_bug_6_one_differing_call_is_enough(pool):
    """Order of a set of strings differs between interpreters for the second input only."""
    result = await run(pool, "def f(x): return list({str(n) for n in range(x)})", "1", "30")
    assert [o.status for o in result.outputs] == [CallStatus.OK, CallStatus.OK]
    assert result.deterministic is False and not result.ok


async def test_bugs_2_7_and_8_values_are_whole_and_not_evaluated_again_and_inputs_have_several_lines(pool):
    long, text = [await run(pool, f"def f(): return {given}") for given in ("list(range(300))", "'1+1'")]
    assert values.parse(long.outputs[0].value) == list(range(300)) and values.parse(text.outputs[0].value) == "1+1"
    counter = await run(pool, "from collections import Counter\ndef f(): return Counter('aab')")
    assert counter.outputs[0].status is CallStatus.REJECTED
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
