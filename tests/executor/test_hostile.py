"""Hostile programs behind every backend. For most the static check is off: the walls alone must hold."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass

import pytest
import pytest_asyncio

from azr.executor import seal
from tests.executor.hostile import traces
from tests.executor.hostile.catalogue import ATTACKS, FAMILIES
from tests.executor.hostile.runner import Outcome, run
from tests.executor.hostile.world import World

pytestmark = pytest.mark.asyncio(loop_scope="session")
_LAST_SYSTEM_CALL = 600
_PAST_ANY_FILTER = (335, 336)
"""Linux lets uretprobe and uprobe past every filter. Called by anything but a probe they end the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Siege:
    """All attacks on one backend."""

    outcomes: dict[str, Outcome]
    breaches: list[str]
    """Side effects that showed only at the end."""
    left: set[str]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def siege(backend, request):
    """The attacks that were selected, run side by side once for each backend; the tests look at what came of them."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = {one["attack"].id: one["attack"] for one in parameters if "attack" in one}
    before = traces.take()
    with World() as world:
        outcomes = await run(chosen.values(), backend, world)
        breaches = world.breaches(world.mark)
    return Siege(
        outcomes={one.attack.id: one for one in outcomes},
        breaches=breaches,
        left=await traces.left_since(before),
    )


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
async def test_an_attack_is_held(siege, attack):
    outcome = siege.outcomes[attack.id]
    assert not outcome.breaches, outcome.result


async def test_nothing_is_left_behind(siege):
    assert not siege.breaches
    assert not siege.left


async def test_attacks_are_many_and_distinct():
    assert len(FAMILIES) >= 15
    assert len({attack.id for attack in ATTACKS}) == len(ATTACKS) >= 500
    assert len({(attack.program, attack.inputs, attack.static_check) for attack in ATTACKS}) == len(ATTACKS)


async def test_every_system_call_that_is_not_on_the_list_is_refused():
    """Straight at the filter, for behind the other walls a hole in it would not show."""
    untried = sorted([*seal._ALLOWED_X86_64.values(), *_PAST_ANY_FILTER])
    program = (
        "import ctypes, errno, os\nfrom azr.executor.seal import Filter\n"
        "libc = ctypes.PyDLL(None, use_errno=True)\n"
        "libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]\n"
        "assert libc.prctl(38, 1, None, 0, 0) == 0\n"
        "Filter(libc).install()\n"
        f"numbers = set(range({_LAST_SYSTEM_CALL})) - set({untried})\n"
        "def passes(n): return libc.syscall(n, *[-1] * 6) != -1 or ctypes.get_errno() != errno.EPERM\n"
        "passed = [n for n in numbers if passes(n)]\n"
        "print(passed, flush=True)\nos._exit(0)"
    )
    run = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert run.stdout == "[]\n", run.stderr
