"""Runs as one HTML file that opens without a server: curves, the last step, the hardest tasks, evaluations."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from markupsafe import Markup

from azr.explorer import evaluations, pages, queries
from azr.explorer.evaluations import Key
from azr.explorer.index import RunIndex
from azr.explorer.overview import lengths, overview
from azr.explorer.queries import SampleFilter, TaskFilter
from azr.explorer.server import names_of, static
from azr.explorer.site import Links, ShownRun, encoded, render

MAX_TASKS = 40
"""With all their attempts: the hardest of the last step, then the hardest of all."""
MAX_TRAJECTORIES = 200
"""Of the last step."""
GENERATOR = "azr view"
"""By which a report is known again."""


class Anchors(Links):
    """Links within the file, for those tasks and questions that it holds."""

    forms = False

    def __init__(self, run: int, ids: Sequence[str], questions: Sequence[Key] = ()) -> None:
        super().__init__("")
        self._anchors = {("task", "", id): f"task-{run}-{place}" for place, id in enumerate(ids)}
        self._anchors |= {("question", *key): f"question-{run}-{place}" for place, key in enumerate(questions)}

    def anchor(self, page: str, id: str, suite: str = "") -> str | None:
        """Return the name of a place in the file; None if the file does not hold it."""
        return self._anchors.get(("task" if page == "lineage" else page, suite, id))

    def to(self, page: str, /, **values: str | int | float | None) -> str | None:
        anchor = self.anchor(page, str(values.get("id", "")), str(values.get("suite", "")))
        return None if anchor is None else f"#{anchor}"


def report(paths: Sequence[Path], tell: Callable[[str], None]) -> bytes:
    """The file's content. ``tell`` hears how far indexing is."""
    with ExitStack() as opened:
        runs = []
        for path, name in zip(paths, names_of(paths), strict=True):
            index = opened.enter_context(closing(RunIndex(path)))
            index.refresh(tell)
            runs.append(ShownRun(name, index))
        parts = [(name, _lowered(part)) for number in range(len(runs)) for name, part in _run(runs, number)]
        style, script = static("explorer.css").decode(), static("explorer.js").decode()
        policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'"
        html = render(
            "report", title=" and ".join(run.name for run in runs), parts=parts, generator=GENERATOR, policy=policy,
            style=Markup(style), script=Markup(script),
        )  # fmt: skip
        return encoded(html)


def _lowered(page: str) -> Markup:
    """Return a page as a part of the file, each of its headings one level lower."""
    return Markup(re.sub(r"(</?h)(\d)", lambda tag: f"{tag[1]}{int(tag[2]) + 1}", page))


def is_report(path: Path) -> bool:
    """Whether a file is a report that was written before. Raises OSError."""
    with path.open("rb") as file:
        return f'<meta name="generator" content="{GENERATOR}">'.encode() in file.read(500)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _run(runs: Sequence[ShownRun], number: int) -> list[tuple[str, Markup]]:
    """Return the parts of the file on one run with their names in the table of contents."""
    run = runs[number]
    index, steps = run.index, queries.steps(run.index)
    tasks = _hardest(index, steps)
    evaluated = evaluations.reported_questions(runs, number)
    links = Anchors(number, tasks, evaluated[1] if evaluated is not None else ())
    answered = [] if evaluated is None else [(f"evaluations of {run.name}", evaluations.reported(*evaluated, links))]
    parts = [("", render("notes", sentences=run.notes))]
    if index.is_evaluation:
        return parts + answered
    with_curves = [each for each in runs if not each.index.is_evaluation]
    is_first = run is with_curves[0]  # which has the curves of all
    parts.append((f"curves of {run.name}", overview(with_curves if is_first else [run], run, links)))
    if is_first:
        parts.append(("lengths", lengths(with_curves)))
    if steps:
        parts.append((f"step {steps[-1]}", pages.step(index, links, {"step": str(steps[-1])})))
        refused = SampleFilter(step=steps[-1], verdict=queries.REFUSED, limit=MAX_TRAJECTORIES)
        rows, total = queries.find_samples(index, refused)
        if rows:
            parts.append(("refused", render("refused", links=links, step=steps[-1], rows=rows, total=total)))
    parts.append(("lineage", pages.lineage(index, links, {})))
    shown = [(id, pages.task(index, links, {"id": id})) for id in tasks]
    hardest = render("reported_tasks", links=links, name=run.name, tasks=shown)
    return [*parts, ("hardest tasks", hardest), *answered]


def _hardest(index: RunIndex, steps: Sequence[int]) -> list[str]:
    last = steps[-1] if steps else 0
    of_last = TaskFilter(step_from=last, step_to=last, order="hardest", limit=MAX_TASKS // 2)
    rows = queries.find_tasks(index, of_last)[0] + queries.find_tasks(index, TaskFilter(order="hardest"))[0]
    return [*dict.fromkeys(row["id"] for row in rows)][:MAX_TASKS]
