"""What the static check asks of a whole syntax tree: what is literal, passed around, annotated, asked for."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from types import EllipsisType
from typing import Any

Nodes = Mapping[type, list[Any]]
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
_BINDING = (
    ast.Name, ast.arg, ast.ExceptHandler, ast.alias, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.MatchAs,
    ast.MatchStar, ast.MatchMapping,
)  # fmt: skip
_FIRST_OF_METHODS = frozenset({"extend", "join", "update"})
_BY_KEY = frozenset({"max", "min", "sort", "sorted"})
"""What calls the function that is given as ``key``."""
_DATA = frozenset({"real", "imag", "numerator", "denominator", "start", "stop", "step", "maxlen", "__name__"})
"""Attributes that are not bound methods."""
_SINGLETONS = frozenset(
    {"bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple", "type"}
)
_PLAIN = ("Exception", "object", "typing.NamedTuple")
_CLASS_MAKERS = frozenset({"dataclasses.dataclass"})


def by_kind(tree: ast.AST) -> Nodes:
    """Return all nodes of a tree."""
    nodes = defaultdict[type, list[Any]](list)
    for node in ast.walk(tree):
        nodes[node.__class__].append(node)
    return nodes


def _of(nodes: Nodes, *kinds: type) -> Iterator[Any]:
    return chain.from_iterable(nodes.get(kind, ()) for kind in kinds)


def bound_names(nodes: Nodes) -> Iterator[str]:
    """Names that a program binds or deletes, in any scope, as often as it does."""
    for node in _of(nodes, *_BINDING):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.alias(asname=str(name)) | ast.alias(name=name) | ast.FunctionDef(name=name):
                yield name.partition(".")[0]
            case ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name


def _literals(nodes: Nodes) -> set[str]:
    """Names that are bound to nothing but literal texts."""
    bound, texts = Counter(bound_names(nodes)), Counter[str]()
    for node in _of(nodes, ast.Assign):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str())):
                texts[name] += 1
    return {name for name, count in texts.items() if bound[name] == count}


def not_literal(nodes: Nodes, formats: list[tuple[int, ast.expr | None]]) -> list[int]:
    """Lines of those whose text is not known; None: any text."""
    unknown = [
        (line, value)
        for line, value in formats
        if not (isinstance(value, ast.Constant) and isinstance(value.value, str))
    ]
    literals = _literals(nodes) if unknown else set()
    return [line for line, value in unknown if not (isinstance(value, ast.Name) and value.id in literals)]


def open_patterns(nodes: Nodes, imports: set[tuple[str, str]]) -> list[tuple[int, str]]:
    """Patterns that match by position a class that may name any attributes and match any value: line and dotted path.

    Builtins and plain classes of the program do neither: those that only a statement makes, from plain classes, without
    a metaclass. ``imports``: names and what they are bound to.
    """
    patterns = [node for node in nodes.get(ast.MatchClass, ()) if node.patterns]
    bound, paths, plain = Counter(bound_names(nodes)) if patterns else Counter[str](), dict(imports), set(_PLAIN)
    bound.subtract(_imported(nodes))

    def path(part: ast.expr) -> str:
        """What is named, as it was imported; empty if the program binds the name otherwise."""
        top, dot, rest = ast.unparse(part).partition(".")
        return "" if bound[top] else paths.get(top, top) + dot + rest

    for node in _of(nodes, ast.ClassDef):
        makers = [each.func if isinstance(each, ast.Call) and not each.args else each for each in node.decorator_list]
        if not node.keywords and plain.issuperset(map(path, node.bases)) and {*map(path, makers)} <= _CLASS_MAKERS:
            bound[node.name] -= 1
            plain.add(node.name)
    return [
        (each.cls.lineno, path(each.cls))
        for each in patterns
        if not isinstance(each.cls, ast.Name) or bound[each.cls.id]
    ]


def asked_types(nodes: Nodes) -> set[Place]:
    """Where ``isinstance`` or a comparison asks for a type."""
    kinds = list[ast.expr]()
    for node in _of(nodes, ast.Call, ast.Compare):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, ast.Tuple(elts=asked)]):
                kinds += asked
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, asked]):
                kinds.append(asked)
            case ast.Compare(left=left, comparators=others):
                kinds += (left, *others)
    return {(kind.lineno, kind.col_offset) for kind in kinds}


def passes_functions_around(nodes: Nodes) -> bool:
    """Whether more than plain data could be formatted: functions, classes, instances, generators, tracebacks.

    Fields of a format may go through attributes, and from these on to all that the interpreter holds.
    """
    if any(node.name in FORMATS for node in _of(nodes, ast.FunctionDef)):
        return False  # a method of the program's own
    if any(_of(nodes, ast.ClassDef, ast.AsyncFunctionDef, ast.Yield, ast.YieldFrom)):
        return True
    if any(node.name for node in _of(nodes, ast.ExceptHandler)):
        return True
    return keeps_addressed(nodes, frozenset(_imported(nodes)), frozenset())


def _imported(nodes: Nodes) -> Iterator[str]:
    """Names that import statements bind."""
    return (alias.asname or alias.name.partition(".")[0] for alias in _of(nodes, ast.alias))


def compares_identities(nodes: Nodes) -> bool:
    """Whether ``is`` compares anything but None and its like, or a builtin type."""
    bound = frozenset(bound_names(nodes))
    for node in _of(nodes, ast.Compare):
        for operator, asked in zip(node.ops, node.comparators, strict=True):
            match operator, asked:
                case ast.Is() | ast.IsNot(), ast.Constant(value=None | True | False | EllipsisType()):
                    pass
                case ast.Is() | ast.IsNot(), ast.Name(id=name) if name in _SINGLETONS - bound:
                    pass
                case ast.Is() | ast.IsNot(), _:
                    return True
    return False


def makes_classes(nodes: Nodes) -> bool:
    """Whether ``type`` does more than name or compare a value's type, such as making classes with any methods."""
    called = set[int]()
    asked = {id(side) for node in _of(nodes, ast.Compare) for side in (node.left, *node.comparators)}
    asked |= {id(node.value) for node in _of(nodes, ast.Attribute) if node.attr == "__name__"}
    asked |= {id(node.value) for node in _of(nodes, ast.FormattedValue)}
    for node in _of(nodes, ast.Call):
        match node:
            case ast.Call(func=ast.Name(id="type") as function, args=[given]) if not isinstance(given, ast.Starred):
                if id(node) in asked:
                    called.add(id(function))
    return any(node.id == "type" and id(node) not in called for node in _of(nodes, ast.Name))


def keeps_sets(nodes: Nodes) -> bool:
    """Whether a set is written otherwise than behind ``in``."""
    asked = set[int]()
    for node in _of(nodes, ast.Compare):
        pairs = zip(node.ops, node.comparators, strict=True)
        asked |= {id(value) for operator, value in pairs if isinstance(operator, ast.In | ast.NotIn)}
    return any(id(node) not in asked for node in _of(nodes, ast.Set))


def keeps_views(nodes: Nodes) -> bool:
    """Whether a view of a dict is kept, which may become a set."""
    called, used = _uses(nodes)
    views = {id(node) for node in _of(nodes, ast.Attribute) if node.attr in ("keys", "items")}
    return bool(views - called) or any(id(node.func) in views and id(node) not in used for node in _of(nodes, ast.Call))


def formats_attributes(nodes: Nodes) -> bool:
    """Whether a format string is not literal, or has a field that goes through an attribute."""
    return any(
        node.attr in FORMATS and not (isinstance(node.value, ast.Constant) and not _FIELD.search(str(node.value.value)))
        for node in _of(nodes, ast.Attribute)
    )


def keeps_addressed(nodes: Nodes, functions: frozenset[str], values: frozenset[str]) -> bool:
    """Whether a function, an iterator or a bound method is kept, whose text would state an address.

    ``functions``: members of modules that count as functions when imported; ``values``: members that never do.
    """
    called, used = _uses(nodes)
    if any(node.decorator_list for node in _of(nodes, ast.FunctionDef)):
        return True
    if any(id(node) not in used for node in _of(nodes, ast.Lambda, ast.GeneratorExp)):
        return True
    named = {node.name for node in _of(nodes, ast.FunctionDef)}
    for node in _of(nodes, ast.ImportFrom):
        named |= {alias.asname or alias.name for alias in node.names if alias.name in functions}
        named |= functions if any(alias.name == "*" for alias in node.names) else frozenset()
    for node in _of(nodes, ast.Assign):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda()):
                named.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other) as same) if other in named:
                named.add(name)  # another name for the same function
                used.add(id(same))
    for node in _of(nodes, ast.Name):
        kept = (node.id in _ITERATORS and id(node) not in called) or (node.id in named and id(node) not in used)
        if kept and isinstance(node.ctx, ast.Load):
            return True
    for node in _of(nodes, ast.Call):
        if id(node) not in used and isinstance(node.func, ast.Name) and node.func.id in _ITERATORS:
            return True
    modules = {alias.asname or alias.name.partition(".")[0] for node in _of(nodes, ast.Import) for alias in node.names}
    return any(
        not (isinstance(node.value, ast.Name) and node.value.id in modules and node.attr in values)
        for node in _of(nodes, ast.Attribute)
        if id(node) not in used and node.attr not in _DATA
    )


def _uses(nodes: Nodes) -> tuple[set[int], set[int]]:
    """Ids of expressions that are called, and of all that are used up where they stand.

    One is used up by a loop, or by a call of what is known to take that argument apart; everything else keeps it.
    """
    bound, called, used = frozenset(bound_names(nodes)), set[int](), set[int]()
    for node in _of(nodes, ast.Call):
        called.add(id(node.func))
        used |= _used_up(node, bound)
    used |= {id(node.iter) for node in _of(nodes, ast.For, ast.comprehension)}
    used |= {id(node.value) for node in _of(nodes, ast.Expr, ast.Starred)}
    for node in _of(nodes, ast.Assign, ast.Compare):
        match node:
            case (
                ast.Assign(targets=[ast.Name()], value=ast.Lambda() as value)
                | ast.Assign(targets=[ast.Tuple() | ast.List()], value=value)
                | ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[value])
            ):
                used.add(id(value))
    used |= {id(part) for annotation in _annotations(nodes) for part in ast.walk(annotation)}
    return called, used | called


def _used_up(call: ast.Call, bound: frozenset[str]) -> set[int]:
    """Arguments of a call that it takes apart or calls, and does not keep; ``bound``: names that may be no builtins."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    used = set[ast.expr]()
    if name in _ALL - bound:
        used |= set(call.args)
    elif (name in _FIRST - bound and (len(call.args) == 1 or name not in _BY_KEY)) or method in _FIRST_OF_METHODS:
        used |= set(call.args[:1])
    if name in _BY_KEY - bound or method in _BY_KEY:
        used |= {each.value for each in call.keywords if each.arg == "key"}
    return {id(each) for each in used}


def _annotations(nodes: Nodes) -> Iterator[ast.expr]:
    """Annotations of parameters, results and names."""
    yield from (node.annotation for node in _of(nodes, ast.arg, ast.AnnAssign) if node.annotation)
    yield from (node.returns for node in _of(nodes, ast.FunctionDef) if node.returns)


def has_plain_annotations(nodes: Nodes) -> bool:
    """Whether annotations are names of classes, with or without brackets, and so hold no text to evaluate."""
    bound = frozenset(bound_names({kind: nodes.get(kind, []) for kind in (ast.Name, ast.arg)}))
    imported = frozenset(_imported(nodes))
    for annotation in _annotations(nodes):
        for part in ast.walk(annotation):
            match part:
                case ast.Name(id=name) if name not in bound:
                    pass
                case ast.Attribute(value=ast.Name(id=name)) if name in imported:
                    pass
                case ast.Constant(value=None) | ast.Subscript() | ast.Tuple() | ast.List() | ast.Load():
                    pass
                case ast.BinOp(op=ast.BitOr()) | ast.BitOr():
                    pass
                case _:
                    return False
    return True
