"""Hostile programs behind the backends. For most the static check is off: the walls alone must hold.

The short form sends some of each family against one backend; the long form sends all against every backend.
"""

from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.executor.hostile import traces
from tests.executor.hostile.catalogue import ATTACKS, FAMILIES
from tests.executor.hostile.runner import Outcome, run
from tests.executor.hostile.world import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True, slots=True, kw_only=True)
class Siege:
    """All attacks on one backend."""

    outcomes: dict[str, Outcome]
    breaches: list[str]
    """Side effects that showed only at the end."""
    left: set[str]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def siege(backend, request):
    """The attacks selected for a backend, run side by side once; the tests look at what came of them."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    mine = [one["attack"] for one in parameters if "attack" in one and one["backend"] == backend]
    chosen = {attack.id: attack for attack in mine if attack.fits}
    before = traces.take(backend)
    with World() as world:
        outcomes = await run(chosen.values(), backend, world)
        breaches = world.breaches(world.mark)
    return Siege(
        outcomes={one.attack.id: one for one in outcomes},
        breaches=breaches,
        left=await traces.left_since(before, backend),
    )


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
async def test_an_attack_is_held(siege, attack):
    if not attack.fits:
        pytest.skip("it is written for x86-64")
    outcome = siege.outcomes[attack.id]
    assert not outcome.breaches, outcome.result


async def test_nothing_is_left_behind(siege):
    assert not siege.breaches
    assert not siege.left


async def test_attacks_are_many_and_distinct():
    assert len(FAMILIES) >= 15
    assert len({attack.id for attack in ATTACKS}) == len(ATTACKS) >= 500
    assert len({(attack.program, attack.inputs, attack.static_check) for attack in ATTACKS}) == len(ATTACKS)
