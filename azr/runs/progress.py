"""What a run is doing right now, how far it is and how long it will take: the state, free of any display."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from azr.runs.metrics import Metrics, number, solve_rates, valid_rate


@dataclass(slots=True)
class Phase:
    """One kind of work inside a step; several go on at once."""

    name: str
    since: float
    """Clock reading when it began, seconds."""
    declared: int | None = None
    entered: int = 0
    done: int = 0

    @property
    def total(self) -> int | None:
        """How much there is to do, as far as anyone knows."""
        return self.declared if self.declared is not None else self.entered or None

    @property
    def finished(self) -> bool:
        return self.total is not None and self.done >= self.total

    def text(self, now: float) -> str:
        """``solve 4/36``, or the time it has taken where there is only one thing to count."""
        if self.total == 1:
            return f"{self.name} {duration(now - self.since)}"
        return f"{self.name} {self.done}" + (f"/{self.total}" if self.total is not None else "")


class ProgressState:
    """Where a run is."""

    def __init__(
        self,
        total_steps: int,
        first_step: int = 1,
        max_minutes: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_steps = total_steps
        self.step = first_step
        """The step that is going on, from 1; one more than `total_steps` at the end."""
        self.phases: dict[str, Phase] = {}
        self._clock = clock
        self._preparing = True
        self._since = clock()
        self._until = math.inf if max_minutes is None else self._since + 60 * max_minutes
        self._durations: list[float] = []

    def phase(self, name: str) -> Phase:
        """The phase of that name, begun if need be."""
        return self.phases.setdefault(name, Phase(name, self._clock()))

    def step_begun(self) -> None:
        """What came before, such as starting engines, is no part of this step."""
        self._preparing = False
        self.phases.clear()
        self._since = self._clock()

    def step_done(self) -> float:
        """Ends the step and says how many seconds it took."""
        self._durations.append(self._clock() - self._since)
        self.step += 1
        self.step_begun()
        return self._durations[-1]

    def elapsed_s(self) -> float:
        """Since the step began."""
        return self._clock() - self._since

    def remaining_s(self) -> float | None:
        """Median of past steps times what is left, or the time that the run still has; None before the first step is
        done."""
        if not self._durations:
            return None
        median = statistics.median(self._durations)
        left = self.total_steps - self.step + 1
        return max(min(median * left - min(self.elapsed_s(), median), self._until - self._clock()), 0.0)

    def line(self) -> str:
        """``step 3/24 · propose 12/36 · solve 4/36 · 12 s · about 7 min left``."""
        now = self._clock()
        # A copy, because another thread draws this while phases begin.
        going = [phase.text(now) for phase in list(self.phases.values()) if not phase.finished]
        return " · ".join([self._stage(), *going, duration(self.elapsed_s()), *self._left()])

    def _stage(self) -> str:
        if self._preparing:
            return "starting"
        return "ending" if self.step > self.total_steps else self._heading(self.step)

    def counts(self) -> tuple[object, ...]:
        """Changes exactly when something has begun or moved on."""
        return self.step, *((phase.name, phase.done, phase.total) for phase in list(self.phases.values()))

    def summary(self, step: int, metrics: Metrics, seconds: float) -> str:
        """``step 3/24 · valid 91% · solve ded .41 abd .38 · loss 0.0123 · 21 s · about 7 min left``."""
        parts = [self._heading(step)]
        valid = valid_rate(metrics)
        if valid is not None:
            parts.append(f"valid {valid:.0%}")
        rates = solve_rates(metrics)
        if rates:
            parts.append("solve " + " ".join(f"{kind[:3]} {share(rate)}" for kind, rate in rates.items()))
        if "policy/loss" in metrics:
            parts.append(f"loss {number(metrics, 'policy/loss'):.4f}")
        return " · ".join([*parts, duration(seconds), *self._left()])

    def _heading(self, step: int) -> str:
        return f"step {step}/{self.total_steps}"

    def _left(self) -> list[str]:
        left = self.remaining_s()
        if left is None:
            return [f"time left known after step {self.step}"]
        return [f"about {duration(left)} left"] if left else []


def duration(seconds: float) -> str:
    """``8 s``, ``7 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def share(rate: float) -> str:
    """A rate between 0 and 1 in three characters: ``.41``, ``1.0``."""
    return "1.0" if rate >= 0.995 else f"{rate:.2f}"[1:]
