"""How long the phases of a step take when many tasks are in several phases at once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PLAYING_PHASES = frozenset({"propose", "estimate", "solve"})
"""Phases that wait for responses."""
LEARNING_PHASES = frozenset({"critic values", "reference logprobs", "policy logprobs", "train critic", "train policy"})
"""Phases that go over every token of the batch."""


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Times of one step."""

    seconds: dict[str, float]
    """Per phase, the wall time in which anything was in it; phases overlap, so sums mean nothing."""
    wall_s: float
    exposed_s: float
    """Wall time in which every open phase was one of those that should cost nothing because they overlap others."""
    learned_beside_s: float
    """Wall time in which trainers worked while responses were sampled."""
    cpu_share: float
    """CPU time of this process divided by wall time; 1.0 is one busy core."""
    cpu_s: float
    """CPU time of this process, of all of its threads."""


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
        self._wall, self._cpu = wall, cpu
        self._open: defaultdict[str, int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._exposed_s = self._learned_beside_s = 0.0
        self._start = self._counted_until = wall()
        self._cpu_start = cpu()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Something is going on in this phase while the context is open."""
        self._count()
        self._open[name] += 1
        try:
            yield
        finally:
            self._count()
            self._open[name] -= 1

    def step_timing(self) -> StepTiming:
        """Times since the last call; of a phase that is still going on, the time up to now."""
        self._count()
        now, cpu = self._counted_until, self._cpu()
        elapsed = max(now - self._start, 1e-9)
        cpu_s = cpu - self._cpu_start
        timing = StepTiming(
            dict(self._seconds), elapsed, self._exposed_s, self._learned_beside_s, cpu_s / elapsed, cpu_s
        )
        self._seconds, self._start, self._cpu_start = defaultdict(float), now, cpu
        self._exposed_s = self._learned_beside_s = 0.0
        return timing

    def _count(self) -> None:
        """Adds the time since the last change of open phases to those that were open."""
        now = self._wall()
        passed, self._counted_until = now - self._counted_until, now
        going_on = {name for name, times in self._open.items() if times}
        for name in going_on:
            self._seconds[name] += passed
        if going_on and going_on <= self._overlapped:
            self._exposed_s += passed
        if going_on & PLAYING_PHASES and going_on & LEARNING_PHASES:
            self._learned_beside_s += passed
