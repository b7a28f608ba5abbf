"""The page of a task's lineage: what it was made from, and what was made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from azr.explorer import queries
from azr.explorer.charts import TaskNode, lineage_chart
from azr.explorer.index import RunIndex
from azr.explorer.markup import Child, Html, el, join, number, table
from azr.explorer.site import BadAddress, Links

MAX_BESIDE = 12
"""Tasks of one generation in a graph."""
MAX_LISTED = 50


def lineage(index: RunIndex, links: Links, values: Mapping[str, str]) -> Html:
    """What a task was made from and what was made from it; without one, the tasks that most came from."""
    id = values.get("id", "")
    if not id:
        return join([el("h1", "Lineage"), _most_shown(index, links)])
    known = queries.find_task(index, id)
    if known is None:
        raise BadAddress(f"There is no task {id!r} in this run.")
    columns: dict[str, int] = {id: 0}
    edges: dict[tuple[str, str], None] = {}
    above = [id]
    for column in (-1, -2):
        pairs = [(parent, child) for child in above for parent in _parents(index, child)]
        above = _place(columns, edges, pairs, [parent for parent, _ in pairs], column)
    below = [id]
    for column in (1, 2):
        pairs = [(parent, child) for parent in below for child, *_ in queries.children(index, parent, MAX_BESIDE)[0]]
        below = _place(columns, edges, pairs, [child for _, child in pairs], column)
    rates = queries.known_tasks(index, list(columns))
    nodes = [
        TaskNode(each, each[-26:], column, links.to("task", id=each), _node_class(each, id, rates))
        for each, column in columns.items()
    ]
    note = (
        f"Up to {MAX_BESIDE} tasks of a generation; parents to the left, children to the right. Red: never solved; "
        "green: always."
    )
    return join([
        el("h1", "Lineage of ", links.task(id)), el("p", note, cls="dim"),
        lineage_chart(nodes, [pair for pair in edges if columns.get(pair[0], 9) < columns.get(pair[1], -9)]),
    ])  # fmt: skip


def _place(
    columns: dict[str, int],
    edges: dict[tuple[str, str], None],
    pairs: Sequence[tuple[str, str]],
    ids: Sequence[str],
    column: int,
) -> list[str]:
    """Puts tasks that have no place yet into a column, with their lines, and returns them."""
    new = [each for each in dict.fromkeys(ids) if each not in columns][:MAX_BESIDE]
    columns.update(dict.fromkeys(new, column))
    edges.update(dict.fromkeys(pairs))
    return new


def _parents(index: RunIndex, id: str) -> list[str]:
    known = queries.find_task(index, id)
    return known[0].parent_ids if known is not None else []


def _node_class(id: str, centre: str, rates: Mapping[str, tuple[str, int, float | None]]) -> str:
    rate = rates[id][2] if id in rates else None
    shade = "" if rate is None else "hard" if rate == 0 else "easy" if rate == 1 else ""
    return f"{shade} centre" if id == centre else shade


def _most_shown(index: RunIndex, links: Links) -> Html:
    rows = queries.most_children(index, MAX_LISTED)
    cells: list[list[Child]] = [
        [links.link(id, "lineage", id=id), kind, at, number(rate), count] for id, kind, at, rate, count in rows
    ]
    return table(["most often shown to proposers", "kind", "step", "solve rate", "children"], cells)
