"""How long the phases of a step take when many tasks are in several phases at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Times of one step."""

    seconds: dict[str, float]
    """Per phase, the wall time in which anything was in it; phases overlap, so sums mean nothing."""
    wall_s: float
    exposed_s: float
    """Wall time in which every open phase was one of those that should cost nothing because they overlap others."""
    cpu_share: float
    """CPU time of this process divided by wall time; 1.0 is one busy core."""


class PhaseClock:
    """Times overlapping phases. One event loop may enter a phase any number of times at once; threads may not."""

    def __init__(
        self,
        overlapped: Collection[str] = (),
        wall: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        """``overlapped``: phases that should cost no time of their own because they overlap others."""
        self._overlapped = frozenset(overlapped)
        self._exposed_s = 0.0
        self._counted_until = wall()
        self._wall, self._cpu = wall, cpu
        self._active: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._start = (wall(), cpu())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Something is going on in this phase while the context is open."""
        self._count()
        self._active[name] = self._active.get(name, 0) + 1
        if self._active[name] == 1:
            self._since[name] = self._wall()
        try:
            yield
        finally:
            self._count()
            self._active[name] -= 1
            if self._active[name] == 0:
                self._add(name, self._wall())

    def step_timing(self) -> StepTiming:
        """Times since the last call; a phase that is still going on counts up to now and starts again."""
        self._count()
        wall, cpu = self._wall(), self._cpu()
        for name, active in self._active.items():
            if active:
                self._add(name, wall)
                self._since[name] = wall
        elapsed = max(wall - self._start[0], 1e-9)
        timing = StepTiming(self._seconds, elapsed, self._exposed_s, (cpu - self._start[1]) / elapsed)
        self._seconds, self._exposed_s, self._start = {}, 0.0, (wall, cpu)
        return timing

    def _count(self) -> None:
        """Account for the time since the last change of open phases."""
        now = self._wall()
        going = {name for name, active in self._active.items() if active}
        if going and going <= self._overlapped:
            self._exposed_s += now - self._counted_until
        self._counted_until = now

    def _add(self, name: str, until: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + until - self._since[name]
