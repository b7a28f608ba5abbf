"""HTML in which every text is escaped unless it was made here: what a model wrote can never become markup."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable
from html import escape

_VOID = frozenset({"br", "input", "link", "meta"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | int | float | Html | None | Iterable["Child"]


def el(tag: str, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """An element. Attributes: ``cls`` is ``class``, ``_`` is ``-``; without those that are None or False."""
    parts = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = "class" if name == "cls" else name.rstrip("_").replace("_", "-")
        parts.append(name if value is True else f'{name}="{_escaped(str(value))}"')
    head = Html(f"<{' '.join(parts)}>")
    return head if tag in _VOID else Html(f"{head}{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Html:
    """Children one after the other."""
    return Html("".join(_text(child) for child in children))


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str):
        return _escaped(child)
    if isinstance(child, int | float):
        return str(child)
    return join(child)


def _escaped(text: str) -> str:
    # Control characters have no place in HTML; what looks like a line of its own stays one.
    return escape(_CONTROL.sub(lambda found: ascii(found[0])[1:-1], text))


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_TOKENS = re.compile(
    r"(?P<comment>#[^\n]*)"
    r"|(?P<string>[rbfuRBFU]{0,2}(?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"))"
    r"|(?P<number>\b\d[\w.]*)"
    r"|(?P<word>[^\W\d]\w*)"
    r"|\\.",  # begins no string, or each of many would be looked for to the end
    re.DOTALL,
)
_BUILTINS = frozenset(dir(builtins))
_MOST_MARKED = 2**15


def highlighted(program: str) -> Html:
    """Python with its keywords, strings, numbers, comments and builtin names marked; any other text as it is.

    Of a very long program only the beginning is marked.
    """
    parts: list[Html | str] = []
    end = 0
    for token in _TOKENS.finditer(program, 0, _MOST_MARKED):
        parts.append(program[end : token.start()])
        end, text, cls = token.end(), token[0], token.lastgroup or ""
        if cls == "word":
            cls = "keyword" if keyword.iskeyword(text) else "builtin" if text in _BUILTINS else ""
        parts.append(el("span", text, cls=cls) if cls else text)
    return el("pre", el("code", *parts, program[end:]), cls="program")


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table; a dash for what is not known."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


def table(heads: Iterable[Child], rows: Iterable[Iterable[Child]], cls: str = "") -> Html:
    """A table in which cells that are numbers stand to the right."""
    body = (el("tr", *(el("td", cell, cls="number" if _is_number(cell) else None) for cell in row)) for row in rows)
    head = el("thead", el("tr", *(el("th", name) for name in heads)))
    return el("div", el("table", head, el("tbody", *body), cls=cls or None), cls="wide")


def _is_number(cell: Child) -> bool:
    if isinstance(cell, int | float):
        return True
    return isinstance(cell, str) and not isinstance(cell, Html) and re.fullmatch(r"[-+]?[\d,.e+-]*%?", cell) is not None
