"""The page about what the safety screen found: how often, in which step, and the text around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from azr.explorer import queries
from azr.explorer.charts import Series, line_chart
from azr.explorer.index import RunIndex
from azr.explorer.markup import Child, Html, el, join, table
from azr.explorer.record_files import Problem
from azr.explorer.rows import ANY_RULE, SampleFilter
from azr.explorer.sample_table import SampleRow
from azr.explorer.site import BadAddress, Links, field, paging, select, whole
from azr.records import Sample

AROUND = 120
"""Characters before and after what was found."""
LIMIT = 25
"""Responses of a page."""
NO_JUDGE = (
    "A screen finds words and not what is meant: most of what it finds is harmless, and what is said in other words it "
    "does not find."
)


def flags(index: RunIndex, links: Links, values: Mapping[str, str]) -> Html:
    """Flagged responses by rule and step."""
    counts = queries.flag_counts(index)
    rule, step = values.get("rule", "") or ANY_RULE, whole(values, "step")
    if rule != ANY_RULE and rule not in counts:
        raise BadAddress(f"No response of this run was flagged by a rule {rule!r}.")
    wanted = SampleFilter(flag=rule, step=step, offset=whole(values, "offset") or 0, limit=LIMIT)
    rows, total = queries.find_samples(index, wanted)
    steps = queries.steps(index)
    series = [Series(name, [(at, of_rule.get(at, 0)) for at in steps]) for name, of_rule in counts.items()]
    form = links.form(
        select("rule", "rule", [(name, name) for name in (ANY_RULE, *counts)], rule),
        field("step", "step", step, step="1"),
    )
    cells: list[list[Child]] = [
        [
            links.sample(f"step {row.sample.step} #{row.line}", row),
            row.sample.kind,
            row.sample.role,
            links.problem(row.sample),
            _found(index, row),
        ]
        for row in rows
    ]
    pages = paging(links, "flags", values, wanted.offset, LIMIT, total)
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
