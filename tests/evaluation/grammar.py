"""A superset of what the generator of the pretraining corpus can emit, read off its tables of operations.

A program is accepted when every statement of it, taken alone, is one that some step could have written. Types, the
order of steps and where a block may stand are not looked at, so a program that is refused cannot be emitted.
"""

from __future__ import annotations

import ast
import itertools
import re

from tools.pretrain.operations import BINARY, CONDITIONS, EXPRESSIONS, LOOPS, MUTATIONS, Operation

_NUMBER, _TEXT = r"(?:\d+|y)", r"'[^']*'"
_TEXTS = ("letter", "word", "separator")


def _pattern(op: Operation) -> str:
    constant = _TEXT if op.constant in _TEXTS else _NUMBER
    return re.escape(op.template.format(v="VALUE", c="CONSTANT")).replace("VALUE", "[xr]").replace("CONSTANT", constant)


def _any(*tables: tuple[Operation, ...]) -> str:
    return "|".join(f"(?:{_pattern(op)})" for op in itertools.chain(*tables))


_EXPRESSION, _GUARD = _any(EXPRESSIONS, BINARY), _any(CONDITIONS)
_STEPS = (
    rf"    [xr] = (?:{_EXPRESSION}|r)",
    rf"    return (?:{_EXPRESSION}|[xr])",
    rf"    (?:{_any(MUTATIONS)})",
    rf"    if (?:{_GUARD}):\n        [xr] = (?:{_EXPRESSION})(?:\n    else:\n        [xr] = (?:{_EXPRESSION}))?",
    *("    " + _pattern(op).replace(";", r"\n    ") for op in LOOPS),
)
_PROGRAM = re.compile(r"def f\(x(?:, y)?\):(?:\n(?:" + "|".join(f"(?:{step})" for step in _STEPS) + r"))+")


def can_be_emitted(program: str) -> bool:
    """Whether the generator might write this program; certainly not, when False."""
    return _PROGRAM.fullmatch(program) is not None


def deepest_nesting(program: str) -> int:
    """Most statements around a statement, the function not counted."""

    def depth(node: ast.AST) -> int:
        inner = max(map(depth, ast.iter_child_nodes(node)), default=0)
        return inner + isinstance(node, ast.If | ast.For)

    return depth(ast.parse(program))
