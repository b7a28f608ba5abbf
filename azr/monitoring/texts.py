"""Measures of responses and programs: mixed languages, shares of comments, complexity, and how programs differ."""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Sequence
from typing import TypedDict

from radon.complexity import cc_visit
from radon.metrics import h_visit

SCRIPTS = {
    "han and kana": "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff",
    "hangul": "\u1100-\u11ff\uac00-\ud7af",
    "cyrillic": "\u0400-\u04ff",
    "arabic": "\u0600-\u06ff\u0750-\u077f",
    "hebrew": "\u0590-\u05ff",
    "devanagari": "\u0900-\u097f",
    "thai": "\u0e00-\u0e7f",
}
"""Ranges of letters. Greek is none of them: it is mathematics as often as a language."""
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]")
_OTHERS = [re.compile(f"[{letters}]") for letters in SCRIPTS.values()]
MIN_LETTERS, MIN_SHARE = 5, 0.01
"""Of a second script, for a text to count as mixed: so many letters, and this share of all."""
COMMENTED = 0.5
"""A program is heavy with comments when at least this share of its lines that are not blank only comments."""
_MIN_LINES = 4
_BEGIN_STATEMENT = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_LAYOUT = (*_BEGIN_STATEMENT, tokenize.NL, tokenize.ENDMARKER, tokenize.ENCODING)
NUMBERS = ("cyclomatic", "halstead_volume", "nodes", "lines")


class Measures(TypedDict):
    """Measures of one program."""

    cyclomatic: float
    """McCabe's: independent paths, added up over its functions."""
    halstead_volume: float
    """Bits that its operators and operands take (M. Halstead, "Elements of Software Science")."""
    nodes: float
    """Nodes of its syntax tree."""
    lines: float
    """Lines that are not blank."""
    shape: str
    """Equal for programs that differ in names and constants only."""


def measure(program: str) -> Measures | None:
    """Return the measures of a program; None if it cannot be parsed."""
    try:
        tree = ast.parse(program)
        blocks, halstead = cc_visit(program), h_visit(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError, AttributeError, TypeError):
        return None
    return Measures(
        cyclomatic=float(sum(block.complexity for block in blocks)),
        halstead_volume=float(halstead.total.volume),
        nodes=float(sum(1 for _ in ast.walk(tree))),
        lines=float(sum(1 for line in program.splitlines() if line.strip())),
        shape=_shape(tree),
    )


def means(measured: Sequence[Measures]) -> dict[str, float]:
    """Return the mean of each number, and ``distinct_shapes``: distinct shapes per program. Empty without programs."""
    if not measured:
        return {}
    numbers: dict[str, float] = {name: sum(each[name] for each in measured) / len(measured) for name in NUMBERS}  # type: ignore[literal-required]
    return numbers | {"distinct_shapes": len({each["shape"] for each in measured}) / len(measured)}


def _shape(tree: ast.AST) -> str:
    """Hash of the nested types of nodes; operators are nodes, names and constants leave none."""
    parts: list[str] = []

    def visit(node: ast.AST) -> None:
        parts.append(f"{type(node).__name__}(")
        for child in ast.iter_child_nodes(node):
            visit(child)
        parts.append(")")

    visit(tree)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def is_mixed(text: str) -> bool:
    """Whether two writing systems share a text: of the second at least `MIN_LETTERS` and `MIN_SHARE` of all letters."""
    if text.isascii():
        return False
    counts = sorted((len(script.findall(text)) for script in (_LATIN, *_OTHERS)), reverse=True)
    return counts[1] >= max(MIN_LETTERS, MIN_SHARE * sum(counts))


def is_comment_heavy(program: str) -> bool:
    """Whether comments and docstrings are at least half of a program's lines; never with fewer than four lines."""
    lines = [number for number, line in enumerate(program.splitlines(), 1) if line.strip()]
    if len(lines) < _MIN_LINES:
        return False
    comments, code = set[int](), set[int]()
    try:
        begins_statement = True
        for token in tokenize.generate_tokens(io.StringIO(program).readline):
            span = range(token.start[0], token.end[0] + 1)
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and begins_statement):
                comments.update(span)
            elif token.type not in _LAYOUT:
                code.update(span)
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                begins_statement = token.type in _BEGIN_STATEMENT
    except (tokenize.TokenError, SyntaxError, ValueError):
        comments = {number for number in lines if program.splitlines()[number - 1].lstrip().startswith("#")}
        code = set()
    return len(comments - code) >= COMMENTED * len(lines)
