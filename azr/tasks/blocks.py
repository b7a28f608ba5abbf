"""Read the fenced blocks of a text. All that models write in blocks is read here: proposals, answers, programs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

PYTHON = frozenset({"python", "python3", "py", "py3", "ipython", "ipython3"})
"""Labels of blocks that hold a program."""
_OPENING = re.compile(
    r"(?P<before>[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?)"
    r"(?P<fence>`{3,}(?=[^`]*$)|~{3,})[ \t]*\{?\.?(?P<language>[\w+-]*)(?P<rest>.*)"
)
"""A fence that begins its line, possibly in a list or a quotation."""
_OPENING_AFTER_TEXT = re.compile(r"[^`]*(?:`{1,2}[^`]+)*?(?P<fence>`{3,})[ \t]*(?P<language>[\w+-]*)")
_REOPENING = re.compile(r"[ \t>]*`{3,}[ \t]+(?P<fence>`{3,})[ \t]*(?P<language>[\w+-]+)[ \t]*")
"""A fence that ends a block, and on the same line one that begins the next."""
_BARE = re.compile(r"[ \t>]*(?:`{3,}|~{3,})[ \t]*")
_QUOTED = re.compile(r"[ \t]*> ?")
_STRING = re.compile(r"""#|'''|\"\"\"|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\\.""")
_SHORT_STRING = re.compile(r"""'[^']*'|"[^"]*\"""")
_MOST_SOURCE = 2**16
"""Characters of a text that is read as Python."""
_STRING_END = {quote: re.compile(rf"(?:\\.|[^\\])*?{quote}") for quote in ("'''", '"""')}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    language: str
    """Lower case; empty where the fence names none."""
    content: str
    lines: range = field(default=range(0), compare=False)
    """Lines of the text that the block takes, fences included."""
    closed: bool = field(default=True, compare=False)
    """Whether a fence ends it; an open one ends with the text."""


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks in order; an unclosed one ends with the text.

    A block may begin after other text on its line and end on its last line of code. Its content loses the indentation
    of its list. A fence within a triple-quoted string belongs to the program.
    """
    lines = text.split("\n")
    last_bare = max((number for number, line in enumerate(lines) if _BARE.fullmatch(line)), default=-1)
    found: list[Block] = []
    at = 0
    while at < len(lines):
        opened = _OPENING.fullmatch(lines[at]) or _REOPENING.fullmatch(lines[at])
        if opened is None:
            opened = _OPENING_AFTER_TEXT.fullmatch(lines[at].rstrip()) if "```" in lines[at] else None
            if opened is not None and not opened["language"] and at >= last_bare:
                opened = None
        if opened is None:
            at += 1
        else:
            block, at = _read_block(lines, at, opened)
            found.append(block)
    return found


def _read_block(lines: Sequence[str], start: int, opened: re.Match[str]) -> tuple[Block, int]:
    """Return the block that begins on a line, and the number of the line after it."""
    language = opened["language"].lower()
    endings = _endings(lines, start + 1, opened["fence"], language)
    nearest = next(endings, None)
    ending = nearest
    while ending is not None and ending.in_string:
        ending = next(endings, None)
    before = opened.groupdict().get("before") or ""
    content = _content(lines, start + 1, ending, before)
    if ending is not nearest and (ending is None or not parses(content)):
        ending, content = nearest, _content(lines, start + 1, nearest, before)
    end = len(lines) if ending is None else ending.next_line
    return Block(language, content, range(start, end), ending is not None), end


@dataclass(frozen=True, slots=True)
class _Ending:
    line: int
    last: str | None
    """Code on the line of the fence, before it."""
    next_line: int
    in_string: bool
    """The fence stands in a triple-quoted string, if the block is Python."""


def _endings(lines: Sequence[str], start: int, fence: str, language: str) -> Iterator[_Ending]:
    """Yield the lines that may end a block, in order."""
    open_quote: str | None = None
    is_python = language in PYTHON
    for number in range(start, len(lines)):
        line = lines[number]
        inner = line.lstrip(" \t>")
        run = len(inner) - len(inner.lstrip(fence[0]))
        if run >= len(fence):
            if run == len(inner.rstrip()):
                yield _Ending(number, None, number + 1, open_quote is not None)
            elif _REOPENING.fullmatch(line):
                yield _Ending(number, None, number, open_quote is not None)
            elif is_python:
                # No program has such a line: the block before was left open, or prose follows the fence.
                begins = _OPENING.fullmatch(line)
                goes_on = number if begins and not begins["rest"].strip() else number + 1
                yield _Ending(number, None, goes_on, open_quote is not None)
        elif fence in line and (code := _before_fence(line, fence)):
            yield _Ending(number, code, number + 1, _open_quote(code, open_quote) is not None)
        if is_python or not language:
            open_quote = _open_quote(line, open_quote)


def _before_fence(line: str, fence: str) -> str:
    """Return the code on a line that ends with the fence; empty if it does not, or the fence is a comment."""
    text = line.rstrip()
    code = text.rstrip(fence[0])
    is_fenced = len(text) - len(code) >= len(fence) and fence not in _SHORT_STRING.sub("", code)
    return code if is_fenced and code.strip(" \t#>*/-") else ""


def _open_quote(line: str, quote: str | None) -> str | None:
    """Return the triple quotes that a line of Python leaves open, given those that were open before it."""
    position = 0
    while True:
        found = _STRING_END[quote].match(line, position) if quote else _STRING.search(line, position)
        if found is None or found[0] == "#":
            return quote
        position = found.end()
        quote = None if quote else found[0] if found[0] in _STRING_END else None


def _content(lines: Sequence[str], start: int, ending: _Ending | None, before: str) -> str:
    """Return the text of a block without the marks and the indentation of its list or quotation."""
    inner = list(lines[start : len(lines) if ending is None else ending.line])
    if ending is not None and (ending.last is not None or inner):
        inner.append(ending.last or "")
    if ">" in before:
        inner = [_QUOTED.sub("", line, count=1) for line in inner]
        before = before.rpartition(">")[2].removeprefix(" ")
    margins = [len(line) - len(line.lstrip()) for line in inner if line.strip()]
    margin = min(len(before), min(margins, default=0))
    shared = "\n".join(line[margin:] for line in inner)
    if margin < len(before) and not parses(shared):
        each = "\n".join(line[min(len(before), len(line) - len(line.lstrip())) :] for line in inner)
        return each if parses(each) else shared
    return shared


@lru_cache(maxsize=2)  # several questions about one program
def parse(source: str) -> ast.Module | None:
    """Return the program's tree, which nothing may change; None if it is not Python, or too long to be an answer."""
    if len(source) > _MOST_SOURCE:
        return None
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def parses(source: str) -> bool:
    """Whether a text is Python."""
    return parse(source) is not None
