"""Results of an evaluation: a JSON file of numbers and protocol, a Markdown table, and a bar chart."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from azr.errors import UserError
from azr.evaluation.answer_file import ANSWERS as ANSWERS
from azr.evaluation.estimates import Estimate
from azr.evaluation.scores import Row

RESULTS, TABLE, CHART = "results.json", "table.md", "chart.png"
FORMAT = 1
"""Version of the results file."""


def markdown(table: Sequence[Row]) -> str:
    """Return a table of shares in percent with 95% intervals; one line per row."""
    measures = list(dict.fromkeys(measure for row in table for measure in row.estimates))
    lines = [("suite", "questions", *measures, "truncated", "malformed", "ungraded", "tokens")]
    for row in table:
        shares = (percent(row.estimates.get(measure)) for measure in measures)
        failures = (f"{share:.1%}" for share in (row.truncated, row.malformed, row.ungraded))
        lines.append((row.name, str(row.questions), *shares, *failures, f"{row.tokens:.0f}"))
    return aligned(lines, left=1)


def aligned(lines: Sequence[Sequence[str]], left: int) -> str:
    """Return a Markdown table. The first line is its head; the first ``left`` columns are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        sides = (
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(sides)} |"

    rule = ["-" * width if i < left else f"{'-' * (width - 1)}:" for i, width in enumerate(widths)]
    return "\n".join([line(lines[0]), line(rule), *map(line, lines[1:])])


def percent(share: Estimate | None) -> str:
    """Return a share as text, such as ``31.2 [27.9, 34.6]``."""
    return "-" if share is None else f"{100 * share.value:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def write_results(folder: Path, about: Mapping[str, Any], table: Sequence[Row]) -> None:
    """Write results and table, each by rename."""
    tree = {"format": FORMAT, **about, "rows": [asdict(row) for row in table]}
    _write(folder / RESULTS, json.dumps(tree, indent=1, ensure_ascii=False) + "\n")
    _write(folder / TABLE, markdown(table) + "\n")


def replace_table(folder: Path, table: Sequence[Row]) -> None:
    """Replace the rows of existing results, and the table."""
    path = folder / RESULTS
    try:
        about = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
        write_results(folder, {name: about[name] for name in about if name not in ("format", "rows")}, table)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{path} holds no results of an evaluation: remove it, and --resume writes it again."
        ) from error


def _write(path: Path, text: str) -> None:
    staging = path.with_name(f".{path.name}")
    try:
        staging.write_text(text, encoding="utf-8", errors="surrogatepass")
        os.replace(staging, path)
    except OSError as error:
        staging.unlink(missing_ok=True)
        raise UserError(f"{path} cannot be written ({error.strerror}): make room, then --resume.") from error


def write_chart(path: Path, by_model: Mapping[str, Sequence[Row]]) -> None:
    """Draw greedy accuracy with its 95% interval, one bar for each suite and model.

    Raises UserError when matplotlib is missing.
    """
    check_chart()
    from matplotlib.figure import Figure

    whole = {name: [row for row in table if not row.group and not row.part] for name, table in by_model.items()}
    suites = list(dict.fromkeys(row.suite for table in whole.values() for row in table))
    drawing = Figure(figsize=(max(5.0, 1.5 + 0.9 * len(suites) * len(whole)), 4.5), dpi=150, layout="constrained")
    axes = drawing.subplots()
    width = 0.8 / len(whole)
    for index, (name, table) in enumerate(whole.items()):
        shares = {row.suite: next(iter(row.estimates.values())) for row in table if row.estimates}
        places = [suites.index(suite) + width * (index - (len(whole) - 1) / 2) for suite in shares]
        heights = [100 * share.value for share in shares.values()]
        errors = [
            [100 * (share.value - share.low) for share in shares.values()],
            [100 * (share.high - share.value) for share in shares.values()],
        ]
        bars = axes.bar(places, heights, width * 0.9, yerr=errors, capsize=3, label=name)
        axes.bar_label(bars, fmt="%.1f", label_type="center", fontsize=8, color="white")
    firsts = (next(iter(row.estimates), "") for table in whole.values() for row in table)
    axes.set_xticks(range(len(suites)), suites, rotation=20, ha="right")
    axes.set(ylabel=f"{', '.join(dict.fromkeys(firsts))}, %", xlim=(-0.7, len(suites) - 0.3))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    drawing.legend(loc="outside upper center", ncols=3, frameon=False)
    drawing.savefig(path)


def check_chart() -> None:
    """Raise UserError when matplotlib is missing."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise UserError("--chart is drawn by matplotlib, which is missing: pip install azr[eval]") from error
