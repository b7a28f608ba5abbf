"""What the pages of the explorer share: templates, links, charts, and reading an address's values."""

from __future__ import annotations

import builtins
import json
import keyword
import math
import re
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from azr.explorer import queries
from azr.explorer.index import RunIndex, SampleRow
from azr.records import CORPUS, Sample
from azr.text import clipped

Values = Mapping[str, str]
"""What an address says after its question mark."""
PAGES = {
    "": "overview", "evaluations": "evaluations", "step": "steps", "responses": "responses", "tasks": "tasks",
    "lineage": "lineage", "corpus": "corpus", "flags": "flags",
}  # fmt: skip
"""By the last part of their address."""
MAX_CELL = 300
"""Characters of a model's text in a cell of a table."""
_SURPRISE = (0.105, 0.693, 2.303, 4.605)
"""Nats; of probabilities 90%, 50%, 10% and 1%."""
_MISMATCH = (0.01, 0.05, 0.2, 1.0)
"""Nats."""
_TWIN = re.compile(r"duplicate of (\S+)")
"""A reason that names a task."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Every quote ends a token, closed or not, so that no character is read twice: the time is linear in the length.
_TOKENS = re.compile(
    r"(?P<comment>#[^\n]*)"
    r"|(?P<string>[rbfuRBFU]{0,2}(?:'''(?:\\.?|[^\\])*?(?:'''|\Z)|\"\"\"(?:\\.?|[^\\])*?(?:\"\"\"|\Z)|'(?:\\.|[^'\\\n])*+'?|\"(?:\\.|[^\"\\\n])*+\"?))"
    r"|(?P<number>\b\d[\w.]*)"
    r"|(?P<word>[^\W\d]\w*)",
    re.DOTALL,
)
_BUILTINS = frozenset(dir(builtins))


class BadAddress(Exception):
    """Why an address asks for nothing that is there, in a sentence."""


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run that is shown."""

    name: str
    index: RunIndex
    number: int = 0
    """Index among the runs that were named; it gives the run its colour."""
    reading: str = ""
    """How far its index is, while it is not up to date."""

    @property
    def seen(self) -> str:
        """Changes whenever a page of the run may."""
        return f"{self.index.changes}{self.reading}"

    @property
    def notes(self) -> list[str]:
        """What is wrong with the run's files, and how far they are read."""
        sentences = [f"{path}: {sentence}" for path, sentence in queries.problems(self.index)]
        return [self.reading, *sentences] if self.reading else sentences


def render(macro: str, /, **values: Any) -> Markup:
    """Return what a macro of ``templates/pages.html`` makes of these values."""
    return Markup(getattr(_TEMPLATES.get_template("pages.html").module, macro)(**values))


def encoded(page: str) -> bytes:
    """Return a whole page without control characters, which have no place in HTML: they become escapes. Marks that
    reorder text, and halves of surrogate pairs, are among them."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], page).encode()


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table; a dash for what is not known."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


def highlighted(program: str) -> Markup:
    """Python with its keywords, strings, numbers, comments and builtin names marked; any other text as it is."""
    parts, end = list[str](), 0
    for token in _TOKENS.finditer(program):
        parts.append(escape(program[end : token.start()]))
        end, text, cls = token.end(), token[0], token.lastgroup
        if cls == "word":
            cls = "keyword" if keyword.iskeyword(text) else "builtin" if text in _BUILTINS else None
        parts.append(f'<span class="{cls}">{escape(text)}</span>' if cls else escape(text))
    parts.append(escape(program[end:]))
    return Markup(f'<pre class="program"><code>{"".join(parts)}</code></pre>')


def shaded(tokens: Sequence[tuple[str, float | None, float | None]]) -> Iterator[tuple[str, str, str]]:
    """Yield text, classes and a note of each token of `Sample.tokens`. The higher the class p0 to p4, the less probable
    in the engine; the higher m0 to m4, the larger the mismatch."""
    for text, engine, trainer in tokens:
        if engine is None or trainer is None:
            yield text, "", "not scored"
            continue
        surprise, mismatch = bisect(_SURPRISE, -engine), bisect(_MISMATCH, abs(trainer - engine))
        chance = math.exp(min(engine, 0.0))
        yield text, f"p{surprise} m{mismatch}", f"{chance:.2%} · log-probability {engine:.3g}, trainer {trainer:.3g}"


_TEMPLATES = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
_TEMPLATES.loader = PackageLoader("azr.explorer")
_TEMPLATES.filters |= {"number": number, "highlighted": highlighted, "shaded": shaded, "turns": queries.turns}
_TEMPLATES.filters["cut"] = lambda text: clipped(text, MAX_CELL)
_TEMPLATES.globals["ORIGINS"] = queries.ORIGINS


class Links:
    """Addresses of the pages of one run."""

    forms = True
    """Something answers the forms of a page."""

    def __init__(self, root: str) -> None:
        self._root = root

    def to(self, page: str, /, **values: str | int | float | None) -> str | None:
        """The address of a page; None where there is none."""
        query = urlencode({name: value for name, value in values.items() if value not in (None, "")})
        return f"{self._root}/{page}{'?' if query else ''}{query}"

    def link(self, text: str | int, page: str, /, **values: str | int | float | None) -> Markup:
        """A link, or the text alone where there is no such page."""
        href = self.to(page, **values)
        return Markup("<span>{1}</span>" if href is None else '<a href="{}">{}</a>').format(href, text)

    def task(self, id: str, *, kind: str = "", most: int = 60) -> Markup:
        """``kind``: of a row of a file, whose id is one in its file alone."""
        if id.startswith(f"{CORPUS}:"):
            return self.link(clipped(id, most), "corpus", id=id)
        return self.link(clipped(id, most), "task", id=id, kind=kind)

    def problem(self, sample: Sample) -> Markup:
        """Return a link to the task or the row of a file that the sample proposes or answers."""
        return self.task(sample.problem_id, kind=sample.kind if sample.phase == "data" else "")

    def sample(self, text: str, row: SampleRow) -> Markup:
        """Return a link to a sample's page."""
        return self.link(text, "response", step=row.sample.step, line=row.line)

    def sample_of_step(self, row: SampleRow) -> Markup:
        return self.sample(f"step {row.sample.step} #{row.line}", row)

    def reason(self, detail: str) -> str:
        """Why a proposal was refused or an answer is not right; the task that it names is a link."""
        twin = _TWIN.fullmatch(detail)
        return detail if twin is None else Markup("duplicate of {}").format(self.task(twin[1]))


def whole(values: Values, name: str) -> int | None:
    """A whole number of an address; None where there is none. Raises `BadAddress`."""
    text = values.get(name, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise BadAddress(f"{name} must be a whole number, not {text!r}.")
    return int(text)


def decimal(values: Values, name: str) -> float | None:
    """A number of an address; None where there is none. Raises `BadAddress`."""
    try:
        return float(values[name]) if values.get(name, "").strip() else None
    except ValueError:
        raise BadAddress(f"{name} must be a number, not {values[name]!r}.") from None


def choice(values: Values, name: str, known: Sequence[str], otherwise: str) -> str:
    """One of the known words of an address. Raises `BadAddress`."""
    text = values.get(name, "") or otherwise
    if text not in known:
        raise BadAddress(f"{name} must be one of {', '.join(filter(None, known))}, not {text!r}.")
    return text


MAX_POINTS = 2000
"""Points of a line; a longer line is sent as means of a few steps each."""
COLOURS = 10
"""Classes c0, c1, … of the style sheet for lines, s0, s1, … for parts of one run."""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: a name and pairs of step and value."""

    name: str
    points: Points
    colour: str = ""
    """Class of the style sheet; by default that of its index, so that it is the same in charts of the same things."""
    dash: int = 0


@dataclass(frozen=True, slots=True)
class Compared:
    """Runs whose curves a page shows."""

    runs: Sequence[ShownRun]
    texts: Mapping[str, str]
    """What its form offers: other runs by their values in the address."""
    chosen: str


def chart(
    title: str, series: Sequence[Series], unit: str = "", *, shape: Literal["line", "area"] = "line", of: str = "",
    bounds: Sequence[float] = (), run: ShownRun | None = None,
) -> Markup:  # fmt: skip
    """Return a chart of values over steps; nothing if there is none.

    Areas are stacked, and a step that one lacks counts 0. ``unit``: name on the axis; ``%`` for shares from 0 to 1.
    ``of``: what it is of, behind the title. ``bounds``: values that the axis includes. ``run``: the only run that it
    is of.
    """
    coloured = ((each.colour or f"s{at % COLOURS}", each) for at, each in enumerate(series))
    lines = [
        {"name": each.name, "dash": each.dash, "colour": colour, "points": _thinned(each.points)}
        for colour, each in coloured
        if any(y for _, y in each.points) or (each.points and shape == "line")
    ]
    if not lines:
        return Markup()
    data = json.dumps({"shape": shape, "unit": unit, "bounds": bounds, "series": lines})
    return render("figure", title=title, of=of, run=run, data=data, lines=lines, unit=unit)


def _thinned(points: Points) -> Points:
    stride = math.ceil(len(points) / MAX_POINTS)
    groups = (points[start : start + stride] for start in range(0, len(points), stride))
    return [(group[-1][0], float(f"{sum(y for _, y in group) / len(group):.6g}")) for group in groups]
