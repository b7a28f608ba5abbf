"""Charts as plain SVG: lines over steps, stacked areas, and tasks with what they came from."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from azr.explorer.markup import Html, el, join

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


@dataclass(frozen=True, slots=True)
class _Frame:
    """Maps steps and values to places of the picture."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)

    def axes(self) -> Html:
        lines = []
        for value in ticks(self.y0, self.y1):
            y = f"{self.y(value):.1f}"
            lines.append(el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, cls="grid"))
            lines.append(el("text", _label(value), x=LEFT - 6, y=y, cls="left"))
        for value in ticks(self.x0, self.x1, least=1.0):
            lines.append(el("text", _label(value), x=f"{self.x(value):.1f}", y=HEIGHT - 6, cls="below"))
        return join(lines)


def line_chart(title: str, series: Sequence[Series], *, least: float | None = None, most: float | None = None) -> Html:
    """Values over steps; nothing where there is no value. ``least`` and ``most``: what the axis holds at least."""
    drawn = [Series(each.name, _thinned(each.points)) for each in series if each.points]
    if not drawn:
        return Html()
    values = [y for each in drawn for _, y in each.points]
    bounds = [value for value in (least, most) if value is not None]
    frame = _frame([x for each in drawn for x, _ in each.points], [*values, *bounds])
    marks = []
    for index, each in enumerate(drawn):
        cls = f"c{index % COLOURS}"
        places = [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in each.points]
        if len(places) == 1:
            x, y = places[0].split(",")
            marks.append(el("circle", cx=x, cy=y, r=3, cls=f"dot {cls}"))
        else:
            marks.append(el("polyline", points=" ".join(places), cls=f"line {cls}"))
    return _figure(title, drawn, [frame.axes(), *marks], frame)


def area_chart(title: str, series: Sequence[Series]) -> Html:
    """Counts over steps, one upon the other; a step that a series does not have counts 0."""
    # Each has the colour of its place among all, so that it has the same in another chart of the same things.
    places = [place for place, each in enumerate(series) if any(y for _, y in each.points)]
    drawn = [series[place] for place in places]
    if not drawn:
        return Html()
    steps = sorted({x for each in drawn for x, _ in each.points})
    values = [dict(each.points) for each in drawn]
    drawn = [
        Series(each.name, _thinned([(x, of_one.get(x, 0.0)) for x in steps]))
        for each, of_one in zip(drawn, values, strict=True)
    ]
    xs = [x for x, _ in drawn[0].points]
    below = [0.0] * len(xs)
    layers = []
    for each in drawn:
        above = [low + y for low, (_, y) in zip(below, each.points, strict=True)]
        layers.append((below, above))
        below = above
    frame = _frame(xs, [0.0, *below])
    marks = []
    for place, (low, high) in zip(places, layers, strict=True):
        outline = [(x, y) for x, y in zip(xs, high, strict=True)] + [*reversed([*zip(xs, low, strict=True)])]
        if len(xs) == 1:  # a bar, where an area would have no width
            outline = [(x + shift, y) for x, y, shift in ((xs[0], y, s) for y, s in ((high[0], -0.3), (high[0], 0.3)))]
            outline += [(xs[0] + 0.3, low[0]), (xs[0] - 0.3, low[0])]
        corners = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in outline)
        marks.append(el("polygon", points=corners, cls=f"area c{place % COLOURS}"))
    return _figure(title, drawn, [*marks, frame.axes()], frame, places)


def ticks(low: float, high: float, count: int = 4, least: float = 0.0) -> list[float]:
    """Round values between two bounds, so far apart at least."""
    raw = max((high - low) / count, least)
    power = 10.0 ** math.floor(math.log10(raw))
    width = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / width - 1e-9)
    return [index * width for index in range(first, math.floor(high / width + 1e-9) + 1)]


def _figure(
    title: str, series: Sequence[Series], marks: Sequence[Html], frame: _Frame, colours: Sequence[int] | None = None
) -> Html:
    # What the script shows beside the pointer.
    data = json.dumps({
        "frame": [frame.x0, frame.x1, LEFT, WIDTH - RIGHT, WIDTH],
        "series": [{"name": each.name, "points": [[x, round(y, 6)] for x, y in each.points]} for each in series],
    })  # fmt: skip
    picture = el("svg", *marks, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title, data_chart=data)
    legend = [
        el("li", el("span", cls=f"key c{place % COLOURS}"), each.name, " ", el("b", _label(each.points[-1][1])))
        for place, each in zip(colours or range(len(series)), series, strict=True)
    ]
    return el("figure", el("figcaption", title), picture, el("ul", *legend, cls="legend"))


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
    label: str
    column: int
    """Generations after the task that the graph is about, which is at 0."""
    href: str | None
    cls: str


NODE_WIDTH, NODE_HEIGHT, GAP_X, GAP_Y = 190, 26, 60, 8


def lineage_chart(nodes: Sequence[TaskNode], edges: Sequence[tuple[str, str]]) -> Html:
    """Tasks in columns by generation, with lines from each to those that were proposed in its sight."""
    columns = sorted({node.column for node in nodes})
    rows: dict[int, int] = dict.fromkeys(columns, 0)
    tallest = max(sum(node.column == column for node in nodes) for column in columns)
    place: dict[str, tuple[float, float]] = {}
    boxes = []
    for node in nodes:
        count = sum(other.column == node.column for other in nodes)
        x = columns.index(node.column) * (NODE_WIDTH + GAP_X)
        y = (rows[node.column] + (tallest - count) / 2) * (NODE_HEIGHT + GAP_Y)
        rows[node.column] += 1
        place[node.id] = (x, y)
        box = [
            el("rect", x=x, y=f"{y:.1f}", width=NODE_WIDTH, height=NODE_HEIGHT, rx=4, cls=f"node {node.cls}"),
            el("text", node.label, x=x + 8, y=f"{y + NODE_HEIGHT / 2:.1f}", cls="name"),
            el("title", node.id),
        ]
        boxes.append(el("a", *box, href=node.href) if node.href is not None else el("g", *box))
    lines = []
    for parent, child in edges:
        (x0, y0), (x1, y1) = place[parent], place[child]
        middle = f"{(x0 + NODE_WIDTH + x1) / 2:.1f}"
        a, b = f"{y0 + NODE_HEIGHT / 2:.1f}", f"{y1 + NODE_HEIGHT / 2:.1f}"
        path = f"M{x0 + NODE_WIDTH},{a} C{middle},{a} {middle},{b} {x1},{b}"
        lines.append(el("path", d=path, cls="edge"))
    width = len(columns) * (NODE_WIDTH + GAP_X) - GAP_X
    height = tallest * (NODE_HEIGHT + GAP_Y)
    picture = el(
        "svg", *lines, *boxes, viewBox=f"-2 -2 {width + 4} {height + 4}", width=width, height=height, role="img"
    )
    return el("div", picture, cls="lineage wide")
