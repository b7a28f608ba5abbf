"""What a program finds about it is the same in a first run, a repeat and a verification, whoever ran before it."""

# ruff: noqa: E501 - a fact on one line is easier to read than a wrapped one

from __future__ import annotations

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
from tests.executor.conftest import CONFIG, call, look_at_a_child, zygotes
from tests.executor.hostile.learning import MEMORY

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROBE = """
import builtins, gc, posix, signal, sys, types

def f(number):
    before = [gc.isenabled(), list(gc.get_threshold()), gc.get_freeze_count() > 0, len(gc.callbacks), gc.get_debug()]
    return {
        'collector': before,
        'frames': [describe(frame) for frame in frames(sys._getframe())],
        'arguments': [sys.argv, sys.orig_argv, sys.warnoptions, sorted(sys._xoptions), sys.executable],
        'environment': sorted(posix.environ),
        'flags': [getattr(sys.flags, n) for n in dir(sys.flags) if n[0] != '_' and n not in ('count', 'index')],
        'modules': sorted(sys.modules),
        'contents': {n: len(vars(m)) for n, m in sys.modules.items() if type(m) is types.ModuleType and n != '__main__'},
        'builtins': sorted(vars(builtins)),
        'path': [list(sys.path), len(sys.meta_path), sorted(sys.path_importer_cache)],
        'limits': [sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()],
        'hooks': [str(type(sys.gettrace())), str(type(sys.getprofile())), sys.excepthook is sys.__excepthook__],
        'handlers': [str(signal.getsignal(n)) for n in range(1, 32)],
        'descriptors': [n for n in range(64) if is_open(n)],
        'depth': depth(),
        'streams': [str(sys.stdin), str(sys.stdout), str(sys.stderr)],
        'user': [posix.getuid(), posix.getgid()],
        'classes': len(object.__subclasses__()),
        'exception': [str(one) for one in sys.exc_info()],
        'program': sorted(vars(sys.modules['program'])),
        'intern': sys.getrefcount(types.ModuleType),
    }

def frames(frame):
    while frame:
        yield frame
        frame = frame.f_back

def describe(frame):
    local = frame.f_locals if frame.f_locals is not frame.f_globals else {}
    told = {n: told_by(one) for n, one in local.items() if n not in ('text', 'arguments', 'number')}
    return [frame.f_code.co_name, frame.f_lineno if frame.f_code.co_name != 'f' else 0, told, sorted(frame.f_globals)]

def told_by(one):
    if type(one) in (int, str, bytes, bool, type(None)):
        return one
    slots = getattr(type(one), '__slots__', ()) or ()
    return [type(one).__name__, {n: repr(getattr(one, n))[:200] for n in slots if '0x' not in repr(getattr(one, n, '0x'))}]

def is_open(number):
    try: posix.write(number, b'')
    except OSError: return False
    return True

def depth(so_far=0):
    try: return depth(so_far + 1)
    except RecursionError: return so_far
"""
"""Program text: all that a program can see of its place, without addresses, clocks and the order of sets."""
EXACT = """
import gc, sys
def f(number):
    return [gc.get_count(), gc.get_stats(), len(gc.get_objects()), gc.get_freeze_count(), sys.getallocatedblocks()]
"""
"""The same of the memory manager: where it stands says how much ran in this process before."""
HONEST = """
def f(number):
    return [depth(), shape(f), str(type(f)), f.__name__, f.__module__, __name__]
def depth(so_far=0):
    try: return depth(so_far + 1)
    except RecursionError: return so_far
def shape(one):
    try: one.nothing
    except AttributeError as error: return str(error)
"""
"""What the static check lets a program ask."""


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


NUMBERED = f"""{MEMORY}
import base64, struct, zlib
INVERTED = bytes(255 - byte for byte in range(256))
def f(inverted):
    for _ in range(2_000_000): pass
    found, planted = [], C['create_string_buffer'](64)
    for place in range(4):
        C['memset'](C['addressof'](planted) + 32 + place, 255 - (inverted >> 8 * place & 255), 1)
    for start, text in contents():
        text = text.translate(INVERTED)
        for ahead in range(-2, 3):
            word = (inverted - ahead).to_bytes(4, 'little')
            at = text.find(word)
            while at >= 0:
                if at % 4 == 0: found.append((start + at, ahead))
                at = text.find(word, at + 1)
    planted = (C['addressof'](planted) + 32, 0)
    words = b''.join(struct.pack('<Qb', at, ahead) for at, ahead in sorted(set(found) - set([planted])))
    return [planted in found, base64.b85encode(zlib.compress(words, 9)).decode()]
"""
"""Program text: where its memory holds its own id, or one close to it. It is told the id with all bits inverted, and
searches memory with all bits inverted, so that the search itself leaves none behind."""


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
            output = await call(pool, NUMBERED, str(2**32 - 1 - (last + 1)), static_check=False)
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
