"""The pages of runs, saved in one HTML file that opens without a server."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from markupsafe import Markup

from azr.explorer.index import RunIndex
from azr.explorer.server import body, menu, names_of, static
from azr.explorer.site import PAGES, Links, ShownRun, encoded, render
from azr.files import open_regular

MAX_PAGES = 400
"""Of a run: those of its menu, then those that they link to."""
GENERATOR = "azr view"
"""By which a report is known again."""


class SavedLinks(Links):
    """Links within the file, which holds a page from its first link on."""

    forms = False

    def __init__(self, run: int) -> None:
        super().__init__(str(run))
        self.anchors: dict[str, str] = {}
        self.pages: list[tuple[str, str, dict[str, str]]] = []
        """Anchor, name and values of each page."""

    def to(self, page: str, /, **values: str | int | float | None) -> str | None:
        given = {name: str(value) for name, value in values.items() if value not in (None, "")}
        address = super().to(page, **given) or ""
        if address not in self.anchors:
            # A list is held as it opens, and not by every filter.
            if len(self.pages) == MAX_PAGES or (page in PAGES and given.keys() - {"step", "id"}):
                return None
            self.anchors[address] = f"page-{self._root}-{len(self.pages)}"
            self.pages.append((self.anchors[address], page, given))
        return f"#{self.anchors[address]}"


def report(paths: Sequence[Path], tell: Callable[[str], None]) -> bytes:
    """The file's content. ``tell`` hears how far indexing is."""
    with ExitStack() as opened:
        runs: list[ShownRun] = []
        for path, name in zip(paths, names_of(paths), strict=True):
            index = opened.enter_context(closing(RunIndex(path)))
            index.refresh(tell)
            runs.append(ShownRun(name, index, len(runs)))
        links = [SavedLinks(number) for number in range(len(runs))]
        pairs = zip(runs, links, strict=True)
        menus = [(run, [(name, of.to(page)) for page, name in menu(run).items()]) for run, of in pairs]
        pages = list[tuple[str, Markup]]()
        for number, of in enumerate(links):
            for anchor, page, values in of.pages:  # those that they link to join them
                pages.append((anchor, body(runs, number, page, of, values)[0]))
        style, script = static("explorer.css").decode(), static("explorer.js").decode()
        policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'"
        html = render(
            "report", title=" and ".join(run.name for run in runs), menus=menus, pages=pages, generator=GENERATOR,
            policy=policy, style=Markup(style), script=Markup(script),
        )  # fmt: skip
        return encoded(html)


def is_report(path: Path) -> bool:
    """Whether a file is a report that was written before. Raises OSError."""
    with open_regular(path) as file:
        return f'<meta name="generator" content="{GENERATOR}">'.encode() in file.read(500)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
