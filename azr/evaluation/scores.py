"""Scores of a suite from its answers: greedy accuracy, mean and pass@k with intervals, and failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, TypeVar

from azr.evaluation.suites import SUITES, top
from azr.records import Judgement, Sample, grouped
from azr.tasks.base import Verdict

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

GREEDY = "greedy"
"""Measure: the share of questions whose greedy answer is right."""
RESAMPLES = 2000
LEVEL = 0.95
Measure = Callable[[Sequence[Sample]], float | None]
"""From the answers to one question; None if those that it looks at are missing or ungraded."""
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
T = TypeVar("T")
_VERDICTS = {True: Verdict.RIGHT, False: Verdict.WRONG, None: None}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95% interval."""

    value: float
    low: float
    high: float


def pass_at(k: int, right: int, graded: int) -> float:
    """Return the unbiased chance that one of k samples is right, given ``right`` of ``graded`` >= k samples.

    1 - C(n - c, k) / C(n, k), as in Chen et al. (arXiv 2107.03374), section 2.1.
    """
    assert graded >= k
    return 1 - math.comb(graded - right, k) / math.comb(graded, k)


def estimate(groups: Sequence[Sequence[float]], *, signed: bool = False) -> Estimate:
    """Return the mean of the groups' means with its 95% interval.

    ``groups`` holds one value per question; no group is empty. Values are shares, or with ``signed`` differences of
    shares. Shares of questions (all values 0 or 1) get `_wilson`, other values a percentile bootstrap over the
    questions of each group. The same values give the same interval, in any order. Shapes: T = questions of one group.
    """
    import numpy as np  # only now, since commands that score nothing come here

    values = [np.asarray(group, dtype=np.float64) for group in sorted(map(sorted, groups))]
    value = float(np.mean([values_T.mean() for values_T in values]))
    if not signed and all(np.isin(values_T, (0.0, 1.0)).all() for values_T in values):
        return _wilson(values, value)
    rng = np.random.default_rng(0)
    means = [values_T[rng.integers(len(values_T), size=(RESAMPLES, len(values_T)))].mean(1) for values_T in values]
    low, high = map(float, np.quantile(np.mean(means, axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    if low == high and not signed:
        # Equal shares say as little about other questions as 0 right answers to them.
        spread = Z**2 / (sum(map(len, values)) + Z**2)
        low, high = max(low - spread, 0.0), min(high + spread, 1.0)
    return Estimate(value, low, high)


def _wilson(groups: Sequence[npt.NDArray[np.float64]], value: float) -> Estimate:
    """Return the Wilson score interval; of several groups the distances to the bounds are added in quadrature. That is
    Newcombe's method for sums of independent shares (Statistics in Medicine 17, 1998)."""
    below = above = 0.0
    for values_T in groups:
        count, share = len(values_T), values_T.mean()
        middle = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
        half = Z / (1 + Z**2 / count) * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
        below, above = below + (share - middle + half) ** 2, above + (middle + half - share) ** 2
    low, high = value - math.sqrt(below) / len(groups), value + math.sqrt(above) / len(groups)
    return Estimate(value, max(low, 0.0), min(high, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Scores on all questions of a suite, or on one group of them."""

    suite: str
    group: str
    """Group of the questions; empty for the whole suite."""
    part: str
    """Part of the verdict, such as ``base``; empty for the whole verdict."""
    questions: int
    estimates: Mapping[str, Estimate]
    """``greedy``, ``mean@n`` (share of right samples among n) and ``pass@k``; only those that were measured."""
    truncated: float
    malformed: float
    ungraded: float
    """Shares of all answers."""
    tokens: float
    """Mean of all answers."""

    @property
    def name(self) -> str:
        """Name in a table: ``mbpp+``, ``mbpp+ (base)``, ``exam/deduction/short``."""
        path = f"{self.suite}/{self.group}" if self.group else self.suite
        return f"{path} ({self.part})" if self.part else path


def rows(answers: Sequence[Sample], ks: Collection[int], samples: int) -> list[Row]:
    """Return one row per suite, per part of its verdicts, and per group if there are several."""
    measures: dict[str, Measure] = {GREEDY: greedy_share}
    if samples:
        measures[f"mean@{samples}"] = sampled_share
    measures |= {f"pass@{k}": partial(_pass_at, k) for k in sorted(ks)}
    found = []
    for suite in dict.fromkeys(answer.kind for answer in answers):
        of_suite = [answer for answer in answers if answer.kind == suite]
        row = partial(_row, suite=suite, measures=measures)
        found.append(row(of_suite))
        # A part of one answer is a part of all; malformed answers fail it.
        for part in dict.fromkeys(part for answer in of_suite for part in _parts(answer)):
            judged = [(answer, _VERDICTS.get(_parts(answer).get(part))) for answer in of_suite]
            by_part = [replace(each, judgement=Judgement(verdict=said)) if said else each for each, said in judged]
            found.append(row(by_part, part=part))
        groups = list(dict.fromkeys(answer.group for answer in of_suite))
        if len(groups) > 1:
            paths = dict.fromkeys(path for group in groups for path in (top(group), group))
            found += [row([a for a in of_suite if path in (a.group, top(a.group))], group=path) for path in paths]
    return found


def _parts(answer: Sample) -> Mapping[str, bool]:
    """Return the verdicts among the parts; a number is not a row of the table."""
    parts = {} if answer.judgement is None else answer.judgement.parts
    return {name: value for name, value in parts.items() if isinstance(value, bool)}


def weighed(suite: str, values: Iterable[tuple[str, T]]) -> list[list[T]]:
    """Return values, each with its group, in sets of equal weight: one per top-level group if the suite's count alike,
    else one."""
    alike = suite in SUITES and SUITES[suite].groups_alike
    return list(grouped((top(group) if alike else "", value) for group, value in values).values())


def _row(
    answers: Sequence[Sample], suite: str, measures: Mapping[str, Measure], group: str = "", part: str = ""
) -> Row:
    """Score these answers. Ungraded ones do not count; malformed ones are wrong."""
    questions = grouped((answer.problem_id, answer) for answer in answers)
    estimates = {}
    for name, measure in measures.items():
        values = ((its[0].group, measure(its)) for its in questions.values())
        if sets := weighed(suite, ((group, value) for group, value in values if value is not None)):
            estimates[name] = estimate(sets)
    return Row(
        suite=suite,
        group=group,
        part=part,
        questions=len(questions),
        estimates=estimates,
        truncated=fmean(answer.finish_reason != "stop" for answer in answers),
        malformed=fmean(answer.verdict == Verdict.MALFORMED for answer in answers),
        ungraded=fmean(answer.verdict == Verdict.UNGRADED for answer in answers),
        tokens=fmean(answer.response_tokens or 0 for answer in answers),
    )


def greedy_share(answers: Sequence[Sample]) -> float | None:
    """Return 1 if the greedy answer to a question is right, else 0; None if it is missing or ungraded."""
    return next((float(right) for right in _graded(answers, greedy=True)), None)


def sampled_share(answers: Sequence[Sample]) -> float | None:
    """Return the share of right sampled answers to a question; None if none was graded."""
    graded = _graded(answers, greedy=False)
    return sum(graded) / len(graded) if graded else None


def _pass_at(k: int, answers: Sequence[Sample]) -> float | None:
    graded = _graded(answers, greedy=False)
    return pass_at(k, sum(graded), len(graded)) if len(graded) >= k else None


def _graded(answers: Sequence[Sample], *, greedy: bool) -> list[bool]:
    """Return whether each graded answer is right."""
    asked = (answer.verdict for answer in answers if (answer.index is None) is greedy)
    return [verdict == Verdict.RIGHT for verdict in asked if verdict != Verdict.UNGRADED]


def metrics(table: Sequence[Row]) -> dict[str, float]:
    """Return metrics: ``<suite>/<measure>`` with ``_low`` and ``_high``, ``<suite>/<group>/<measure>``, and shares of
    all answers. Measures of parts are named like those of groups."""
    named: dict[str, float] = {}
    for row in table:
        path = "/".join(filter(None, (row.suite, row.group, row.part)))
        for measure, share in row.estimates.items():
            named[f"{path}/{measure}"] = share.value
            if not row.group and not row.part:
                named |= {f"{path}/{measure}_low": share.low, f"{path}/{measure}_high": share.high}
        if not row.group and not row.part:
            named |= {f"{path}/{name}": getattr(row, name) for name in ("truncated", "malformed", "ungraded", "tokens")}
    return named
