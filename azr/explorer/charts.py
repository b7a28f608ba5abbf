"""Charts: lines and stacked areas over steps, which the page's script draws, and tasks with what they came from."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from azr.explorer.site import number, render

MAX_POINTS = 2000
"""Points of a line; a longer line is sent as means of a few steps each."""
COLOURS = 10
"""Classes c0, c1, … of the style sheet."""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: a name and pairs of step and value."""

    name: str
    points: Points


def chart(
    title: str, series: Sequence[Series], unit: str = "", *, shape: Literal["line", "area"] = "line",
    least: float | None = None, most: float | None = None,
) -> Markup:  # fmt: skip
    """Return a chart of values over steps; nothing if there is none.

    Areas are stacked, and a step that one lacks counts 0. ``unit``: name on the axis; ``%`` for shares from 0 to 1.
    ``least`` and ``most``: values that the axis includes.
    """
    # A series has the colour of its index, so that it has the same in other charts of the same things.
    there = [(at % COLOURS, each) for at, each in enumerate(series) if each.points]
    there = [(colour, each) for colour, each in there if shape == "line" or any(y for _, y in each.points)]
    if not there:
        return Markup()
    lines = [
        {"name": each.name, "colour": colour, "points": [(x, float(f"{y:.6g}")) for x, y in _thinned(each.points)]}
        for colour, each in there
    ]
    data = {"shape": shape, "unit": unit, "bounds": [each for each in (least, most) if each is not None]}
    legend = [(colour, each.name, _last(each.points[-1][1], unit)) for colour, each in there]
    return render("figure", title=title, legend=legend, data=json.dumps(data | {"series": lines}))


def _last(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "%" else number(value, 4)


def _thinned(points: Points) -> Points:
    stride = math.ceil(len(points) / MAX_POINTS)
    groups = (points[start : start + stride] for start in range(0, len(points), stride))
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


@dataclass(frozen=True, slots=True)
class TaskNode:
    """A task in a lineage graph."""

    id: str
    column: int
    """Generations after the task that the graph is about, which is at 0."""
    href: str | None
    shade: str
    """``hard`` if it was never solved, ``easy`` if always, or empty."""


NODE_WIDTH, NODE_HEIGHT, GAP_X, GAP_Y = 190, 26, 60, 8


def lineage_chart(nodes: Sequence[TaskNode], edges: Sequence[tuple[str, str]]) -> Markup:
    """Tasks in columns by generation, with lines from each to those that were proposed in its sight."""
    columns = sorted({node.column for node in nodes})
    members = {column: [node for node in nodes if node.column == column] for column in columns}
    tallest = max(map(len, members.values()))
    place: dict[str, tuple[float, float]] = {}
    for node in nodes:
        beside = members[node.column]
        row = beside.index(node) + (tallest - len(beside)) / 2
        place[node.id] = (columns.index(node.column) * (NODE_WIDTH + GAP_X), row * (NODE_HEIGHT + GAP_Y))
    paths = []
    for parent, child in edges:
        (x0, y0), (x1, y1) = place[parent], place[child]
        middle = f"{(x0 + NODE_WIDTH + x1) / 2:.1f}"
        a, b = f"{y0 + NODE_HEIGHT / 2:.1f}", f"{y1 + NODE_HEIGHT / 2:.1f}"
        paths.append(f"M{x0 + NODE_WIDTH},{a} C{middle},{a} {middle},{b} {x1},{b}")
    return render(
        "lineage_graph", nodes=[(node, *place[node.id]) for node in nodes], edges=paths,
        width=len(columns) * (NODE_WIDTH + GAP_X) - GAP_X, height=tallest * (NODE_HEIGHT + GAP_Y),
        node_width=NODE_WIDTH, node_height=NODE_HEIGHT,
    )  # fmt: skip
