"""Pages about tasks and responses: each is what its address asks for, as HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from azr.explorer import queries
from azr.explorer.index import RunIndex
from azr.explorer.markup import Child, Html, el, highlighted, join, number, table
from azr.explorer.queries import ROLLOUT_ORDERS, TASK_ORDERS
from azr.explorer.record_files import Problem
from azr.explorer.rows import RolloutFilter, RolloutRow, TaskFilter, TaskRow, TaskTexts
from azr.explorer.site import BadAddress, Links, choice, decimal, field, paging, select, whole
from azr.runs.rollout_record import RolloutRecord

LIMIT = 50
"""Rows of a page."""
HARDEST = 10
NOT_STORED = "It was not stored: it was refused, or is derived from another task."
SEEDING = "Step 0: the proposals that first filled the buffer"
MAX_ATTEMPTS = 100
_TWIN = re.compile(r"duplicate of (\S+)")
"""A reason that names a task."""
MAX_CELL = 300
"""Characters of a model's text in a cell of a table."""
_GOOD, _BAD = ("valid", "right"), ("wrong", "failed", "not_allowed", "malformed", "in_benchmark")
Values = Mapping[str, str]


def tasks(index: RunIndex, links: Links, values: Values) -> Html:
    """Tasks by kind, step, solve rate, size and text."""
    bounds: dict[str, Any] = {
        name: whole(values, name)
        for name in ("step_from", "step_to", "lines_from", "lines_to", "nodes_from", "nodes_to")
    }
    rates: dict[str, Any] = {name: decimal(values, name) for name in ("rate_from", "rate_to")}
    kinds = queries.kinds(index)
    wanted = TaskFilter(
        kind=choice(values, "kind", ["", *kinds], ""),
        text=values.get("text", ""),
        order=choice(values, "order", [*TASK_ORDERS], "newest"),
        offset=whole(values, "offset") or 0,
        limit=LIMIT,
        **bounds,
        **rates,
    )
    rows, total = queries.find_tasks(index, wanted)
    form = links.form(
        field("text in program, inputs, outputs, message, id", "text", wanted.text, "search"),
        select("kind", "kind", [("", "all"), *((kind, kind) for kind in kinds)], wanted.kind),
        *(field(name.replace("_", " "), name, value) for name, value in {**bounds, **rates}.items()),
        select("order", "order", [(order, order) for order in TASK_ORDERS], wanted.order),
    )
    pages = paging(links, "tasks", values, wanted.offset, LIMIT, total)
    return join([el("h1", "Tasks"), form, pages, task_table(rows, links), pages])


def task_table(rows: Sequence[TaskRow], links: Links) -> Html:
    """Tasks in a table."""
    cells: list[list[Child]] = [
        [
            links.task(row.id),
            row.kind,
            row.step,
            number(row.solve_rate),
            row.lines,
            number(row.nodes),
            el("code", row.head, cls="head"),
        ]
        for row in rows
    ]
    return table(["task", "kind", "step", "solve rate", "lines", "nodes", "program"], cells)


def task(index: RunIndex, links: Links, values: Values) -> Html:
    """One task: what it is, where it comes from, who tried it and what came of it."""
    id = values.get("id", "")
    known = queries.find_task(index, id)
    wanted = RolloutFilter(task_id=id, kind=values.get("kind", ""), order="step", limit=MAX_ATTEMPTS)
    rows, total = queries.find_rollouts(index, wanted)
    if known is None and not rows:
        raise BadAddress(f"There is no task {id!r} in this run.")
    parts: list[Child] = [el("h1", f"Task {id}")]
    if known is None:
        what = "It is a row of a file." if rows[0].file_kind else NOT_STORED
        parts.append(el("p", what, cls="note"))
    else:
        parts.append(_stored_task(index, links, *known))
    proposals = [row for row in rows if row.role == "proposer"]
    for row in proposals:
        at = links.link(f"step {row.step} #{row.line}", "response", step=row.step, line=row.line)
        parts += [el("h2", "How it was proposed: ", at), _facts(row, links), texts(index, row, opened=True)]
    attempts = [row for row in rows if row.role == "solver"]
    if attempts:
        shown = f"the newest {len(rows)} of {total}" if total > len(rows) else str(len(attempts))
        parts += [el("h2", f"Attempts: {shown}"), attempt_table(attempts, links)]
    elif known is not None:
        parts.append(el("p", "No attempt at it is recorded.", cls="dim"))
    if derived := queries.derived_attempts(index, id):
        cells: list[list[Child]] = [[links.task(name), count, number(rate)] for name, count, rate in derived]
        parts += [el("h2", "Tasks derived from it"), table(["task", "attempts", "solve rate"], cells)]
    return join(parts)


def _stored_task(index: RunIndex, links: Links, row: TaskRow, task_texts: TaskTexts) -> Html:
    facts: list[tuple[str, Child]] = [
        ("kind", row.kind),
        ("step", links.link(row.step, "step", step=row.step) if row.step in queries.steps(index) else row.step),
        ("solve rate when proposed", number(row.solve_rate)),
        ("lines", row.lines),
        ("nodes", number(row.nodes)),
    ]
    pairs: list[list[Child]] = [
        [el("code", f"f({given})"), el("code", returned)]
        for given, returned in zip(task_texts.inputs, task_texts.outputs, strict=False)
    ]
    below, total = queries.children(index, row.id)
    parts: list[Child] = [
        el("div", *(el("span", f"{name} ", el("b", value)) for name, value in facts), cls="facts"),
        highlighted(task_texts.program),
        table(["call", "returns"], pairs),
    ]
    if task_texts.message:
        parts.append(el("p", el("span", "message: ", cls="dim"), task_texts.message))
    parts.append(el("p", el("span", "shown to its proposer: ", cls="dim"), _listed(links, row.parent_ids)))
    names = [id for id, *_ in below]
    more = f" and {total - len(below)} more" if total > len(below) else ""
    parts.append(el("p", el("span", f"children ({total}): ", cls="dim"), _listed(links, names), more))
    parts.append(el("p", links.link("lineage as a graph", "lineage", id=row.id)))
    return join(parts)


def _listed(links: Links, ids: Sequence[str]) -> Html:
    return join([(", " if place else "", links.task(id)) for place, id in enumerate(ids)] or ["none"])


def attempt_table(rows: Sequence[RolloutRow], links: Links) -> Html:
    """Answers to one task."""
    cells: list[list[Child]] = [
        [
            links.link(f"step {row.step} #{row.line}", "response", step=row.step, line=row.line),
            ", ".join(filter(None, [row.phase, row.origin, "" if row.trained else "not trained on"])),
            outcome(row.outcome),
            _sections(row),
            _why(row, links),
            number(row.reward),
            _tokens(row),
        ]
        for row in rows
    ]
    return table(["response", "for", "verdict", "answer", "why", "reward", "tokens"], cells)


def step(index: RunIndex, links: Links, values: Values) -> Html:
    """A step: its outcomes, its hardest tasks, and its trajectories."""
    there = queries.steps(index)
    if not there:
        return el("p", "No step has been recorded yet.", cls="note")
    at = whole(values, "step")
    at = there[-1] if at is None else at
    if at not in there:
        raise BadAddress(f"There are no records of step {at}: the run has steps {there[0]} to {there[-1]}.")
    counts = queries.outcomes(index, at)
    known = sorted({name for of_player in counts.values() for name in of_player})
    wanted = RolloutFilter(
        step=at,
        role=choice(values, "role", ["", "proposer", "solver"], ""),
        kind=choice(values, "kind", ["", *queries.kinds(index)], ""),
        outcome=values.get("outcome", ""),
        trained=choice(values, "trained", ["", "yes", "no"], ""),  # type: ignore[arg-type]
        order=choice(values, "order", [*ROLLOUT_ORDERS], "step"),
        offset=whole(values, "offset") or 0,
        limit=LIMIT,
    )
    place = there.index(at)
    beside = [
        links.link(f"step {each}", "step", step=each)
        for each in (*there[max(0, place - 1) : place], *there[place + 1 : place + 2])
    ]
    hardest, _ = queries.find_tasks(index, TaskFilter(step_from=at, step_to=at, order="hardest", limit=HARDEST))
    rows, total = queries.find_rollouts(index, wanted)
    summary = [
        [
            kind,
            role,
            join(
                (" · " * bool(n), links.link(f"{count} {name}", "step", step=at, kind=kind, role=role, outcome=name))
                for n, (name, count) in enumerate(of_player.items())
            ),
        ]
        for (kind, role), of_player in counts.items()
    ]
    pages = paging(links, "step", {**values, "step": str(at)}, wanted.offset, LIMIT, total)
    return join([
        el("h1", f"Step {at}" if at else SEEDING),
        el("p", join((each, " · ") for each in beside), links.link("last", "step", step=there[-1])),
        table(["kind", "role", "outcomes"], summary),
        el("p", _given_up(lost), cls="note") if (lost := queries.given_up(index, at)) else None,
        el("h2", "Hardest new tasks" if at else "New tasks"),
        task_table(hardest, links) if hardest else el("p", "No task of this step was stored.", cls="dim"),
        el("h2", "Trajectories"),
        _step_form(index, links, wanted, known),
        pages, trajectory_table(rows, links), pages,
    ])  # fmt: skip


def _given_up(count: int) -> str:
    were = "response" if count == 1 else "responses"
    return f"{count} {were} took an engine longer than timeout.generate_s: given up, and not among these records."


def _step_form(index: RunIndex, links: Links, wanted: RolloutFilter, known: Sequence[str]) -> Html:
    kinds = [(kind, kind) for kind in queries.kinds(index)]
    names = [("", "all"), ("refused", "refused proposals"), *((name, name) for name in known)]
    return links.form(
        field("step", "step", wanted.step, step="1"),
        select("kind", "kind", [("", "all"), *kinds], wanted.kind),
        select("role", "role", [("", "both"), ("proposer", "proposer"), ("solver", "solver")], wanted.role),
        select("outcome", "outcome", names, wanted.outcome),
        select("trained on", "trained", [("", "all"), ("yes", "yes"), ("no", "no")], wanted.trained),
        select("order", "order", [(order, order) for order in ROLLOUT_ORDERS], wanted.order),
    )


def trajectory_table(rows: Sequence[RolloutRow], links: Links) -> Html:
    """Trajectories with what was made of them."""
    cells: list[list[Child]] = [
        [
            links.link(f"#{row.line}", "response", step=row.step, line=row.line),
            row.kind,
            row.role,
            links.task(row.task_id, kind=row.file_kind),
            outcome(row.outcome),
            _why(row, links),
            number(row.reward),
            number(row.advantage),
            number(row.mismatch),
            _tokens(row),
        ]
        for row in rows
    ]
    heads = ["response", "kind", "role", "task", "outcome", "why", "reward", "advantage", "mismatch", "tokens"]
    return table(heads, cells)


def response(index: RunIndex, links: Links, values: Values) -> Html:
    """One trajectory: prompt, thinking and answer as they were."""
    at, line = whole(values, "step"), whole(values, "line")
    row = queries.find_rollout(index, at or 0, line or 0)
    if row is None:
        raise BadAddress(f"There is no response {line} in step {at}.")
    return join([
        el("h1", f"Response {row.line} of step {row.step}"),
        el("p", f"{row.kind}, {row.role}, task ", links.task(row.task_id, kind=row.file_kind)),
        el("p", links.link("its step", "step", step=row.step)),
        _facts(row, links),
        el("p", "flagged: ", ", ".join(sorted({rule for rule, *_ in row.flagged})), cls="note") if row.flags else None,
        texts(index, row, opened=True),
    ])  # fmt: skip


def texts(index: RunIndex, row: RolloutRow, *, opened: bool) -> Html:
    """Prompt and response of a trajectory, or why they cannot be read."""
    try:
        record = queries.read_texts(index, row)
    except Problem as problem:
        return el("p", str(problem), cls="note")
    return shown_texts(record, opened=opened)


def shown_texts(record: RolloutRecord, *, opened: bool) -> Html:
    parts = [
        el("details", el("summary", "prompt"), el("pre", record.prompt), open=opened and len(record.prompt) < 3000),
        el("details", el("summary", "response, thinking included"), el("pre", record.response), open=opened),
    ]
    for label, text in record.answer or []:
        body = highlighted(text) if label == "program" else el("pre", text)
        parts.append(el("details", el("summary", f"read as {label}"), body, open=opened))
    return join(parts)


def _facts(row: RolloutRow, links: Links) -> Html:
    versions = number(row.last_version)
    if row.first_version != row.last_version:
        versions = f"{number(row.first_version)} to {versions}"
    facts: list[tuple[str, Child]] = [
        ("outcome", outcome(row.outcome)), ("reward", number(row.reward)), ("advantage", number(row.advantage)),
        ("mismatch", number(row.mismatch)), ("prompt tokens", number(row.prompt_tokens)), ("tokens", _tokens(row)),
        ("weights version", versions), ("trained on", "yes" if row.trained else "no"),
        *([("origin", row.origin)] if row.origin else []),
    ]  # fmt: skip
    shown = el("div", *(el("span", f"{name} ", el("b", value)) for name, value in facts), cls="facts")
    return join([shown, el("p", "why: ", _reason(row.detail, links), cls="note") if row.detail else None])


def _why(row: RolloutRow, links: Links) -> Html:
    return el("div", _reason(_cut(row.detail), links), cls="text")


def _reason(detail: str, links: Links) -> Child:
    """Why a proposal was refused or an answer is not right; the task that it names is a link."""
    twin = _TWIN.fullmatch(detail)
    return detail if twin is None else join(["duplicate of ", links.task(twin[1])])


def outcome(name: str) -> Html:
    """An outcome in its colour."""
    cls = "good" if name in _GOOD else "bad" if name in _BAD else "warn"
    return el("span", name or "not graded", cls=f"tag {cls}")


def _sections(row: RolloutRow) -> Html:
    return join(el("div", el("code", _cut(text))) for _, text in row.sections)


def _tokens(row: RolloutRow) -> str:
    return f"{number(row.response_tokens)}{' (cut off)' if row.finish_reason == 'length' else ''}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"
