"""The explorer's pages over HTTP: read only, for the runs it was started with, with nothing from elsewhere."""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib import resources
from pathlib import Path

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from azr.explorer import evaluations, pages, queries
from azr.explorer.index import RunIndex
from azr.explorer.overview import overview
from azr.explorer.site import PAGES, BadAddress, Compared, Links, ShownRun, Values, choice, encoded, render

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}  # fmt: skip
STATIC = {"explorer.css": "text/css", "explorer.js": "text/javascript", "icon.svg": "image/svg+xml"}
READING_S = 1.0
"""Time that an answer spends at most on reading what is new in each run's files."""
BODIES: dict[str, Callable[[RunIndex, Links, Values], Markup]] = {
    "tasks": pages.tasks, "task": pages.task, "step": pages.step, "responses": pages.responses,
    "response": pages.response, "lineage": pages.lineage, "corpus": pages.corpus, "flags": pages.flags,
}  # fmt: skip
COMPARING: dict[str, Callable[[Sequence[ShownRun], int, Links, Values], Markup]] = {
    "evaluations": evaluations.evaluations,
    "question": evaluations.question,
}
"""Pages that may show several runs."""


def static(name: str) -> bytes:
    """A file that comes with the explorer."""
    return resources.files("azr.explorer").joinpath("static", name).read_bytes()


def names_of(paths: Sequence[Path]) -> list[str]:
    """What runs are called: the last part of their path, or all of it where that is not enough."""
    short = [path.resolve().name for path in paths]
    return [str(path) if short.count(name) > 1 else name for path, name in zip(paths, short, strict=True)]


@contextmanager
def shown_run(path: Path, name: str, number: int) -> Iterator[ShownRun]:
    """Open a run, and bring its index up to date or say why it is not."""
    with closing(RunIndex(path)) as index:
        reading = ""
        try:
            if not index.refresh(seconds=READING_S):
                reading = "The index is being made: older steps are here already, newer ones follow."
        except (OSError, sqlite3.Error) as error:  # such as a full disk
            reading = f"The index could not be brought up to date: {error}."
        yield ShownRun(name, index, number, reading)


def make_app(paths: Sequence[Path], *, token: str = "", hosts: Sequence[str] = ()) -> Starlette:
    """The application.

    ``token``: every address begins with it; without it, nothing is there. A cookie would be sent to every port of this
    host, so to servers of its other users too. ``hosts``: names that a request's Host may
    have, whatever its port; all where none is given.
    """
    root = f"/{token}" if token else ""
    names, numbers = names_of(paths), [*map(str, range(len(paths)))]

    def page(number: int, name: str, values: Values) -> Response:
        with ExitStack() as opened:
            runs = [opened.enter_context(shown_run(path, names[at], at)) for at, path in enumerate(paths)]
            run, links = runs[number], Links(f"{root}/{number}")
            (shown, status), pages = body(runs, number, name, links, values), menu(run)
            html = render(
                "frame", title=pages.get(name, name), body=shown, run=run, runs=runs, pages=pages, page=name, root=root,
                links=links,
            )  # fmt: skip
        return Response(encoded(html), status, media_type="text/html; charset=utf-8")

    async def answer(request: Request) -> Response:
        response = await run_in_threadpool(route, request)
        response.headers.update(HEADERS)
        return response

    def route(request: Request) -> Response:
        host = re.sub(r":\d+\Z", "", request.headers.get("host", ""))
        if hosts and host.strip("[]").lower() not in hosts:
            return PlainTextResponse("This name is not the explorer's.", 421)
        parts, values = request.url.path.strip("/").split("/"), dict(request.query_params)
        if token and not secrets.compare_digest(parts.pop(0).encode(), token.encode()):
            return PlainTextResponse("Not found: open the whole address that azr view printed, with its token.", 404)
        match [part.lstrip("0") or "0" if part.isdecimal() else part for part in parts]:
            case [] | [""]:
                return RedirectResponse(f"{root}/0/")
            case ["static", name] if name in STATIC:
                return Response(static(name), media_type=f"{STATIC[name]}; charset=utf-8")
            case [number, "changes"] if number in numbers:
                with shown_run(paths[int(number)], names[int(number)], int(number)) as run:
                    return PlainTextResponse(run.seen)
            case [number, *rest] if number in numbers:
                return page(int(number), "/".join(rest), values)
        return page(0, request.url.path, values)

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET"])])


def menu(run: ShownRun) -> Mapping[str, str]:
    """Return the names of the pages that each page links to, by the last part of their address."""
    if run.index.is_evaluation:
        return {"": "evaluations"}
    return PAGES if queries.has_corpus(run.index) else {path: name for path, name in PAGES.items() if path != "corpus"}


def body(runs: Sequence[ShownRun], number: int, name: str, links: Links, values: Values) -> tuple[Markup, int]:
    """Return what a page of a run shows, and its HTTP status."""
    try:
        if name in BODIES:
            return BODIES[name](runs[number].index, links, values), 200
        if name in COMPARING or (name == "" and runs[number].index.is_evaluation):
            return COMPARING[name or "evaluations"](runs, number, links, values), 200
        if name:
            raise BadAddress("There is no such page here.")
        return overview(_compared(runs, number, values), runs[number], links, values), 200
    except BadAddress as mistake:
        return render("empty", title="Not found", sentence=str(mistake), links=links), 404


def _compared(runs: Sequence[ShownRun], number: int, values: Values) -> Compared:
    """Return the runs whose curves a page shows. ``with`` of the address: index of the one other run, ``none``, or
    empty for all."""
    names = {str(at): run.name for at, run in enumerate(runs) if not run.index.is_evaluation}
    own = names.pop(str(number), "")
    texts = {"": "all runs", "none": f"{own} alone"} | {at: f"{own} and {name}" for at, name in names.items()}
    chosen = choice(values, "with", [*texts], "")
    shown = [run for at, run in enumerate(runs) if str(at) in names and chosen in ("", str(at))]
    return Compared([*([runs[number]] if own else []), *shown], texts if names else {}, chosen)
