"""Pages about tasks, their lineage, responses and what the safety screen found: what an address asks for, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

from markupsafe import Markup

from azr.explorer import queries
from azr.explorer.index import RunIndex, SampleRow
from azr.explorer.record_files import Problem
from azr.explorer.site import BadAddress, Links, Series, Values, chart, choice, decimal, render, whole
from azr.records import REASONS, ROLES, Sample, Used

LIMIT = 50
"""Rows of a page."""
MAX_TEXT = 1000
"""Characters that are searched for."""
MAX_ATTEMPTS = 100
MAX_BESIDE = 12
"""Tasks of one generation in a graph."""
MAX_FLAGGED = 25
"""Responses of a page."""


def tasks(index: RunIndex, links: Links, values: Values) -> Markup:
    """Tasks by kind, step, solve rate, size and text."""
    names = ("step_from", "step_to", "lines_from", "lines_to", "nodes_from", "nodes_to")
    bounds: dict[str, Any] = {name: whole(values, name) for name in names}
    bounds |= {name: decimal(values, name) for name in ("rate_from", "rate_to")}
    kinds, offset = ["", *queries.kinds(index)], whole(values, "offset") or 0
    order = choice(values, "order", [*queries.TASK_ORDERS], "newest")
    wanted = {"kind": choice(values, "kind", kinds, ""), "text": _text(values), "order": order, **bounds}
    rows, total = queries.find_tasks(index, offset=offset, limit=LIMIT, **wanted)
    return render(
        "tasks", links=links, wanted=wanted, bounds=[*bounds], kinds=kinds, rows=rows,
        pages=("tasks", values, offset, LIMIT, total), orders=queries.TASK_ORDERS,
        sorts=("tasks", queries.TASK_COLUMNS, values, order),
    )  # fmt: skip


def _text(values: Values) -> str:
    """Return what an address searches for. Raises `BadAddress`."""
    text = values.get("text", "")
    if len(text) > MAX_TEXT:
        raise BadAddress(f"text must have at most {MAX_TEXT:,} characters, not {len(text):,}.")
    return text


def task(index: RunIndex, links: Links, values: Values) -> Markup:
    """One task: what it is, where it comes from, who tried it and what came of it."""
    id = values.get("id", "")
    known = queries.find_task(index, id)
    rows, total = queries.find_samples(index, problem_id=id, kind=values.get("kind", ""), limit=MAX_ATTEMPTS)
    if known is None and not rows:
        raise BadAddress(f"There is no task {id!r} in this run.")
    stored = None
    if known is not None:
        below, total_below = queries.children(index, id)
        has_step = known["step"] in queries.steps(index)
        stored = {"task": known, "has_step": has_step, "children": below, "total": total_below}
    attempts = [row for row in rows if row.sample.role == "solver"]
    return render(
        "task", links=links, id=id,
        is_row=bool(rows) and rows[0].sample.phase == "data", stored=stored,
        proposals=[(row, _readable(index, row)) for row in rows if row.sample.role == "proposer"], attempts=attempts,
        shown=f"the newest {len(rows)} of {total}" if total > len(rows) else len(attempts),
        derived=queries.derived_attempts(index, id), beside=queries.neighbours(index, id),
    )  # fmt: skip


def step(index: RunIndex, links: Links, values: Values) -> Markup:
    """A step: its verdicts, its hardest tasks, and its samples."""
    there = queries.steps(index)
    if not there:
        return render("empty", title="Steps", sentence="No step has been recorded yet.", links=links)
    at = whole(values, "step")
    at = there[-1] if at is None else at
    if at not in there:
        raise BadAddress(f"There are no records of step {at}: the run has steps {there[0]} to {there[-1]}.")
    kinds, uses = ["", *queries.kinds(index)], ["", *get_args(Used)]
    wanted = _samples(values, kinds) | {
        "step": at, "used": choice(values, "used", uses, ""), "reason": choice(values, "reason", ["", *REASONS], ""),
        "order": choice(values, "order", [*queries.SAMPLE_ORDERS], "step"),
    }  # fmt: skip
    counts, why, place = queries.verdicts(index, at), queries.reasons(index, at), there.index(at)
    hardest, _ = queries.find_tasks(index, step_from=at, step_to=at, order="hardest", limit=10)
    rows, total = queries.find_samples(index, **wanted)
    return render(
        "step", links=links, at=at, counts=counts, why=why,
        beside=[
            ("first", there[0]), ("previous", there[max(0, place - 1)]), ("next", [*there[place:], at][1]),
            ("last", there[-1]),
        ],
        reasons=["", *sorted({reason for of_player in why.values() for reason in of_player})],
        given_up=queries.given_up(index, at), hardest=hardest, wanted=wanted, kinds=kinds,
        outcomes=sorted({name for of_player in counts.values() for name in of_player}), uses=uses,
        rows=rows, pages=("step", {**values, "step": str(at)}, wanted["offset"], LIMIT, total),
        orders=queries.SAMPLE_ORDERS,
        sorts=("step", queries.SAMPLE_COLUMNS, {**values, "step": str(at)}, wanted["order"]),
    )  # fmt: skip


def response(index: RunIndex, links: Links, values: Values) -> Markup:
    """One sample: prompt, thinking and answer as they were."""
    at, line = whole(values, "step") or 0, whole(values, "line") or 0
    row = queries.find_sample(index, at, line)
    if row is None:
        raise BadAddress(f"There is no response {line} in step {at}.")
    near = [("previous", queries.find_sample(index, at, line - 1)), ("next", queries.find_sample(index, at, line + 1))]
    beside = [(name, other) for name, other in near if other is not None]
    stored = queries.find_task(index, row.sample.problem_id)
    return render("response", links=links, row=row, beside=beside, text=_readable(index, row), stored=stored)


def responses(index: RunIndex, links: Links, values: Values) -> Markup:
    """Responses of all steps, or of one, that hold a text, the newest step first."""
    step, newest, text, kinds = whole(values, "step"), whole(values, "from"), _text(values), ["", *queries.kinds(index)]
    there = [each for each in reversed(queries.steps(index)) if newest is None or each <= newest]
    steps, wanted = [each for each in there if step in (None, each)], _samples(values, kinds)
    rows, goes_on = queries.search(index, steps, text, **wanted)
    return render(
        "responses", links=links, wanted=wanted, text=text, step=step, kinds=kinds, outcomes=queries.VERDICTS,
        rows=rows, steps=steps, older=goes_on and {**values, "from": goes_on[0], "offset": goes_on[1]},
    )  # fmt: skip


def _samples(values: Values, kinds: Sequence[str]) -> dict[str, Any]:
    """Return which samples an address asks for, as `queries.find_samples` takes it. Raises `BadAddress`."""
    return {
        "role": choice(values, "role", ["", *ROLES], ""), "kind": choice(values, "kind", kinds, ""),
        "verdict": values.get("verdict", ""), "offset": whole(values, "offset") or 0, "limit": LIMIT,
    }  # fmt: skip


def _readable(index: RunIndex, row: SampleRow) -> Sample | str:
    """Return a whole sample, or why it cannot be read."""
    try:
        return queries.read_texts(index, row)
    except Problem as problem:
        return str(problem)


def lineage(index: RunIndex, links: Links, values: Values) -> Markup:
    """What a task was made from and what was made from it; without one, the tasks that most came from."""
    id = values.get("id", "")
    if not id:
        rows, _ = queries.find_tasks(index, order="most children", limit=LIMIT)
        return render("most_shown", links=links, rows=rows)
    if queries.find_task(index, id) is None:
        raise BadAddress(f"There is no task {id!r} in this run.")
    generations: dict[str, int] = {id: 0}
    edges: list[tuple[str, str]] = []
    above = below = [id]
    for generation in (1, 2):
        stored = [task for child in above if (task := queries.find_task(index, child)) is not None]
        parents = [(parent, task["id"]) for task in stored for parent in task["parents"]]
        children = [(parent, child) for parent in below for child in queries.children(index, parent, MAX_BESIDE)[0]]
        edges += parents + children
        above = _place(generations, (parent for parent, _ in parents), -generation)
        below = _place(generations, (child for _, child in children), generation)
    drawn = [pair for pair in dict.fromkeys(edges) if generations.get(pair[0], 9) < generations.get(pair[1], -9)]
    found = {each: queries.find_task(index, each) for each in generations}
    columns = [
        [(each, found[each]) for each, of in generations.items() if of == n] for n in sorted({*generations.values()})
    ]
    return render("lineage", links=links, id=id, most=MAX_BESIDE, columns=columns, edges=drawn)


def _place(columns: dict[str, int], ids: Iterable[str], column: int) -> list[str]:
    """Puts tasks that have no place yet into a column and returns them."""
    new = [each for each in dict.fromkeys(ids) if each not in columns][:MAX_BESIDE]
    columns.update(dict.fromkeys(new, column))
    return new


def corpus(index: RunIndex, links: Links, values: Values) -> Markup:
    """Functions of the user's own code, those first that the model predicts worst; or the tasks of one."""
    if id := values.get("id", ""):
        rows, _ = queries.find_tasks(index, parent=id, order="hardest", limit=MAX_ATTEMPTS)
        return render("made_of", links=links, id=id, rows=rows)
    functions = []
    for row in queries.corpus(index):
        file, _, name = row["id"].partition(":")[2].rpartition(":")
        functions.append({**row, "file": file, "name": name})
    return render("corpus", links=links, functions=functions)


def flags(index: RunIndex, links: Links, values: Values) -> Markup:
    """Flagged responses by rule and step."""
    counts = queries.flag_counts(index)
    rule, at = values.get("rule", "") or queries.ANY_RULE, whole(values, "step")
    if rule != queries.ANY_RULE and rule not in counts:
        raise BadAddress(f"No response of this run was flagged by a rule {rule!r}.")
    offset = whole(values, "offset") or 0
    rows, total = queries.find_samples(index, flag=rule, step=at, offset=offset, limit=MAX_FLAGGED)
    steps = queries.steps(index)
    series = [Series(name, [(each, of_rule.get(each, 0)) for each in steps]) for name, of_rule in counts.items()]
    texts = [(row, _readable(index, row)) for row in rows]
    return render(
        "flags", links=links, chart=chart("flagged responses", series, "responses", bounds=(0.0,)),
        rules=[queries.ANY_RULE, *counts], rule=rule, step=at,
        rows=[(row, text if isinstance(text, str) else [*queries.flags_with_text(text)]) for row, text in texts],
        pages=("flags", values, offset, MAX_FLAGGED, total),
    )  # fmt: skip
