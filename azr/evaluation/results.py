"""From scores to a row per kind and difficulty with 95% intervals, as a table, as metrics and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from azr.evaluation.evaluate import TaskScore

ALL = "all"
"""The difficulty of a row over all difficulties, and the kind of a row over all kinds."""
K = 8
RESAMPLES = 2000
LEVEL = 0.95
# Shapes: R = resamples, T = tasks of one group.


class Measure(StrEnum):
    """What a row estimates."""

    GREEDY = "greedy"
    """Share of tasks whose greedy answer is right."""
    ACCURACY = "accuracy"
    """Share of right answers at temperature 1."""
    PASS = f"pass@{K}"
    """Chance that one of K answers at temperature 1 is right."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share between 0 and 1 and its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """How a model did on the tasks of one kind and difficulty; over all kinds, each kind weighs the same."""

    kind: str
    difficulty: str
    tasks: int
    estimates: dict[Measure, Estimate]
    """Those that could be measured: `Measure.PASS` needs K samples."""


def pass_at(k: int, right: int, graded: int) -> float:
    """Chance that one of k samples is right, without bias, from the right ones of ``graded`` >= k samples.

    1 - C(n - c, k) / C(n, k), as in Chen et al. (arXiv 2107.03374), section 2.1.
    """
    assert graded >= k
    return 1 - math.comb(graded - right, k) / math.comb(graded, k)


def estimate(groups: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """Mean of the groups' means, with a percentile bootstrap interval over the tasks of each group.

    ``groups`` holds one value per task; no group is empty. The same values give the same interval every time.
    """
    rng = np.random.default_rng(seed)
    values = [np.asarray(group, dtype=np.float64) for group in groups]
    means_R = np.mean([_resample_means(rng, values_T) for values_T in values], axis=0)
    low, high = np.quantile(means_R, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(np.mean([values_T.mean() for values_T in values])), float(low), float(high))


def _resample_means(rng: np.random.Generator, values_T: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Means of R samples of T values, drawn with replacement."""
    index_RT = rng.integers(len(values_T), size=(RESAMPLES, len(values_T)))
    return values_T[index_RT].mean(axis=1)


def rows(scores: Sequence[TaskScore]) -> list[Row]:
    """Every kind and all kinds together, each by difficulty and over all difficulties."""
    kinds = list(dict.fromkeys(score.kind for score in scores))
    difficulties = list(dict.fromkeys(score.difficulty for score in scores))
    table = []
    for kind, members in (*((kind, [kind]) for kind in kinds), (ALL, kinds)):
        for difficulty in (*difficulties, ALL):
            of_kind = [[s for s in scores if s.kind == member and difficulty in (s.difficulty, ALL)]
                       for member in members]  # fmt: skip
            table.append(_row(kind, difficulty, of_kind))
    return [row for row in table if row.tasks]


def _row(kind: str, difficulty: str, groups: Sequence[Sequence[TaskScore]]) -> Row:
    """One row from the scores of each kind in it."""
    measures: dict[Measure, Callable[[TaskScore], float | None]] = {
        Measure.GREEDY: lambda s: s.greedy,
        Measure.ACCURACY: lambda s: s.right / s.graded if s.graded else None,
        Measure.PASS: lambda s: pass_at(K, s.right, s.graded) if s.graded >= K else None,
    }
    estimates = {}
    for name, measure in measures.items():
        values = [[float(v) for v in map(measure, group) if v is not None] for group in groups]
        measured = [group for group in values if group]
        if measured:
            estimates[name] = estimate(measured)
    return Row(kind, difficulty, sum(map(len, groups)), estimates)


def metrics(table: Sequence[Row]) -> dict[str, float]:
    """``<kind>/<measure>`` with ``_low`` and ``_high``, and ``<kind>/<difficulty>/<measure>``.

    The kind ``mean`` is over all kinds.
    """
    named: dict[str, float] = {}
    for row in table:
        kind = "mean" if row.kind == ALL else row.kind
        for measure, share in row.estimates.items():
            if row.difficulty == ALL:
                named[f"{kind}/{measure}"] = share.value
                named |= {f"{kind}/{measure}_low": share.low, f"{kind}/{measure}_high": share.high}
            else:
                named[f"{kind}/{row.difficulty}/{measure}"] = share.value
    return named


def text_table(table: Sequence[Row]) -> str:
    """Shares in percent with their 95% intervals, one line per row."""
    measures = list(dict.fromkeys(measure for row in table for measure in row.estimates))
    lines: list[tuple[str, ...]] = [("kind", "difficulty", "tasks", *measures)]
    for row in table:
        shares = (_percent(row.estimates.get(measure)) for measure in measures)
        lines.append((row.kind, row.difficulty, str(row.tasks), *shares))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _percent(share: Estimate | None) -> str:
    return "-" if share is None else f"{share.value:.1%} [{100 * share.low:4.1f}, {100 * share.high:4.1f}]"


def write_results(path: Path, about: dict[str, Any], scores: Sequence[TaskScore]) -> None:
    """One JSON object: what was evaluated and how, the rows, and the score of every task."""
    tree = {**about, "rows": [asdict(row) for row in rows(scores)], "scores": [asdict(score) for score in scores]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree, indent=1) + "\n")
