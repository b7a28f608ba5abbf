"""What static check and suspicion ask of a whole syntax tree: what is literal, kept, compared, annotated."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from types import EllipsisType, NoneType
from typing import Any

Nodes = defaultdict[type, list[Any]]
"""Nodes of a tree by their class, each list from the top of the tree down."""
Place = tuple[int, int]
"""Line and column at which a name begins."""
FORMATS = frozenset({"format", "format_map"})
"""Methods of texts whose fields go through attributes."""
_FIELD = re.compile(r"\{[^{}:!]*\.")
"""A field of a format string that goes through an attribute, which may be a bound method."""
_FIRST = frozenset(
    {"all", "any", "bool", "callable", "dict", "enumerate", "filter", "isinstance", "iter", "len", "list", "map", "max",
     "min", "next", "reversed", "set", "sorted", "sum", "tuple", "zip"}
)  # fmt: skip
"""Builtins that use up their first argument, unless (max, min) they choose one of several."""
_ALL = frozenset({"filter", "map", "zip"})
"""Builtins that use up all of their arguments."""
_ITERATORS = frozenset({"enumerate", "filter", "iter", "map", "reversed", "zip"})
"""Builtins whose results have texts that state addresses."""
_FIRST_OF_METHODS = frozenset({"extend", "join", "update"})
_BY_KEY = frozenset({"max", "min", "sort", "sorted"})
"""What calls the function that is given as ``key``."""
_DATA = frozenset({"real", "imag", "numerator", "denominator", "start", "stop", "step", "maxlen", "__name__"})
"""Attributes that are no bound methods."""
_SINGLETONS = frozenset(
    {"bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple", "type"}
)


def by_kind(tree: ast.AST) -> Nodes:
    """Return all nodes. Programs pay for it: `ast.walk` takes half as long again."""
    nodes, level = Nodes(list), list[Any]([tree])
    for node in level:  # grows
        nodes[node.__class__].append(node)
        for value in getattr(node, "__dict__", {}).values():
            if value.__class__ is list:
                level += value
            elif isinstance(value, ast.AST):
                level.append(value)
    return nodes


def _bound(nodes: Nodes) -> Iterator[str]:
    """Names that a program binds, as often as it does."""
    yield from (node.id for node in nodes[ast.Name] if not isinstance(node.ctx, ast.Load))
    yield from (node.arg for node in nodes[ast.arg])
    yield from _imported(nodes)
    for kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar):
        yield from (node.name for node in nodes[kind] if node.name)
    yield from (node.rest for node in nodes[ast.MatchMapping] if node.rest)


def _imported(nodes: Nodes) -> Iterator[str]:
    """Names that import statements bind."""
    return ((alias.asname or alias.name).partition(".")[0] for alias in nodes[ast.alias])


def _is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def not_literal(nodes: Nodes, formats: list[tuple[int, ast.expr | None]]) -> list[int]:
    """Lines of those whose text is not known, as that of a name bound to literal texts alone is; None: any text."""
    assigned = [node for node in nodes[ast.Assign] if _is_text(node.value) and len(node.targets) == 1]
    texts = Counter(node.targets[0].id for node in assigned if isinstance(node.targets[0], ast.Name))
    bound = Counter(_bound(nodes))
    literals = {name for name, count in texts.items() if bound[name] == count}
    return [line for line, text in formats if not _is_text(text) and getattr(text, "id", None) not in literals]


def asked_types(nodes: Nodes) -> set[Place]:
    """Where ``isinstance`` or a comparison asks for a type."""
    kinds = [side for node in nodes[ast.Compare] for side in (node.left, *node.comparators)]
    for node in nodes[ast.Call]:
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, asked]):
                kinds += asked.elts if isinstance(asked, ast.Tuple) else [asked]
    return {(kind.lineno, kind.col_offset) for kind in kinds}


def passes_functions_around(nodes: Nodes) -> bool:
    """Whether more than plain data could be formatted: functions, classes, instances, generators, tracebacks.

    Fields of a format may go through attributes, and from these on to all that the interpreter holds.
    """
    if any(node.name in FORMATS for node in nodes[ast.FunctionDef]):
        return False  # a method of the program's own
    if any(nodes[kind] for kind in (ast.ClassDef, ast.AsyncFunctionDef, ast.Yield, ast.YieldFrom)):
        return True
    if any(node.name for node in nodes[ast.ExceptHandler]):
        return True
    return keeps_addressed(nodes, frozenset(_imported(nodes)), frozenset())


def _asked(nodes: Nodes, *operators: type[ast.cmpop]) -> Iterator[ast.expr]:
    """What stands behind these operators of comparisons."""
    for node in nodes[ast.Compare]:
        pairs = zip(node.ops, node.comparators, strict=True)
        yield from (value for operator, value in pairs if isinstance(operator, operators))


def compares_identities(nodes: Nodes) -> bool:
    """Whether ``is`` compares anything but None and its like, or a builtin type."""
    singletons = _SINGLETONS.difference(_bound(nodes))
    return not all(
        type(asked.value) in (NoneType, bool, EllipsisType)
        if isinstance(asked, ast.Constant)
        else isinstance(asked, ast.Name) and asked.id in singletons
        for asked in _asked(nodes, ast.Is, ast.IsNot)
    )


def makes_classes(nodes: Nodes) -> bool:
    """Whether ``type`` does more than name or compare a value's type, such as making classes with any methods."""
    asked = {id(side) for node in nodes[ast.Compare] for side in (node.left, *node.comparators)}
    asked |= {id(node.value) for node in nodes[ast.Attribute] if node.attr == "__name__"}
    asked |= {id(node.value) for node in nodes[ast.FormattedValue]}
    calls = [node for node in nodes[ast.Call] if id(node) in asked and len(node.args) == 1]
    called = {id(node.func) for node in calls if not isinstance(node.args[0], ast.Starred)}
    return any(node.id == "type" and id(node) not in called for node in nodes[ast.Name])


def keeps_sets(nodes: Nodes) -> bool:
    """Whether a set is written otherwise than behind ``in``."""
    asked = set(map(id, _asked(nodes, ast.In, ast.NotIn)))
    return any(id(node) not in asked for node in nodes[ast.Set])


def keeps_views(nodes: Nodes) -> bool:
    """Whether a view of a dict is kept, which may become a set."""
    called, used = _uses(nodes)
    views = {id(node) for node in nodes[ast.Attribute] if node.attr in ("keys", "items")}
    return bool(views - called) or any(id(node.func) in views and id(node) not in used for node in nodes[ast.Call])


def formats_attributes(nodes: Nodes) -> bool:
    """Whether a format string is not literal, or has a field that goes through an attribute."""
    return any(
        node.attr in FORMATS and not (isinstance(node.value, ast.Constant) and not _FIELD.search(str(node.value.value)))
        for node in nodes[ast.Attribute]
    )


def keeps_addressed(nodes: Nodes, functions: frozenset[str], values: frozenset[str]) -> bool:
    """Whether a function, an iterator or a bound method is kept, whose text would state an address.

    ``functions``: members of modules that count as functions when imported; ``values``: members that never do.
    """
    called, used = _uses(nodes)
    if any(node.decorator_list for node in nodes[ast.FunctionDef]):
        return True
    named = {node.name for node in nodes[ast.FunctionDef]}
    for node in nodes[ast.ImportFrom]:
        named |= {alias.asname or alias.name for alias in node.names if alias.name in functions}
        named |= functions if any(alias.name == "*" for alias in node.names) else frozenset()
    for node in nodes[ast.Assign]:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda()):
                named.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other) as same) if other in named:
                named.add(name)  # another name for the same function
                used.add(id(same))
    modules = {alias.asname or alias.name.partition(".")[0] for node in nodes[ast.Import] for alias in node.names}
    for node in nodes[ast.Name]:
        is_kept = (node.id in _ITERATORS and id(node) not in called) or (node.id in named and id(node) not in used)
        if is_kept and isinstance(node.ctx, ast.Load):
            return True
    kept = [*nodes[ast.Lambda], *nodes[ast.GeneratorExp]]
    kept += (node for node in nodes[ast.Call] if isinstance(node.func, ast.Name) and node.func.id in _ITERATORS)
    for node in nodes[ast.Attribute]:
        is_member = isinstance(node.value, ast.Name) and node.value.id in modules
        if node.attr not in _DATA and not (is_member and node.attr in values):
            kept.append(node)
    return any(id(node) not in used for node in kept)


def _uses(nodes: Nodes) -> tuple[set[int], set[int]]:
    """Ids of expressions that are called, and of all that are used up where they stand.

    One is used up by a loop, or by a call of what is known to take that argument apart or to call it; everything else
    keeps it.
    """
    bound, used = frozenset(_bound(nodes)), list[ast.AST]()  # names that are bound may be no builtins
    for node in nodes[ast.Call]:
        name = node.func.id if isinstance(node.func, ast.Name) and node.func.id not in bound else ""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in _ALL:
            used += node.args
        elif (name in _FIRST and (len(node.args) == 1 or name not in _BY_KEY)) or method in _FIRST_OF_METHODS:
            used += node.args[:1]
        if name in _BY_KEY or method in _BY_KEY:
            used += (each.value for each in node.keywords if each.arg == "key")
    used += (node.iter for kind in (ast.For, ast.comprehension) for node in nodes[kind])
    used += (node.value for kind in (ast.Expr, ast.Starred) for node in nodes[kind])
    for node in nodes[ast.Assign]:
        match node:
            case (
                ast.Assign(targets=[ast.Name()], value=ast.Lambda() as value)
                | ast.Assign(targets=[ast.Tuple() | ast.List()], value=value)
            ):
                used.append(value)
    used += _asked(nodes, ast.In, ast.NotIn)
    used += (part for annotation in _annotations(nodes) for part in ast.walk(annotation))
    called = {id(node.func) for node in nodes[ast.Call]}
    return called, called.union(map(id, used))


def _annotations(nodes: Nodes) -> Iterator[ast.expr]:
    """Annotations of parameters, results and names."""
    yield from (node.annotation for kind in (ast.arg, ast.AnnAssign) for node in nodes[kind] if node.annotation)
    yield from (node.returns for node in nodes[ast.FunctionDef] if node.returns)


def has_plain_annotations(nodes: Nodes) -> bool:
    """Whether annotations are names of classes, with or without brackets, and so hold no text to evaluate."""
    bound = frozenset(_bound(Nodes(list, {kind: nodes[kind] for kind in (ast.Name, ast.arg)})))
    imported = frozenset(_imported(nodes))
    for part in (part for annotation in _annotations(nodes) for part in ast.walk(annotation)):
        match part:
            case ast.Name(id=name) if name not in bound:
                pass
            case ast.Attribute(value=ast.Name(id=name)) if name in imported:
                pass
            case ast.Constant(value=None) | ast.Subscript() | ast.Tuple() | ast.List() | ast.Load():
                pass
            case ast.BinOp() | ast.BitOr():  # another operator is refused by itself
                pass
            case _:
                return False
    return True
