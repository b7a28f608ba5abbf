"""Runs attacks against one backend and writes down everything that should not have happened."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from azr import values
from azr.config import ExecutorConfig
from azr.execution import ADMITTED_SHARE, CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.executor.pool import SandboxPool
from azr.executor.protocol import PATIENCE
from tests.executor.hostile.attack import Attack
from tests.executor.hostile.heir import HEIR, NEIGHBOUR
from tests.executor.hostile.world import World

_PATIENT_S, _HASTY_S = 10.0, 0.5
_OWN_KERNEL = 6
"""Times longer that programs take in a container with a kernel of its own."""
_SLACK_S = 1.0
_BUSY_S = 4.0
"""On top of the second that a return may be late: two cores run all lanes, and perhaps other people's work, at once."""
_SPIN_S = 0.1
_JUST_ENDED = 1.2
"""Times the CPU time at which a program is ended that is given less than that share of a core."""
_HONEST_TRIES = 6
_START_S = 60.0
"""By when the first honest program of a lane must have run."""
_REQUEST_WALLS = 8
"""Of the wall-clock limit of one call, for all calls of a request."""
_LANES = {True: 4, False: 2}
"""Pools side by side for attacks that use up their time, and for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one attack."""

    attack: Attack
    result: ExecutionResult
    elapsed_s: float
    breaches: tuple[str, ...]
    """What should not have happened; none when the attack was held."""


async def run(attacks: Iterable[Attack], backend: str, world: World) -> list[Outcome]:
    """All outcomes, in no particular order. Lanes run side by side, each one attack at a time.

    ``docker+NAME`` is Docker with a container runtime.
    """
    backend, _, runtime = backend.partition("+")
    base = ExecutorConfig(backend=backend, docker_runtime=runtime or None, workers=1, memory_mb=128)
    wall_s = {True: _HASTY_S * (_OWN_KERNEL if runtime else 1), False: _PATIENT_S}
    groups: dict[tuple[bool, int], list[Attack]] = {}
    for attack in attacks:
        groups.setdefault((attack.hasty, attack.repeats), []).append(attack)
    lanes = []
    for (hasty, repeats), group in groups.items():
        config = replace(base, wall_s=wall_s[hasty], workers=repeats)
        queue = iter(group)
        lanes += [Lane(config, repeats, world).attack_all(queue) for _ in range(min(len(group), _LANES[hasty]))]
    with _log_of_the_trainer(world):
        return list(itertools.chain(*await asyncio.gather(*lanes)))


class Lane:
    """One pool; every attack meets an honest neighbour, and is followed by an honest heir, in the same zygotes."""

    def __init__(self, config: ExecutorConfig, repeats: int, world: World) -> None:
        self._repeats = repeats
        self._config = config
        self._world = world
        self._count = itertools.count()

    async def attack_all(self, attacks: Iterator[Attack]) -> list[Outcome]:
        async with SandboxPool(self._config, repeats=self._repeats) as self._pool:
            self._untouched = await self._first_heir()
            return [await self._attack(attack) for attack in attacks]

    async def _first_heir(self) -> str:
        """What all later heirs must find; it may take many tries, for all lanes start at once."""
        deadline = time.monotonic() + _START_S
        while True:
            output = await self._honest(HEIR, f"{next(self._count)}, '{self._world.sentinel}'")
            if output.value is not None:
                return output.value
            assert time.monotonic() < deadline, f"an honest program cannot run before any attack: {output}"

    async def _attack(self, attack: Attack) -> Outcome:
        restarts = self._pool.stats()["restarts"]
        mark = self._world.new_mark()
        # Sent together, so that they wait together in the zygote's memory.
        before_it, (result, elapsed_s), after_it = await asyncio.gather(
            self._neighbour(), self._timed(attack, mark), self._neighbour()
        )
        breaches = [*_misfits(attack, result), *self._world.breaches(mark)]
        if any(self._world.reveals(f"{output.value}{output.error}") for output in result.outputs):
            breaches.append(f"knows what it should not: {result.outputs}")
        # Each repeat has all its time again.
        limit_s = self._config.wall_s * min(_REQUEST_WALLS, 1 + len(attack.inputs)) * attack.repeats
        if all(output.cpu_s < _JUST_ENDED * self._config.wall_s * ADMITTED_SHARE for output in result.outputs):
            # It slept or was given little time; the limit is one of CPU time.
            limit_s = max(limit_s, self._config.wall_s * PATIENCE)
        latest_s = limit_s + _SLACK_S + _BUSY_S
        if elapsed_s > latest_s and elapsed_s > latest_s * _stretch():
            breaches.append(f"took {elapsed_s:.1f} s where {limit_s:.1f} s is the limit")
        breaches += [f"changed its neighbour: {one}" for one in (before_it, after_it) if one is not None]
        heir = await self._heir()
        if heir != self._untouched:
            breaches.append(f"changed what the next program sees: {heir}")
        if self._pool.stats()["restarts"] != restarts:
            breaches.append("ended a zygote")
        return Outcome(attack=attack, result=result, elapsed_s=elapsed_s, breaches=tuple(breaches))

    async def _timed(self, attack: Attack, mark: str) -> tuple[ExecutionResult, float]:
        program = self._world.fill(attack.program, mark)
        request = ExecutionRequest(
            program=program, inputs=attack.inputs, repeats=attack.repeats, static_check=attack.static_check
        )
        started = time.monotonic()
        return await self._pool.execute(request), time.monotonic() - started

    async def _neighbour(self) -> CallResult | None:
        """None when an honest program that runs at the same time says what it should."""
        number = next(self._count)
        output = await self._honest(NEIGHBOUR, f"{number}, '{self._world.sentinel}'")
        return None if output.value == repr([2 * number, self._world.sentinel]) else output

    async def _heir(self) -> str:
        """What an honest program finds in every zygote of the pool."""
        output = await self._honest(HEIR, f"{next(self._count)}, '{self._world.sentinel}'")
        return output.value or str(output)

    async def _honest(self, program: str, inputs: str) -> CallResult:
        """On a busy machine an honest program may run out of a short time; then it gets another try."""
        for _ in range(_HONEST_TRIES):
            request = ExecutionRequest(program=program, inputs=(inputs,), repeats=self._repeats, static_check=False)
            result = await self._pool.execute(request)
            if result.outputs[0].status is not CallStatus.TIMEOUT:
                break
        if result.deterministic is False:
            return replace(result.outputs[0], value=None, error="two zygotes disagree")
        return result.outputs[0]


def _stretch() -> float:
    """How many times longer than its CPU time a computation takes here and now, where others compute too."""
    started, used = time.monotonic(), time.thread_time()
    while (spun_s := time.thread_time() - used) < _SPIN_S:
        pass
    return (time.monotonic() - started) / spun_s


def _misfits(attack: Attack, result: ExecutionResult) -> list[str]:
    """In what the result is not one that was expected."""
    found = []
    for output in result.outputs:
        unexpected = output.status is CallStatus.RAISED and attack.errors and output.error not in attack.errors
        if output.status not in attack.statuses or unexpected:
            found.append(f"unexpected: {output}")
        if output.status is CallStatus.RAISED and not str(output.error).isidentifier():
            found.append(f"the exception has no name: {output}")
        if any("\ud800" <= letter < "\ue000" for letter in f"{output.value}{output.error}"):
            found.append(f"text that cannot be written down: {output}")
        if output.value is not None and attack.value and not attack.value(values.parse(output.value)):
            found.append(f"unexpected value: {output.value[:200]}")
    if attack.never_ok and result.ok:
        found.append(f"accepted: {result}")
    if len(result.outputs) != len(attack.inputs):
        found.append("not one outcome per input")
    return found


@contextlib.contextmanager
def _log_of_the_trainer(world: World) -> Iterator[None]:
    """Let the sandboxes inherit the world's log as their standard error."""
    kept = os.dup(2)
    os.dup2(world.log_writer, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
