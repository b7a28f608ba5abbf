"""Pages about tasks, their lineage, responses and what the safety screen found: what an address asks for, as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from azr.explorer import queries
from azr.explorer.charts import Series, TaskNode, line_chart, lineage_chart
from azr.explorer.index import RunIndex
from azr.explorer.index_file import SampleRow
from azr.explorer.markup import Child, Html, el, highlighted, join, number, table
from azr.explorer.queries import (
    ANY_RULE,
    NO_REASON,
    ORIGINS,
    SAMPLE_ORDERS,
    TASK_ORDERS,
    SampleFilter,
    TaskFilter,
    TaskRow,
    TaskTexts,
)
from azr.explorer.record_files import Problem
from azr.explorer.site import BadAddress, Links, choice, decimal, field, paging, select, whole
from azr.records import FinishReason, Reason, Role, Sample, Used

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
MAX_BESIDE = 12
"""Tasks of one generation in a graph."""
MAX_LISTED = 50
AROUND = 120
"""Characters before and after what was found."""
MAX_FLAGGED = 25
"""Responses of a page."""
NO_JUDGE = (
    "A screen finds words and not what is meant: most of what it finds is harmless, and what is said in other words it "
    "does not find."
)
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
    cells: list[list[Child]] = []
    for row in rows:
        rate, nodes, head = number(row.solve_rate), number(row.nodes), el("code", row.head, cls="head")
        cells.append([links.task(row.id), row.kind, row.step, rate, row.lines, nodes, head])
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
        heading = el("h2", "How it was proposed: ", _step_link(row, links))
        parts += [heading, _facts(row.sample, links), texts(index, row, opened=True)]
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
    at = links.link(row.step, "step", step=row.step) if row.step in queries.steps(index) else row.step
    facts: list[tuple[str, Child]] = [
        ("kind", row.kind), ("step", at), ("solve rate when proposed", number(row.solve_rate)), ("lines", row.lines),
        ("nodes", number(row.nodes)),
    ]  # fmt: skip
    calls = zip(task_texts.inputs, task_texts.outputs, strict=False)
    pairs = [[el("code", f"f({given})"), el("code", returned)] for given, returned in calls]
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
    cells: list[list[Child]] = []
    for row in rows:
        sample, link = row.sample, _step_link(row, links)
        unused = "" if sample.used == "trained" else f"not trained on ({sample.used})"
        use = ", ".join(filter(None, [sample.phase, ORIGINS[sample.origin], unused]))
        sections = join(el("div", el("code", _cut(text))) for _, text in _answer(sample))
        verdict, reward = outcome(sample.verdict), number(sample.reward)
        cells.append([link, use, verdict, sections, _why(sample, links), reward, _tokens(sample)])
    return table(["response", "for", "verdict", "answer", "why", "reward", "tokens"], cells)


def _step_link(row: SampleRow, links: Links) -> Html:
    return links.sample(f"step {row.sample.step} #{row.line}", row)


def step(index: RunIndex, links: Links, values: Values) -> Html:
    """A step: its verdicts, its hardest tasks, and its samples."""
    there = queries.steps(index)
    if not there:
        return el("p", "No step has been recorded yet.", cls="note")
    at = whole(values, "step")
    at = there[-1] if at is None else at
    if at not in there:
        raise BadAddress(f"There are no records of step {at}: the run has steps {there[0]} to {there[-1]}.")
    counts, why = queries.verdicts(index, at), queries.reasons(index, at)
    known = sorted({name for of_player in counts.values() for name in of_player})
    wanted = SampleFilter(
        step=at,
        role=choice(values, "role", ["", "proposer", "solver"], ""),
        kind=choice(values, "kind", ["", *queries.kinds(index)], ""),
        verdict=values.get("verdict", ""),
        used=choice(values, "used", ["", *get_args(Used)], ""),
        reason=choice(values, "reason", ["", *Reason, NO_REASON], ""),
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
    summary: list[list[Child]] = []
    for (kind, role), of_player in counts.items():
        counted = (
            (" · " * bool(n), links.link(f"{count} {name}", "step", step=at, kind=kind, role=role, verdict=name))
            for n, (name, count) in enumerate(of_player.items())
        )
        summary.append([kind, role, join(counted)])
    pages = paging(links, "step", {**values, "step": str(at)}, wanted.offset, LIMIT, total)
    return join([
        el("h1", f"Step {at}" if at else SEEDING),
        el("p", join((each, " · ") for each in beside), links.link("last", "step", step=there[-1])),
        table(["kind", "role", "outcomes"], summary),
        _reasons(why, links, at),
        _given_up(queries.given_up(index, at)),
        el("h2", "Hardest new tasks" if at else "New tasks"),
        task_table(hardest, links) if hardest else el("p", "No task of this step was stored.", cls="dim"),
        el("h2", "Trajectories"),
        _step_form(index, links, wanted, known, sorted({reason for counts in why.values() for reason in counts})),
        pages, sample_table(rows, links), pages,
    ])  # fmt: skip


def _reasons(why: Mapping[tuple[str, str, str], Mapping[str, int]], links: Links, step: int) -> Html | None:
    """Return a table of why responses are malformed or could not be graded; each count leads to them."""
    rows: list[list[Child]] = []
    for (kind, role, verdict), counts in why.items():
        counted = (
            (
                " · " * bool(n),
                links.link(f"{count} {_words(reason)}", "step", step=step, kind=kind, role=role, reason=reason),
            )
            for n, (reason, count) in enumerate(counts.items())
        )
        rows.append([kind, role, outcome(verdict), join(counted)])
    return join([el("h2", "Malformed or ungraded"), table(["kind", "role", "", "why"], rows)]) if rows else None


def _words(reason: str) -> str:
    return reason.replace("_", " ")


def _given_up(count: int) -> Html | None:
    were = "response" if count == 1 else "responses"
    sentence = f"{count} {were} took an engine longer than timeout.generate_s: given up."
    return el("p", sentence, cls="note") if count else None


def _step_form(
    index: RunIndex, links: Links, wanted: SampleFilter, known: Sequence[str], reasons: Sequence[str]
) -> Html:
    kinds = [(kind, kind) for kind in queries.kinds(index)]
    names = [("", "all"), ("refused", "refused proposals"), *((name, name) for name in known)]
    return links.form(
        field("step", "step", wanted.step, step="1"),
        select("kind", "kind", [("", "all"), *kinds], wanted.kind),
        select("role", "role", [("", "both"), ("proposer", "proposer"), ("solver", "solver")], wanted.role),
        select("outcome", "verdict", names, wanted.verdict),
        select("used", "used", [("", "all"), *((used, used) for used in get_args(Used))], wanted.used),
        select(
            "malformed or ungraded", "reason", [("", "all"), *((each, _words(each)) for each in reasons)], wanted.reason
        ),
        select("order", "order", [(order, order) for order in SAMPLE_ORDERS], wanted.order),
    )


def sample_table(rows: Sequence[SampleRow], links: Links) -> Html:
    """Return a table of samples with their verdicts, rewards and training statistics."""
    cells: list[list[Child]] = []
    for row in rows:
        sample, link = row.sample, links.sample(f"#{row.line}", row)
        numbers = map(number, (sample.reward, sample.advantage, sample.mismatch))
        verdict, why = outcome(sample.verdict), _why(sample, links)
        cells.append([link, sample.kind, sample.role, links.problem(sample), verdict, why, *numbers, _tokens(sample)])
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


def _tokens(sample: Sample) -> str:
    return f"{number(sample.response_tokens)}{' (cut off)' if sample.finish_reason is FinishReason.LENGTH else ''}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"


def lineage(index: RunIndex, links: Links, values: Values) -> Html:
    """What a task was made from and what was made from it; without one, the tasks that most came from."""
    id = values.get("id", "")
    if not id:
        rows: list[list[Child]] = [
            [links.link(each, "lineage", id=each), kind, at, number(rate), count]
            for each, kind, at, rate, count in queries.most_children(index, MAX_LISTED)
        ]
        heads = ["most often shown to proposers", "kind", "step", "solve rate", "children"]
        return join([el("h1", "Lineage"), table(heads, rows)])
    if queries.find_task(index, id) is None:
        raise BadAddress(f"There is no task {id!r} in this run.")
    columns: dict[str, int] = {id: 0}
    edges: dict[tuple[str, str], None] = {}
    above = [id]
    for column in (-1, -2):
        stored = [(child, known[0]) for child in above if (known := queries.find_task(index, child)) is not None]
        pairs = [(parent, child) for child, row in stored for parent in row.parent_ids]
        above = _place(columns, edges, pairs, [parent for parent, _ in pairs], column)
    below = [id]
    for column in (1, 2):
        pairs = [(parent, child) for parent in below for child, *_ in queries.children(index, parent, MAX_BESIDE)[0]]
        below = _place(columns, edges, pairs, [child for _, child in pairs], column)
    rates = queries.solve_rates(index, list(columns))
    nodes = [
        TaskNode(each, each[-26:], column, links.to("task", id=each), _node_class(rates.get(each), each == id))
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


def _node_class(rate: float | None, is_centre: bool) -> str:
    shade = "hard" if rate == 0 else "easy" if rate == 1 else ""
    return f"{shade} centre" if is_centre else shade


def flags(index: RunIndex, links: Links, values: Values) -> Html:
    """Flagged responses by rule and step."""
    counts = queries.flag_counts(index)
    rule, step = values.get("rule", "") or ANY_RULE, whole(values, "step")
    if rule != ANY_RULE and rule not in counts:
        raise BadAddress(f"No response of this run was flagged by a rule {rule!r}.")
    wanted = SampleFilter(flag=rule, step=step, offset=whole(values, "offset") or 0, limit=MAX_FLAGGED)
    rows, total = queries.find_samples(index, wanted)
    steps = queries.steps(index)
    series = [Series(name, [(at, of_rule.get(at, 0)) for at in steps]) for name, of_rule in counts.items()]
    form = links.form(
        select("rule", "rule", [(name, name) for name in (ANY_RULE, *counts)], rule),
        field("step", "step", step, step="1"),
    )
    cells: list[list[Child]] = [
        [_step_link(row, links), row.sample.kind, row.sample.role, links.problem(row.sample), _found(index, row)]
        for row in rows
    ]
    pages = paging(links, "flags", values, wanted.offset, MAX_FLAGGED, total)
    return join([
        el("h1", "Flagged responses"),
        el("p", NO_JUDGE, cls="dim"),
        el("div", line_chart("flagged responses", series, least=0.0), cls="charts") if counts else None,
        form, pages,
        table(["response", "kind", "role", "task", "what was found"], cells) if rows else el("p", "None.", cls="dim"),
        pages,
    ])  # fmt: skip


def flags_with_text(sample: Sample) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield each rule with the text before what it found, what it found, and the text after it."""
    response = sample.response
    for rule, start, end in sample.flags:
        before, after = response[max(0, start - AROUND) : start], response[end : end + AROUND]
        yield rule, (before, response[start:end], after)


def _found(index: RunIndex, row: SampleRow) -> Html:
    try:
        sample = queries.read_texts(index, row)
    except Problem as problem:
        return el("p", str(problem), cls="note")
    return join(
        el("p", el("span", rule, cls="tag warn"), " ", before, el("mark", found), after, cls="text")
        for rule, (before, found, after) in flags_with_text(sample)
    )
