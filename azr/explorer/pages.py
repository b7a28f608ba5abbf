"""Pages about tasks and responses: each is what its address asks for, as HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from azr.explorer import queries
from azr.explorer.index import RunIndex
from azr.explorer.markup import Child, Html, el, highlighted, join, number, table
from azr.explorer.queries import SAMPLE_ORDERS, TASK_ORDERS
from azr.explorer.record_files import Problem
from azr.explorer.rows import ORIGINS, SampleFilter, TaskFilter, TaskRow, TaskTexts
from azr.explorer.sample_table import SampleRow
from azr.explorer.site import BadAddress, Links, choice, decimal, field, paging, select, whole
from azr.records import FinishReason, Role, Sample, Used

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
    wanted = SampleFilter(problem_id=id, kind=values.get("kind", ""), order="step", limit=MAX_ATTEMPTS)
    rows, total = queries.find_samples(index, wanted)
    if known is None and not rows:
        raise BadAddress(f"There is no task {id!r} in this run.")
    parts: list[Child] = [el("h1", f"Task {id}")]
    if known is None:
        what = "It is a row of a file." if rows[0].sample.phase == "data" else NOT_STORED
        parts.append(el("p", what, cls="note"))
    else:
        parts.append(_stored_task(index, links, *known))
    proposals = [row for row in rows if row.sample.role == Role.PROPOSER]
    for row in proposals:
        at = links.sample(f"step {row.sample.step} #{row.line}", row)
        parts += [el("h2", "How it was proposed: ", at), _facts(row.sample, links), texts(index, row, opened=True)]
    attempts = [row for row in rows if row.sample.role == Role.SOLVER]
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


def attempt_table(rows: Sequence[SampleRow], links: Links) -> Html:
    """Answers to one task."""
    cells: list[list[Child]] = [
        [
            links.sample(f"step {row.sample.step} #{row.line}", row),
            ", ".join(filter(None, [row.sample.phase, ORIGINS[row.sample.origin], _not_trained_on(row.sample)])),
            outcome(row.sample.verdict),
            _sections(row.sample),
            _why(row.sample, links),
            number(row.sample.reward),
            _tokens(row.sample),
        ]
        for row in rows
    ]
    return table(["response", "for", "verdict", "answer", "why", "reward", "tokens"], cells)


def step(index: RunIndex, links: Links, values: Values) -> Html:
    """A step: its verdicts, its hardest tasks, and its samples."""
    there = queries.steps(index)
    if not there:
        return el("p", "No step has been recorded yet.", cls="note")
    at = whole(values, "step")
    at = there[-1] if at is None else at
    if at not in there:
        raise BadAddress(f"There are no records of step {at}: the run has steps {there[0]} to {there[-1]}.")
    counts = queries.verdicts(index, at)
    known = sorted({name for of_player in counts.values() for name in of_player})
    wanted = SampleFilter(
        step=at,
        role=choice(values, "role", ["", "proposer", "solver"], ""),
        kind=choice(values, "kind", ["", *queries.kinds(index)], ""),
        verdict=values.get("verdict", ""),
        used=choice(values, "used", ["", *get_args(Used)], ""),
        order=choice(values, "order", [*SAMPLE_ORDERS], "step"),
        offset=whole(values, "offset") or 0,
        limit=LIMIT,
    )
    place = there.index(at)
    beside = [
        links.link(f"step {each}", "step", step=each)
        for each in (*there[max(0, place - 1) : place], *there[place + 1 : place + 2])
    ]
    hardest, _ = queries.find_tasks(index, TaskFilter(step_from=at, step_to=at, order="hardest", limit=HARDEST))
    rows, total = queries.find_samples(index, wanted)
    summary = [
        [
            kind,
            role,
            join(
                (" · " * bool(n), links.link(f"{count} {name}", "step", step=at, kind=kind, role=role, verdict=name))
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
        pages, sample_table(rows, links), pages,
    ])  # fmt: skip


def _given_up(count: int) -> str:
    were = "response" if count == 1 else "responses"
    return f"{count} {were} took an engine longer than timeout.generate_s: given up."


def _step_form(index: RunIndex, links: Links, wanted: SampleFilter, known: Sequence[str]) -> Html:
    kinds = [(kind, kind) for kind in queries.kinds(index)]
    names = [("", "all"), ("refused", "refused proposals"), *((name, name) for name in known)]
    return links.form(
        field("step", "step", wanted.step, step="1"),
        select("kind", "kind", [("", "all"), *kinds], wanted.kind),
        select("role", "role", [("", "both"), ("proposer", "proposer"), ("solver", "solver")], wanted.role),
        select("outcome", "verdict", names, wanted.verdict),
        select("used", "used", [("", "all"), *((used, used) for used in get_args(Used))], wanted.used),
        select("order", "order", [(order, order) for order in SAMPLE_ORDERS], wanted.order),
    )


def sample_table(rows: Sequence[SampleRow], links: Links) -> Html:
    """Return a table of samples with their verdicts, rewards and training statistics."""
    cells: list[list[Child]] = [
        [
            links.sample(f"#{row.line}", row),
            row.sample.kind,
            row.sample.role,
            links.problem(row.sample),
            outcome(row.sample.verdict),
            _why(row.sample, links),
            number(row.sample.reward),
            number(row.sample.advantage),
            number(row.sample.mismatch),
            _tokens(row.sample),
        ]
        for row in rows
    ]
    heads = ["response", "kind", "role", "task", "outcome", "why", "reward", "advantage", "mismatch", "tokens"]
    return table(heads, cells)


def response(index: RunIndex, links: Links, values: Values) -> Html:
    """One sample: prompt, thinking and answer as they were."""
    at, line = whole(values, "step"), whole(values, "line")
    row = queries.find_sample(index, at or 0, line or 0)
    if row is None:
        raise BadAddress(f"There is no response {line} in step {at}.")
    sample = row.sample
    rules = ", ".join(sorted({rule for rule, *_ in sample.flags}))
    return join([
        el("h1", f"Response {row.line} of step {sample.step}"),
        el("p", f"{sample.kind}, {sample.role}, task ", links.problem(sample)),
        el("p", links.link("its step", "step", step=sample.step)),
        _facts(sample, links),
        el("p", "flagged: ", rules, cls="note") if rules else None,
        texts(index, row, opened=True),
    ])  # fmt: skip


def texts(index: RunIndex, row: SampleRow, *, opened: bool) -> Html:
    """Return prompt and response of a sample, or why they cannot be read."""
    try:
        sample = queries.read_texts(index, row)
    except Problem as problem:
        return el("p", str(problem), cls="note")
    parts = [
        el("details", el("summary", "prompt"), el("pre", sample.prompt), open=opened and len(sample.prompt) < 3000),
        el("details", el("summary", "response, thinking included"), el("pre", sample.response), open=opened),
    ]
    for label, text in _answer(sample):
        body = highlighted(text) if label == "program" else el("pre", text)
        parts.append(el("details", el("summary", f"read as {label}"), body, open=opened))
    return join(parts)


def _facts(sample: Sample, links: Links) -> Html:
    versions = [version for version, _ in sample.weight_versions]
    oldest, newest = min(versions, default=None), max(versions, default=None)
    facts: list[tuple[str, Child]] = [
        ("outcome", outcome(sample.verdict)), ("reward", number(sample.reward)),
        ("advantage", number(sample.advantage)), ("mismatch", number(sample.mismatch)),
        ("prompt tokens", number(sample.prompt_tokens)), ("tokens", _tokens(sample)),
        ("weights version", number(newest) if oldest == newest else f"{number(oldest)} to {number(newest)}"),
        ("used", sample.used),
        *([("origin", origin)] if (origin := ORIGINS[sample.origin]) else []),
    ]  # fmt: skip
    shown = el("div", *(el("span", f"{name} ", el("b", value)) for name, value in facts), cls="facts")
    detail = _detail(sample)
    return join([shown, el("p", "why: ", _reason(detail, links), cls="note") if detail else None])


def _not_trained_on(sample: Sample) -> str:
    return "" if sample.used == "trained" else f"not trained on ({sample.used})"


def _detail(sample: Sample) -> str:
    return "" if sample.judgement is None else sample.judgement.detail


def _answer(sample: Sample) -> Sequence[tuple[str, str]]:
    return () if sample.judgement is None else sample.judgement.answer or ()


def _why(sample: Sample, links: Links) -> Html:
    return el("div", _reason(_cut(_detail(sample)), links), cls="text")


def _reason(detail: str, links: Links) -> Child:
    """Why a proposal was refused or an answer is not right; the task that it names is a link."""
    twin = _TWIN.fullmatch(detail)
    return detail if twin is None else join(["duplicate of ", links.task(twin[1])])


def outcome(name: str) -> Html:
    """An outcome in its colour."""
    cls = "good" if name in _GOOD else "bad" if name in _BAD else "warn"
    return el("span", name or "not graded", cls=f"tag {cls}")


def _sections(sample: Sample) -> Html:
    return join(el("div", el("code", _cut(text))) for _, text in _answer(sample))


def _tokens(sample: Sample) -> str:
    return f"{number(sample.response_tokens)}{' (cut off)' if sample.finish_reason is FinishReason.LENGTH else ''}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"
