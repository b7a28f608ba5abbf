"""The page about how long responses are: percentiles by kind and role over the steps of one run or several."""

from __future__ import annotations

from collections.abc import Sequence

from azr.explorer import queries
from azr.explorer.charts import Series, line_chart
from azr.explorer.markup import Html, el, join
from azr.explorer.rows import Spread
from azr.explorer.site import ShownRun

LINES = {"90 of 100 are shorter": "p90", "half are shorter": "p50", "10 of 100 are shorter": "p10", "mean": "mean"}
"""Columns of the index by what they say."""


def lengths(runs: Sequence[ShownRun]) -> Html:
    """Response lengths, and how many were cut off; runs in the same charts."""
    players: dict[tuple[str, str], list[tuple[str, list[Spread]]]] = {}
    for run in runs:
        of_run: dict[tuple[str, str], list[Spread]] = {}
        for spread in queries.lengths(run.index):
            of_run.setdefault((spread.kind, spread.role), []).append(spread)
        for player, spreads in of_run.items():
            players.setdefault(player, []).append((f"{run.name} · " if len(runs) > 1 else "", spreads))
    charts = []
    cut_off: dict[str, list[Series]] = {}
    for (kind, role), some in sorted(players.items(), key=lambda item: item[0][::-1]):
        lines = [
            Series(f"{run}{name}", [(each.step, getattr(each, column)) for each in spreads])
            for run, spreads in some
            for name, column in LINES.items()
        ]
        charts.append(line_chart(f"{kind}, {role}: tokens", lines, least=0.0))
        cut_off.setdefault(role, []).extend(
            Series(f"{run}{kind}", [(each.step, each.truncated / each.count) for each in spreads])
            for run, spreads in some
        )
    for role, series in cut_off.items():
        charts.append(line_chart(f"cut off, share of {role} responses", series, least=0.0, most=1.0))
    shown = el("div", *charts, cls="charts") if charts else el("p", "No lengths have been recorded.", cls="note")
    return join([el("h1", "Response lengths"), shown])
