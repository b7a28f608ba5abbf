"""How much changed from the start of a run to its end, in one run and over the seeds of an arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from azr.errors import UserError
from azr.evaluation.scores import GREEDY, estimate, greedy_share, sampled_share
from azr.runs.metrics import Metrics, scalar
from azr.tasks.base import RejectReason
from tools.learning_report.runs import EXAM, Run

ALL = "all"
"""Every kind, or every difficulty."""
SAMPLED = "samples"
"""The share of right answers at temperature 1, as a measure beside ``greedy``."""
WINDOW = 5
"""Steps that make up the start, and the end, of a run's proposals."""
RESAMPLES = 4000
"""Of seeds and tasks, for an interval over both."""
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


def exam_metrics(run: Run, kind: str, difficulty: str, measure: str) -> list[str]:
    """Names of the metrics whose mean is a measure of the exam inside a run; kinds weigh the same."""
    name = measure if measure == GREEDY else f"mean@{run.config.eval.samples}"
    if difficulty == ALL:
        return [f"{EXAM}/{name}" if kind == ALL else f"{EXAM}/{kind}/{name}"]
    kinds = run.config.selfplay.kinds if kind == ALL else [kind]
    return [f"{EXAM}/{each}/{difficulty}/{name}" for each in kinds]


def in_run_change(run: Run, kind: str, difficulty: str, measure: str) -> Change | None:
    """From the first to the last evaluation inside the run; None when they have no such measure."""
    names = exam_metrics(run, kind, difficulty, measure)
    first, *_, last = run.evals
    if not all(name in line for name in names for line in (first, last)):
        return None
    start, end = (fmean(scalar(line, name) for name in names) for line in (first, last))
    return Change(start, end)


def whole_exam_difference(ours: Sequence[Run], theirs: Sequence[Run] | None, measure: str) -> Change:
    """From another arm's mean on the whole exam, or with none from the first model's, to that of an arm.

    The interval is a bootstrap over seeds and tasks at once: both arms get the same tasks, and the same seeds where
    they have the same. Kinds weigh the same.
    """
    rng = np.random.default_rng(1)
    paired = theirs is None or [run.config.run.seed for run in ours] == [run.config.run.seed for run in theirs]
    after = [_shares(run, 1, measure) for run in ours]
    before = [_shares(run, 0, measure) for run in ours] if theirs is None else [_shares(r, 1, measure) for r in theirs]
    by_kind = []
    for kind in after[0]:
        tasks = sorted(set.intersection(*(set(of_run[kind]) for of_run in (*after, *before))))
        by_kind.append([np.array([[of_run[kind][t] for t in tasks] for of_run in each]) for each in (after, before)])
    gains = []
    for _ in range(RESAMPLES):
        drawn = [rng.integers(after_ST.shape[1], size=after_ST.shape[1]) for after_ST, _ in by_kind]
        seeds = rng.integers(len(after), size=len(after))
        others = seeds if paired else rng.integers(len(before), size=len(before))
        gains.append(
            fmean(
                after_ST[seeds][:, tasks].mean() - before_ST[others][:, tasks].mean()
                for (after_ST, before_ST), tasks in zip(by_kind, drawn, strict=True)
            )
        )
    start, end = (fmean(float(of_kind[side].mean()) for of_kind in by_kind) for side in (1, 0))
    low, high = np.quantile(gains, (0.025, 0.975))
    return Change(start, end, (float(low), float(high)))


def _shares(run: Run, side: int, measure: str, kind: str = ALL, difficulty: str = ALL) -> dict[str, dict[str, float]]:
    """Share of right answers by kind and task, before (0) or after (1) the run; without tasks whose answers the
    executor lost."""
    assert run.whole is not None
    by_kind: dict[str, dict[str, float]] = {}
    for task, answers in run.whole[side].items():
        of_kind, _, of_difficulty = answers[0].group.partition("/")
        share = greedy_share(answers) if measure == GREEDY else sampled_share(answers)
        if share is not None and kind in (of_kind, ALL) and difficulty in (of_difficulty, ALL):
            by_kind.setdefault(of_kind, {})[task] = share
    return by_kind


def whole_exam_change(run: Run, kind: str, difficulty: str, measure: str) -> Change | None:
    """On the whole exam; kinds weigh the same. The interval is a bootstrap over tasks, paired task by task."""
    before, after = (_shares(run, side, measure, kind, difficulty) for side in (0, 1))
    pairs = {
        of_kind: [(start, after[of_kind][task]) for task, start in shares.items() if task in after.get(of_kind, {})]
        for of_kind, shares in before.items()
    }
    pairs = {of_kind: of_tasks for of_kind, of_tasks in pairs.items() if of_tasks}
    if not pairs:
        return None
    gain = estimate([[end - start for start, end in of_kind] for of_kind in pairs.values()], signed=True)
    start, end = (fmean(fmean(pair[side] for pair in of_kind) for of_kind in pairs.values()) for side in (0, 1))
    return Change(start, end, (gain.low, gain.high))


def proposal_change(run: Run, part: Callable[[Metrics], float], whole: Callable[[Metrics], float]) -> Change | None:
    """Share of the proposals of the first and of the last steps; None when there were none to have a share of."""
    window = max(1, min(WINDOW, len(run.steps) // 2))
    windows = run.steps[:window], run.steps[-window:]
    totals = [sum(map(whole, steps)) for steps in windows]
    if not all(totals):
        return None
    start, end = (sum(map(part, steps)) / total for steps, total in zip(windows, totals, strict=True))
    return Change(start, end)


def judged(step: Metrics) -> float:
    """Proposals of a step that the executor did not lose."""
    return _count(step, "proposed") - _count(step, RejectReason.LOST)


def fresh(step: Metrics) -> float:
    """Proposals of a step that became tasks."""
    return _count(step, "valid")


def valid(step: Metrics) -> float:
    """Those, and the ones rejected only because the buffer or the exam has them already."""
    return fresh(step) + _count(step, RejectReason.DUPLICATE) + _count(step, RejectReason.IN_BENCHMARK)


def learnable(step: Metrics) -> float:
    """Proposals of a step that some attempts solved and others did not."""
    histograms = [value for name, value in step.items() if name.endswith("/proposer/solve_rate_hist")]
    return sum(sum(bins[1:-1]) for bins in histograms if isinstance(bins, list))


def mean_of_tasks(run: Run, number: str) -> tuple[float, float] | None:
    """Means of a number of the programs of new tasks, over the first and the last steps that have some."""
    steps = [*run.programs[number].values()]
    window = max(1, min(WINDOW, len(steps) // 2))
    return (fmean(steps[:window]), fmean(steps[-window:])) if steps else None


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
        UserError: there are more.
    """
    if len(values) > len(STUDENT) + 1:
        raise UserError(f"An arm has {len(values)} runs; give at most {len(STUDENT) + 1}.")
    return STUDENT[len(values) - 2] * stdev(values) / len(values) ** 0.5
