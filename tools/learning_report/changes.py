"""How much changed from the start of a run to its end, in one run and over the seeds of an arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from azr.evaluation.evaluate import Marks
from azr.evaluation.result import ALL, GREEDY
from azr.evaluation.statistics import estimate
from azr.runs.metrics import EVAL, Metrics, scalar
from azr.tasks.base import RejectReason
from tools.learning_report.runs import Run

WINDOW = 5
"""Steps that make up the start, and the end, of a run's proposals."""
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5% points of Student's t with 1, 2, ... degrees of freedom."""


@dataclass(frozen=True)
class Change:
    """Shares at the start and at the end, and the 95% interval of their difference where there is one."""

    start: float
    end: float
    interval: tuple[float, float] | None = None

    @property
    def gain(self) -> float:
        return self.end - self.start

    def __str__(self) -> str:
        """In percent: ``19.9 → 31.0 (+11.1 [+9.8, +12.4])``."""
        within = (
            "" if self.interval is None else " [{:+.1f}, {:+.1f}]".format(*(100 * bound for bound in self.interval))
        )
        return f"{100 * self.start:.1f} → {100 * self.end:.1f} ({100 * self.gain:+.1f}{within})"


def in_run_change(run: Run, kind: str, band: str, measure: str) -> Change | None:
    """From the first to the last exam inside the run; None when they have no such measure."""
    path = "/".join([EVAL + ("mean" if kind == ALL else kind), *([] if band == ALL else [band]), measure])
    first, *_, last = run.exams
    return Change(scalar(first, path), scalar(last, path)) if path in first and path in last else None


def full_change(run: Run, kind: str, band: str, measure: str) -> Change | None:
    """In the whole exam; kinds weigh the same. The interval is a bootstrap over tasks, paired task by task."""
    assert run.full is not None
    before, after = run.full
    ends = {mark.id: _score(mark, measure) for mark in after}
    pairs: dict[str, list[tuple[float, float]]] = {}
    for mark in before:
        start, end = _score(mark, measure), ends[mark.id]
        if kind in (mark.kind, ALL) and band in (mark.band, ALL) and start is not None and end is not None:
            pairs.setdefault(mark.kind, []).append((start, end))
    if not pairs:
        return None
    gain = estimate([[end - start for start, end in own] for own in pairs.values()])
    start, end = (fmean(fmean(pair[side] for pair in own) for own in pairs.values()) for side in (0, 1))
    return Change(start, end, (gain.low, gain.high))


def _score(mark: Marks, measure: str) -> float | None:
    """Share of right answers; None where the executor lost them all."""
    if measure == GREEDY:
        return None if mark.greedy is None else float(mark.greedy)
    return mark.right / mark.graded if mark.graded else None


def proposal_change(run: Run, wanted: Callable[[Metrics], float], among: Callable[[Metrics], float]) -> Change | None:
    """Share of the proposals of the first and of the last steps; None when there were none to have a share of."""
    window = max(1, min(WINDOW, len(run.steps) // 2))
    parts = run.steps[:window], run.steps[-window:]
    totals = [sum(map(among, part)) for part in parts]
    if not all(totals):
        return None
    start, end = (sum(map(wanted, part)) / total for part, total in zip(parts, totals, strict=True))
    return Change(start, end)


def judged(step: Metrics) -> float:
    """Proposals of a step that the executor did not lose."""
    return _count(step, "proposed") - _count(step, RejectReason.LOST)


def fresh(step: Metrics) -> float:
    """Proposals of a step that became tasks."""
    return _count(step, "valid")


def valid(step: Metrics) -> float:
    """Those, and the ones refused only because the buffer or the exam has them already."""
    return fresh(step) + _count(step, RejectReason.DUPLICATE) + _count(step, RejectReason.IN_BENCHMARK)


def learnable(step: Metrics) -> float:
    """Proposals of a step that some attempts solved and others did not."""
    histograms = [value for name, value in step.items() if name.endswith("/proposer/solve_rate_hist")]
    return sum(sum(bins[1:-1]) for bins in histograms if isinstance(bins, list))


def _count(step: Metrics, outcome: str) -> float:
    """Over all kinds."""
    return sum(scalar(step, name) for name in step if name.endswith(f"/proposer/funnel/{outcome}"))


def over_seeds(changes: Sequence[Change]) -> Change:
    """Means over the runs of an arm; with several, the interval of the mean difference over them."""
    if len(changes) == 1:
        return changes[0]
    gain, half = fmean(change.gain for change in changes), half_width([change.gain for change in changes])
    start, end = fmean(change.start for change in changes), fmean(change.end for change in changes)
    return Change(start, end, (gain - half, gain + half))


def half_width(values: Sequence[float]) -> float:
    """Half of Student's 95% interval of the mean of two to ten values.

    Raises:
        ValueError: there are more.
    """
    if len(values) > len(STUDENT) + 1:
        raise ValueError(f"An arm has {len(values)} runs; give at most {len(STUDENT) + 1}.")
    return STUDENT[len(values) - 2] * stdev(values) / len(values) ** 0.5
