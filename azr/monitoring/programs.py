"""How complex a program is, and how different programs are from each other."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from typing import TypedDict

from radon.complexity import cc_visit
from radon.metrics import h_visit


class Measures(TypedDict):
    """Of one program."""

    cyclomatic: float
    """McCabe's: independent paths, added up over its functions."""
    halstead_volume: float
    """Bits that its operators and operands take (M. Halstead, "Elements of Software Science")."""
    nodes: float
    """Of its syntax tree."""
    lines: float
    """That are not blank."""
    shape: str
    """Equal for programs that differ in names and constants only."""


NUMBERS = ("cyclomatic", "halstead_volume", "nodes", "lines")


def measure(program: str) -> Measures | None:
    """None for a program that cannot be parsed."""
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
    """Mean of each number, and ``distinct_shapes``: distinct shapes per program. Nothing without programs."""
    if not measured:
        return {}
    numbers: dict[str, float] = {name: sum(each[name] for each in measured) / len(measured) for name in NUMBERS}  # type: ignore[literal-required]
    return numbers | {"distinct_shapes": len({each["shape"] for each in measured}) / len(measured)}


def _shape(tree: ast.AST) -> str:
    """Of the types of nodes alone, as they are nested; operators are nodes, names and constants leave none."""
    parts: list[str] = []

    def visit(node: ast.AST) -> None:
        parts.append(f"{type(node).__name__}(")
        for child in ast.iter_child_nodes(node):
            visit(child)
        parts.append(")")

    visit(tree)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]
