"""What hangs on chance, or on calls before it, is not called deterministic, with the odds that the docs state."""

# ruff: noqa: E501 - a program on one line is easier to read than a wrapped one

import math
from dataclasses import replace
from pathlib import Path

import pytest

from azr.execution import CallStatus, ExecutionRequest, ExecutionResult
from azr.executor import protocol
from azr.executor.pool import SandboxPool
from tests import tables
from tests.executor.conftest import CONFIG, execute_many
from tests.executor.hostile.attack import ROUTES
from tests.tables import table

pytestmark = pytest.mark.asyncio(loop_scope="session")

ONE = ("1", " 1", "1 ", "(1)", "0x1", "+1")
"""Six texts of the same arguments: six calls, none of which is answered from the cache."""

PROGRAMS = Path(__file__).with_name("programs.txt")
COUNTERS = {
    name: program.replace("{routes}\n", ROUTES) for name, program in tables.programs(PROGRAMS, "counters").items()
}
"""Programs that try to answer otherwise when they were called before."""
DIFFERENT = {
    "what types remember": ("from typing import List\ndef f(x): return str(List[x])", ("1", "True", "1.0")),
    "what types remember of several": ("from typing import Dict\ndef f(x, y): return str(Dict[x, y])", ("1, 2", "True, 2.0")),
    "the order of calls": ("import keyword\ndef f(x):\n    keyword.kwlist.append(x)\n    return keyword.kwlist[-2:]", ("'a'", "'b'", "'c'")),
    "formats": ("import struct\ndef f(x): return struct.calcsize(x)", ("'i'", "b'i'", "'=i'")),
}  # fmt: skip
"""Programs and inputs whose answers must not depend on the calls before."""


def _said(result: ExecutionResult, index: int = 0) -> str:
    output = result.outputs[index]
    return output.value if output.value is not None else f"{output.status.value}: {output.error}"


async def _together(pool: SandboxPool, program: str, texts: tuple[str, ...], repeats: int) -> list[str] | None:
    """What the calls of one request say; None when repeats found that they do not say the same every time."""
    # Another text of the program, so that nothing is answered from the cache.
    program = f"{program}\n# {repeats}"
    result = await pool.execute(ExecutionRequest(program=program, inputs=texts, repeats=repeats, static_check=False))
    assert len(result.outputs) == len(texts)
    return None if result.deterministic is False else [_said(result, index) for index in range(len(texts))]


@pytest.mark.parametrize("repeats", [4, 1], ids=["validation", "verification"])
@pytest.mark.parametrize("name", COUNTERS)
async def test_equal_calls_answer_alike_whatever_was_called_before(pool: SandboxPool, name: str, repeats: int):
    answers = await _together(pool, COUNTERS[name], ONE, repeats)
    # What is found not to be deterministic is refused; where nothing is repeated, each call runs as if alone.
    assert (answers is None and repeats > 1) or len(set(answers)) == 1, answers


@pytest.mark.parametrize("name", DIFFERENT)
async def test_calls_answer_as_if_they_ran_alone(pool: SandboxPool, name: str):
    program, texts = DIFFERENT[name]
    alone = [ExecutionRequest(program=program, inputs=(text,), static_check=False) for text in texts]
    expected = [_said(result) for result in await execute_many(pool, alone)]
    assert await _together(pool, program, texts, 1) == expected
    assert await _together(pool, program, texts, 4) in (None, expected)


COLLECTS, COLLECTS_OLD = tables.programs(PROGRAMS, "collector").values()
"""Count what they make until the collector comes by: for its frequent visits, and for its rare ones to what is old."""


async def test_runs_of_source_and_of_code_find_the_collector_in_one_place():
    """A validation whose calls are apart runs code alone; the first request of a new pool runs source."""
    found = []
    for inputs, repeats in ((("1", "0x1"), 4), (("1",), 4), (("1",), 1)):
        async with SandboxPool(replace(CONFIG, backend="namespace"), repeats=repeats) as pool:
            request = ExecutionRequest(program=COLLECTS, inputs=inputs, repeats=repeats, static_check=False)
            result = await pool.execute(request)
            assert result.deterministic is (True if repeats > 1 else None), result
            found += [output.value for output in result.outputs]
    assert None not in found and len(set(found)) == 1, found


async def test_the_collector_begins_anew_for_every_call_of_a_process(monkeypatch: pytest.MonkeyPatch):
    honest = protocol.read_loaded
    monkeypatch.setattr(protocol, "read_loaded", lambda part: (0, honest(part)[1]))  # no process of its own
    async with SandboxPool(replace(CONFIG, backend="namespace"), repeats=1) as pool:
        for program in (COLLECTS, COLLECTS_OLD):
            found = []
            for inputs in (("0",), ("1", "2", "3")):
                request = ExecutionRequest(program=program, inputs=inputs, static_check=False, admitted=True)
                found += [output.value for output in (await pool.execute(request)).outputs]
            assert None not in found and len(set(found)) == 1, found


COINS = dict(table(__file__, "results that differ"))
EACH = 23
"""Programs of each kind of coin."""
MOST_SUSPECTS = 15
"""Of 207 fair coins that pass with a chance of 1/128 each, more than this pass less than once in a million."""


def _chance_of_more(most: int, of: int, chance: float) -> float:
    """Of independent events, that more than ``most`` happen."""
    return 1 - sum(math.comb(of, k) * chance**k * (1 - chance) ** (of - k) for k in range(most + 1))


async def _accepted(pool: SandboxPool, programs: dict[str, str]) -> list[str]:
    requests = [
        ExecutionRequest(program=program, inputs=("0",), repeats=4, static_check=False) for program in programs.values()
    ]
    results = await execute_many(pool, requests)
    assert {result.outputs[0].status for result in results} == {CallStatus.OK}
    return [name for name, result in zip(programs, results, strict=True) if result.deterministic]


async def test_few_suspect_coins_are_accepted(pool: SandboxPool):
    # Another text each: equal programs are executed once, and one coin of 23 programs would decide the test.
    coins = {
        f"{name} {n}": f"def f(x): return {text.format(n=n)}  # {n}"
        for name, text in COINS.items()
        for n in range(EACH)
    }
    assert len(set(coins.values())) == len(coins)
    assert _chance_of_more(MOST_SUSPECTS, len(coins), 2**-7) < 1e-6
    accepted = await _accepted(pool, coins)
    assert len(accepted) <= MOST_SUSPECTS, accepted


async def test_a_coin_that_the_suspicion_misses_is_accepted_about_once_in_eight(pool: SandboxPool, monkeypatch):
    """Four runs find out seven of eight; more often or more seldom would mean that runs are not independent."""
    honest = protocol.read_loaded
    monkeypatch.setattr(protocol, "read_loaded", lambda part: (0, honest(part)[1]))
    coins = {str(n): f"def f(x): return hash('m{n}') & 1" for n in range(160)}
    accepted = len(await _accepted(pool, coins))
    assert _chance_of_more(accepted - 1, len(coins), 2**-3) > 1e-6
    assert 1 - _chance_of_more(accepted, len(coins), 2**-3) > 1e-6


@pytest.mark.long
async def test_coins_fall_as_the_docs_say(pool: SandboxPool):
    """Suspects are accepted with a chance of 1/128 a bit: not more often, and nearly as often."""
    coins = {f"{n}": f"def f(x): return hash('c{n}') & 1" for n in range(3000)}
    accepted = len(await _accepted(pool, coins))
    assert _chance_of_more(accepted - 1, len(coins), 2**-7) > 1e-6
    assert accepted > 0
