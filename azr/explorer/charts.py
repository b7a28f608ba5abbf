"""Charts as plain SVG: lines over steps, stacked areas, and tasks with what they came from."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from markupsafe import Markup

from azr.explorer.site import render

WIDTH, HEIGHT = 460, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 8, 22
MAX_POINTS = 600
"""Of a line; of more, the mean of each few."""
COLOURS = 10
"""Classes c0, c1, … of the style sheet."""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: a name and pairs of step and value."""

    name: str
    points: Points
    colour: int = 0


@dataclass(frozen=True, slots=True)
class _Frame:
    """Maps steps and values to places of the picture."""

    x0: float
    x1: float
    y0: float
    y1: float
    width, height, left, right = WIDTH, HEIGHT, LEFT, WIDTH - RIGHT

    def x(self, value: float) -> float:
        return LEFT + (value - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)

    def places(self, points: Points) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)

    @property
    def x_ticks(self) -> list[tuple[str, str]]:
        """Places and labels."""
        return [(f"{self.x(value):.1f}", _label(value)) for value in ticks(self.x0, self.x1, least=1.0)]

    @property
    def y_ticks(self) -> list[tuple[str, str]]:
        return [(f"{self.y(value):.1f}", _label(value)) for value in ticks(self.y0, self.y1)]


def line_chart(
    title: str, series: Sequence[Series], *, least: float | None = None, most: float | None = None
) -> Markup:
    """Values over steps; nothing where there is no value. ``least`` and ``most``: what the axis holds at least."""
    there = [each for each in series if each.points]
    drawn = [replace(each, points=_thinned(each.points), colour=place % COLOURS) for place, each in enumerate(there)]
    if not drawn:
        return Markup()
    bounds = [value for value in (least, most) if value is not None]
    points = [point for each in drawn for point in each.points]
    frame = _frame([x for x, _ in points], [*(y for _, y in points), *bounds])
    return _figure(title, "line", frame, drawn, [frame.places(each.points) for each in drawn])


def area_chart(title: str, series: Sequence[Series]) -> Markup:
    """Counts over steps, one upon the other; a step that a series does not have counts 0."""
    # Each has the colour of its place among all, so that it has the same in another chart of the same things.
    coloured = [replace(each, colour=place % COLOURS) for place, each in enumerate(series)]
    there = [each for each in coloured if any(y for _, y in each.points)]
    if not there:
        return Markup()
    steps = sorted({x for each in there for x, _ in each.points})
    drawn = []
    for each in there:
        values = dict(each.points)
        drawn.append(replace(each, points=_thinned([(x, values.get(x, 0.0)) for x in steps])))
    xs = [x for x, _ in drawn[0].points]
    heights = [[0.0] * len(xs)]
    for each in drawn:
        heights.append([low + y for low, (_, y) in zip(heights[-1], each.points, strict=True)])
    frame = _frame(xs, [0.0, *heights[-1]])
    if len(xs) == 1:  # a bar, where an area would have no width
        xs, heights = [xs[0] - 0.3, xs[0] + 0.3], [line * 2 for line in heights]
    outlines = [
        [*zip(xs, high, strict=True), *reversed([*zip(xs, low, strict=True)])] for low, high in pairwise(heights)
    ]
    return _figure(title, "area", frame, drawn, [frame.places(outline) for outline in outlines])


def ticks(low: float, high: float, count: int = 4, least: float = 0.0) -> list[float]:
    """Round values between two bounds, so far apart at least."""
    raw = max((high - low) / count, least)
    power = 10.0 ** math.floor(math.log10(raw))
    width = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / width - 1e-9)
    return [index * width for index in range(first, math.floor(high / width + 1e-9) + 1)]


def _figure(title: str, shape: str, frame: _Frame, series: Sequence[Series], places: Sequence[str]) -> Markup:
    # What the script shows beside the pointer.
    data = json.dumps({
        "frame": [frame.x0, frame.x1, LEFT, WIDTH - RIGHT, WIDTH],
        "series": [{"name": each.name, "points": [[x, round(y, 6)] for x, y in each.points]} for each in series],
    })  # fmt: skip
    marks = [(each.colour, where) for each, where in zip(series, places, strict=True)]
    legend = [(each.colour, each.name, _label(each.points[-1][1])) for each in series]
    return render("figure", title=title, frame=frame, shape=shape, marks=marks, legend=legend, data=data)


def _frame(xs: Sequence[float], ys: Sequence[float]) -> _Frame:
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    if x0 == x1:
        x0, x1 = x0 - 1, x1 + 1
    if y0 == y1:
        y0, y1 = (0.0, 1.0) if y0 == 0 else (y0 - abs(y0) * 0.5, y1 + abs(y1) * 0.5)
    return _Frame(x0, x1, y0, y1)


def _thinned(points: Points) -> Points:
    stride = math.ceil(len(points) / MAX_POINTS)
    if stride <= 1:
        return points
    groups = (points[start : start + stride] for start in range(0, len(points), stride))
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _label(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1000:,.4g}k" if abs(value) < 1e6 else f"{value:.3g}"
    return f"{value:.4g}"


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
