"""What every page of the explorer shares: its runs, its frame, its links, and reading an address's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from azr.explorer import queries
from azr.explorer.index import RunIndex
from azr.explorer.index_file import SampleRow
from azr.explorer.markup import Child, Html, el
from azr.records import Sample

PAGES = {
    "": "overview", "tasks": "tasks", "step": "steps", "lengths": "lengths", "lineage": "lineage", "flags": "flags",
    "evaluations": "evaluations",
}  # fmt: skip
"""By the last part of their address."""


class BadAddress(Exception):
    """Why an address asks for nothing that is there, in a sentence."""


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run that is shown."""

    name: str
    index: RunIndex
    reading: str = ""
    """How far its index is, while it is not up to date."""


class Links:
    """Addresses of the pages of one run."""

    def __init__(self, root: str) -> None:
        self._root = root

    def to(self, page: str, /, **values: str | int | float | None) -> str | None:
        """The address of a page; None where there is none."""
        query = urlencode({name: value for name, value in values.items() if value not in (None, "")})
        return f"{self._root}/{page}{'?' if query else ''}{query}"

    def link(self, text: Child, page: str, /, **values: str | int | float | None) -> Html:
        """A link, or the text alone where there is no such page."""
        href = self.to(page, **values)
        return el("span", text) if href is None else el("a", text, href=href)

    def form(self, *fields: Html) -> Html:
        """A form whose fields become values of the address."""
        return el("form", *fields, el("button", "show"), method="get")

    def task(self, id: str, *, kind: str = "", most: int = 60) -> Html:
        """``kind``: of a row of a file, whose id is one in its file alone."""
        return self.link(id if len(id) <= most else f"{id[: most - 1]}…", "task", id=id, kind=kind)

    def problem(self, sample: Sample) -> Html:
        """Return a link to the task or the row of a file that the sample proposes or answers."""
        return self.task(sample.problem_id, kind=sample.kind if sample.phase == "data" else "")

    def sample(self, text: Child, row: SampleRow) -> Html:
        """Return a link to a sample's page."""
        return self.link(text, "response", step=row.sample.step, line=row.line)


def frame(
    title: str, body: Html, *, run: ShownRun, runs: Sequence[ShownRun], page: str, root: str, links: Links
) -> Html:
    """A whole page."""
    others = [
        el("a", each.name, href=f"{root}/{number}/", cls="run", aria_current="true" if each is run else None)
        for number, each in enumerate(runs)
    ]
    known = {"": "evaluations"} if run.index.is_evaluation else PAGES
    pages = [
        el("a", name, href=links.to(path), aria_current="page" if path == page else None)
        for path, name in known.items()
    ]
    changes = f"{root}/{runs.index(run)}/changes"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"{title} · {run.name}"),
        el("link", rel="icon", href=f"{root}/static/icon.svg"),
        el("link", rel="stylesheet", href=f"{root}/static/explorer.css"),
        el("script", src=f"{root}/static/explorer.js", defer=True),
    )
    header = el("header", *others, el("nav", *pages))
    main = el("main", notes(run), body, data_changes=changes, data_seen=seen(run))
    return Html(f"<!doctype html>{el('html', head, el('body', header, main), lang='en')}")


def seen(run: ShownRun) -> str:
    """Changes whenever a page of the run may."""
    return f"{run.index.changes}{run.reading}"


def notes(run: ShownRun) -> Html:
    """What is wrong with the run's files, and how far they are read."""
    sentences = [f"{path}: {sentence}" for path, sentence in queries.problems(run.index)]
    return el("div", *(el("p", each, cls="note") for each in [run.reading, *sentences] if each))


def whole(values: Mapping[str, str], name: str) -> int | None:
    """A whole number of an address; None where there is none. Raises `BadAddress`."""
    text = values.get(name, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise BadAddress(f"{name} must be a whole number, not {text!r}.")
    return int(text)


def decimal(values: Mapping[str, str], name: str) -> float | None:
    """A number of an address; None where there is none. Raises `BadAddress`."""
    text = values.get(name, "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise BadAddress(f"{name} must be a number, not {text!r}.") from None


def choice(values: Mapping[str, str], name: str, known: Sequence[str], otherwise: str) -> str:
    """One of the known words of an address. Raises `BadAddress`."""
    text = values.get(name, "") or otherwise
    if text not in known:
        raise BadAddress(f"{name} must be one of {', '.join(filter(None, known))}, not {text!r}.")
    return text


def select(label: str, name: str, options: Sequence[tuple[str, str]], chosen: str) -> Html:
    """A field of a form: pairs of value and text."""
    fields = (el("option", text, value=value, selected=value == chosen) for value, text in options)
    return el("label", label, el("select", *fields, name=name))


def field(label: str, name: str, value: str | int | float | None, kind: str = "number", step: str = "any") -> Html:
    """A field of a form that is typed into."""
    shown = "" if value is None else value
    return el("label", label, el("input", type=kind, name=name, value=shown, step=step if kind == "number" else None))


def paging(links: Links, page: str, values: Mapping[str, str], offset: int, limit: int, total: int) -> Html:
    """Which rows are shown, with links to those before and after them."""
    others = {name: value for name, value in values.items() if name != "offset"}
    last = min(offset + limit, total)
    parts: list[Child] = [f"{offset + 1 if total else 0} to {last} of {total:,} "]
    if links.to(page) is None:
        return el("p", *parts, cls="dim")
    if offset:
        parts += [links.link("before", page, **others, offset=max(0, offset - limit)), " "]
    if last < total:
        parts.append(links.link("after", page, **others, offset=offset + limit))
    return el("p", *parts, cls="dim")
