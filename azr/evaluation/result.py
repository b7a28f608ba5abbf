"""The result of an exam: a row per kind and band, as a table, as metrics and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from azr.evaluation.evaluate import Marks
from azr.evaluation.statistics import Estimate, estimate, pass_at

ALL = "all"
"""The band of a row over all bands, and the kind of a row over all kinds."""
K = 8
GREEDY, ACCURACY, PASS = "greedy", "accuracy", f"pass@{K}"


@dataclass(frozen=True, slots=True)
class Row:
    """How a model did on the questions of one kind and band; over all kinds, each kind weighs the same."""

    kind: str
    band: str
    tasks: int
    estimates: dict[str, Estimate]
    """By measure: ``greedy``, ``accuracy`` (at temperature 1) and, given as many samples, ``pass@8``."""


def rows(marks: Sequence[Marks]) -> list[Row]:
    """Every kind and all kinds together, each by band and over all bands."""
    kinds, bands = (list(dict.fromkeys(names)) for names in ([m.kind for m in marks], [m.band for m in marks]))
    found = [
        _row(kind, band, [[m for m in marks if m.kind == own and band in (m.band, ALL)] for own in members])
        for kind, members in (*((kind, [kind]) for kind in kinds), (ALL, kinds))
        for band in (*bands, ALL)
    ]
    return [row for row in found if row.tasks]


def _row(kind: str, band: str, groups: Sequence[Sequence[Marks]]) -> Row:
    """One row from the marks of each kind in it."""
    measures: dict[str, Callable[[Marks], float | None]] = {
        GREEDY: lambda m: m.greedy,
        ACCURACY: lambda m: m.right / m.graded if m.graded else None,
        PASS: lambda m: pass_at(K, m.right, m.graded) if m.graded >= K else None,
    }
    estimates = {}
    for name, measure in measures.items():
        values = [[float(v) for v in map(measure, group) if v is not None] for group in groups]
        known = [group for group in values if group]
        if known:
            estimates[name] = estimate(known)
    return Row(kind, band, sum(map(len, groups)), estimates)


def metrics(found: Sequence[Row]) -> dict[str, float]:
    """``<kind>/<measure>`` with ``_low`` and ``_high``, and ``<kind>/<band>/<measure>``; all kinds are ``mean``."""
    named: dict[str, float] = {}
    for row in found:
        kind = "mean" if row.kind == ALL else row.kind
        for measure, share in row.estimates.items():
            if row.band == ALL:
                named[f"{kind}/{measure}"] = share.value
                named |= {f"{kind}/{measure}_low": share.low, f"{kind}/{measure}_high": share.high}
            else:
                named[f"{kind}/{row.band}/{measure}"] = share.value
    return named


def table(found: Sequence[Row]) -> str:
    """Shares in percent with their 95% intervals, one line per row."""
    measures = list(dict.fromkeys(measure for row in found for measure in row.estimates))
    lines = [("kind", "band", "tasks", *measures)]
    for row in found:
        shares = (_percent(row.estimates.get(measure)) for measure in measures)
        lines.append((row.kind, row.band, str(row.tasks), *shares))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _percent(share: Estimate | None) -> str:
    if share is None:
        return "-"
    return f"{share.value:.1%} [{100 * share.low:4.1f}, {100 * share.high:4.1f}]"


def write(path: Path, about: dict[str, Any], marks: Sequence[Marks], found: Sequence[Row]) -> None:
    """One JSON object: what was graded and how, the rows, and the marks of every question."""
    tree = {**about, "rows": [asdict(row) for row in found], "marks": [asdict(mark) for mark in marks]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree, indent=1) + "\n")
