"""What a program finds about it is the same in a first run, a repeat and a verification, whoever ran before it."""

import asyncio
import base64
import marshal
import platform
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from azr import values
from azr.execution import CallStatus, ExecutionRequest
from azr.executor import protocol
from azr.executor.pool import SandboxPool
from tests import tables
from tests.executor.conftest import CONFIG, call, look_at_a_child, zygotes
from tests.executor.hostile.learning import MEMORY

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROBE, EXACT, HONEST, NUMBERED = tables.programs(Path(__file__).with_name("programs.txt"), "conditions").values()
"""All that a program can see of its place, without addresses, clocks and the order of sets; the same of the memory
manager, which says how much ran in this process before; what the static check lets a program ask; and where a program's
memory holds its own id, or one close to it. The last is told the id with all bits inverted, and searches memory with
all bits inverted, so that the search itself leaves none behind."""


async def _validation_and_verifications(pool: SandboxPool, program: str, *, static_check: bool = False) -> list[str]:
    """What a proposal's runs agreed on, what its task's verification found, and what one did after other programs."""
    validated = await pool.execute(
        ExecutionRequest(program=program, inputs=("1",), repeats=4, static_check=static_check)
    )
    assert validated.deterministic is True, validated
    found = [validated.outputs[0].value or str(validated)]
    for number in range(2, 5):
        await asyncio.gather(*(call(pool, f"def f(x): return [x] * {n}", str(number)) for n in range(6)))
        verified = await pool.execute(
            ExecutionRequest(program=program, inputs=(str(number),), static_check=static_check, admitted=True)
        )
        assert not verified.cached
        found.append(verified.outputs[0].value)
    return found


async def test_a_first_run_a_repeat_and_a_verification_look_alike(walled: SandboxPool):
    found = await _validation_and_verifications(walled, PROBE)
    assert found[0] is not None, found
    seen = [values.parse(text) for text in found]
    assert [one for one in seen if one != seen[0]] == []
    assert seen[0]["environment"] == [] and seen[0]["arguments"][:2] == [[], []]
    # The report of a call of its own leaves by one descriptor; the others lead nowhere.
    assert seen[0]["descriptors"] == [0, 1, 2, 3]


async def test_what_the_static_check_lets_through_sees_no_check(pool: SandboxPool):
    checked = await _validation_and_verifications(pool, HONEST, static_check=True)
    unchecked = await _validation_and_verifications(pool, HONEST)
    assert len({*checked, *unchecked}) == 1


async def test_where_memory_stands_does_not_tell_how_many_programs_ran_before():
    found = []
    async with SandboxPool(replace(CONFIG, backend="namespace", workers=1), repeats=1) as pool:
        for number in range(8):
            crowd = [f"import math\ndef f(x): return [x] * {n}  # {number}" for n in range(number * 5)]
            await asyncio.gather(*(call(pool, program, "1", static_check=bool(number % 2)) for program in crowd))
            output = await call(pool, EXACT, str(number), static_check=False)
            assert output.value is not None, output
            found.append(values.parse(output.value))
    # The first run also reads the program.
    found = found[1:]
    assert [facts[:-1] for facts in found] == [found[0][:-1]] * len(found)
    # A path that the zygote takes for the first time, such as a frame that comes in two pieces, leaves a block or two;
    # up to 140 programs leave none.
    blocks = [facts[-1] for facts in found]
    assert max(blocks) - min(blocks) <= 6, blocks


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program names an x86-64 system call")
async def test_no_memory_counts_the_programs_before():
    """A word that follows the ids of the zygote's children would say how many programs ran, and which comes next."""
    config = replace(CONFIG, backend="namespace", workers=1, memory_mb=512)
    async with SandboxPool(config, repeats=1) as pool:
        await call(pool, "def f(): return 1")
        (zygote,) = zygotes(pool)
        # Ids that are too small are everywhere in memory.
        many = ExecutionRequest(program="import keyword\ndef f(x): return 1", inputs=tuple(map(str, range(128))))
        for _ in range(9):
            await pool.execute(replace(many, program=f"{many.program} # {_}"))
        laps = []
        for lap in range(3):
            last = await _id_of_a_child(pool, zygote, lap)
            output = await call(
                pool, NUMBERED.replace("{memory}", MEMORY), str(2**32 - 1 - (last + 1)), static_check=False
            )
            assert output.status is CallStatus.OK, output
            planted, found = values.parse(output.value)
            assert planted, "the search finds nothing"
            laps.append(set(struct.iter_unpack("<Qb", zlib.decompress(base64.b85decode(found)))))
    assert not set.intersection(*laps)


async def _id_of_a_child(pool: SandboxPool, zygote: int, lap: int) -> int:
    """Runs a program and gives back the id that its process has among its own kind."""
    status = await look_at_a_child(pool, zygote, lambda child: Path(f"/proc/{child}/status").read_text(), lap)
    return int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])


@pytest.mark.parametrize("repeats", [1, 2])
async def test_no_program_decides_what_code_it_is_remembered_as(backend, repeats):
    """It says so on the channel on which its own process said what it is, before it ran."""
    forged = marshal.dumps(compile("def f(x): return 'forged'", "program", "exec"))
    frames = [protocol.frame(protocol.Part.LOADED + b"\0" + forged), protocol.frame(protocol.Part.REASONS)]
    async with SandboxPool(replace(CONFIG, backend=backend), repeats=2) as pool:
        for frame in frames:
            program = f"import posix\ndef f(x):\n    posix.write(3, {frame!r})\n    return 'honest'"
            for inputs in (("1",), ("2",), ("3", "4")):
                request = ExecutionRequest(program=program, inputs=inputs, repeats=repeats, static_check=False)
                result = await pool.execute(request)
                assert {output.value for output in result.outputs} <= {"'honest'", None}
                assert not result.static_check
