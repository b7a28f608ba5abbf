"""Programs that `tools.pretrain.generator` never emits, made of the same operations, constants and types of value.

Each of the `FORMS` breaks one of the generator's rules.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable

from tools.pretrain.generator import TYPES, ProgramTemplate
from tools.pretrain.operations import CONDITIONS, CONSTANTS, EXPRESSIONS, Operation

_ELEMENT = {"ints": "int", "words": "str", "str": "str"}
"""What a loop over a type of value takes from it."""
_ITEMS = {
    "int": [op for op in EXPRESSIONS if op.source == op.target == "int"],
    "str": [op for op in EXPRESSIONS if op.hint in ("upper", "append", "prepend", "repeat") and op.target == "str"],
}
"""Expressions over a loop's element that keep its type."""
_GUARDS = {
    "ints": [op for op in CONDITIONS if op.source == "int"],
    "words": [op for op in CONDITIONS if op.source == "str"],
    "str": [Operation("str", "bool", "is", "{v} == {c}", "letter")],
}
"""Conditions on the element of a loop over a type of value."""
_SUM, _COLLECT, _JOIN = ("sum", "0", "r += {}"), ("list", "[]", "r.append({})"), ("join", "''", "r += {}")
_GATHER = {"ints": (_SUM, _COLLECT), "words": (_COLLECT, _JOIN), "str": (_COLLECT, _JOIN)}
"""Ways to build ``r`` from the elements: name, start and statement."""


def _fill(rng: random.Random, op: Operation, value: str) -> str:
    """The operation on an expression, in parentheses only where Python needs them."""
    constant = CONSTANTS[op.constant](rng) if op.constant else ""
    plain, wrapped = (op.template.format(v=text, c=constant) for text in (value, f"({value})"))
    return plain if _tree(plain) == _tree(wrapped) else wrapped


def _tree(expression: str) -> str | None:
    try:
        return ast.dump(ast.parse(expression))
    except SyntaxError:
        # ``x * 2.upper()``: parentheses decide even about what is a number.
        return None


def _type(rng: random.Random, names: tuple[str, ...]) -> str:
    (kind,) = rng.choices(names, [TYPES[name] for name in names])
    return kind


def _program(lines: list[str], message: str, kind: str, steps: int) -> ProgramTemplate:
    return ProgramTemplate("\n    ".join(["def f(x):", *lines]), message, (kind,), steps)


def _nested(rng: random.Random) -> ProgramTemplate:
    start = kind = _type(rng, tuple(TYPES))
    depth = rng.choice((2, 2, 3))
    expression, hints = "x", []
    for level in range(depth):
        last = level == depth - 1
        op = rng.choice([op for op in EXPRESSIONS if op.source == kind and _can_nest(op, level, last)])
        expression, kind = _fill(rng, op, expression), op.target
        hints.append(op.hint)
    return _program([f"return {expression}"], ", ".join(hints), start, depth)


def _can_nest(op: Operation, level: int, last: bool) -> bool:
    """Only the innermost expression may use its value twice, and only the outermost may give a bool."""
    return (level == 0 or op.template.count("{v}") == 1) and (last or op.target != "bool")


def _item(rng: random.Random, kind: str) -> tuple[str, str]:
    """An expression over a loop's element ``a``, sometimes ``a`` itself, and its hint."""
    if rng.random() < 0.3:
        return "a", "same"
    op = rng.choice(_ITEMS[_ELEMENT[kind]])
    return _fill(rng, op, "a"), op.hint


def _loop(kind: str, gather: tuple[str, str, str], body: list[str], hint: str) -> ProgramTemplate:
    name, start, _ = gather
    lines = [f"r = {start}", "for a in x:", *(f"    {line}" for line in body), "return r"]
    return _program(lines, f"loop {name} {hint}", kind, 2)


def _branch_in_loop(rng: random.Random) -> ProgramTemplate:
    kind = _type(rng, tuple(_GATHER))
    gather, guard = rng.choice(_GATHER[kind]), rng.choice(_GUARDS[kind])
    (body, hint), (other, other_hint) = _item(rng, kind), _item(rng, kind)
    lines = [f"if {_fill(rng, guard, 'a')}:", f"    {gather[2].format(body)}"]
    lines += ["else:", f"    {gather[2].format(other)}"]
    return _loop(kind, gather, lines, f"if {guard.hint} {hint} else {other_hint}")


def _two_step_loop(rng: random.Random) -> ProgramTemplate:
    kind = _type(rng, tuple(_GATHER))
    gather, op = rng.choice(_GATHER[kind]), rng.choice(_ITEMS[_ELEMENT[kind]])
    last, hint = _item(rng, kind)
    return _loop(kind, gather, [f"a = {_fill(rng, op, 'a')}", gather[2].format(last)], f"{op.hint} {hint}")


def _branch_in_branch(rng: random.Random) -> ProgramTemplate:
    kind = _type(rng, ("int", "str", "ints"))
    guards = rng.sample([op for op in CONDITIONS if op.source == kind], 2)
    bodies = rng.sample([op for op in EXPRESSIONS if op.source == op.target == kind], 2)
    (outer, inner), (first, second) = ([_fill(rng, op, "x") for op in ops] for ops in (guards, bodies))
    lines = [
        f"if {outer}:",
        f"    if {inner}:",
        f"        x = {first}",
        "    else:",
        f"        x = {second}",
        "return x",
    ]
    hint = f"if {guards[0].hint} if {guards[1].hint} {bodies[0].hint} else {bodies[1].hint}"
    return _program(lines, hint, kind, 2)


FORMS: dict[str, Callable[[random.Random], ProgramTemplate]] = {
    "nested": _nested,
    "branch in loop": _branch_in_loop,
    "two-step loop": _two_step_loop,
    "branch in branch": _branch_in_branch,
}
"""Makers of random programs; ``nested`` are two or three expressions inside each other in one ``return``."""
