"""What the static check asks of a whole syntax tree: what is literal, passed around, annotated, asked for."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import EllipsisType

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


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that a program binds, as often as it does."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.alias(asname=str(name)) | ast.alias(name=name) | ast.FunctionDef(name=name):
                yield name.partition(".")[0]
            case ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name


def _literals(tree: ast.Module) -> set[str]:
    """Names that are bound to nothing but literal texts."""
    nodes = list(ast.walk(tree))
    bound, texts = Counter(_bound(nodes)), Counter[str]()
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str())):
                texts[name] += 1
    return {name for name, count in texts.items() if bound[name] == count}


def not_literal(tree: ast.Module, formats: list[tuple[int, ast.expr | None]]) -> list[int]:
    """Lines of those whose text is not known; None: any text."""
    unknown = [
        (line, value)
        for line, value in formats
        if not (isinstance(value, ast.Constant) and isinstance(value.value, str))
    ]
    literals = _literals(tree) if unknown else set()
    return [line for line, value in unknown if not (isinstance(value, ast.Name) and value.id in literals)]


def asked_types(tree: ast.Module) -> set[Place]:
    """Where ``isinstance`` or a comparison asks for a type."""
    kinds = list[ast.expr]()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, ast.Tuple(elts=asked)]):
                kinds += asked
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, asked]):
                kinds.append(asked)
            case ast.Compare(left=left, comparators=others):
                kinds += (left, *others)
    return {(kind.lineno, kind.col_offset) for kind in kinds}


def passes_functions_around(tree: ast.Module) -> bool:
    """Whether more than plain data could be formatted: functions, classes, instances, generators, tracebacks.

    Fields of a format may go through attributes, and from these on to all that the interpreter holds.
    """
    nodes = list(ast.walk(tree))
    imported = frozenset(
        alias.asname or alias.name.partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    )
    if any(isinstance(node, ast.FunctionDef) and node.name in FORMATS for node in nodes):
        return False  # a method of the program's own
    kinds = ast.ClassDef | ast.AsyncFunctionDef | ast.Yield | ast.YieldFrom
    return any(
        isinstance(node, kinds) or (isinstance(node, ast.ExceptHandler) and node.name) for node in nodes
    ) or keeps_addressed(tree, imported, frozenset())


def compares_identities(tree: ast.Module) -> bool:
    """Whether ``is`` compares anything but None and its like, or a builtin type."""
    bound = frozenset(_bound(ast.walk(tree)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for operator, asked in zip(node.ops, node.comparators, strict=True):
                match operator, asked:
                    case ast.Is() | ast.IsNot(), ast.Constant(value=None | True | False) | ast.Constant(
                        value=EllipsisType()
                    ):
                        pass
                    case ast.Is() | ast.IsNot(), ast.Name(id=name) if name in _SINGLETONS - bound:
                        pass
                    case ast.Is() | ast.IsNot(), _:
                        return True
    return False


def makes_classes(tree: ast.Module) -> bool:
    """Whether ``type`` does more than name or compare a value's type, such as making classes with any methods."""
    asked, called = set[int](), set[int]()
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                asked |= {id(left), *map(id, others)}
            case ast.Attribute(attr="__name__", value=value) | ast.FormattedValue(value=value):
                asked.add(id(value))
            case ast.Call(func=ast.Name(id="type") as function, args=[given]) if not isinstance(given, ast.Starred):
                if id(node) in asked:  # what is around it comes first
                    called.add(id(function))
    return any(isinstance(node, ast.Name) and node.id == "type" and id(node) not in called for node in ast.walk(tree))


def keeps_sets(tree: ast.Module) -> bool:
    """Whether a set is written otherwise than behind ``in``."""
    asked = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            pairs = zip(node.ops, node.comparators, strict=True)
            asked |= {id(value) for operator, value in pairs if isinstance(operator, ast.In | ast.NotIn)}
    return any(isinstance(node, ast.Set) and id(node) not in asked for node in ast.walk(tree))


def keeps_views(tree: ast.Module) -> bool:
    """Whether a view of a dict is kept, which may become a set."""
    nodes = list(ast.walk(tree))
    called, used = _uses(tree, nodes)
    for node in nodes:
        match node:
            case ast.Attribute(attr="keys" | "items") if id(node) not in called:
                return True
            case ast.Call(func=ast.Attribute(attr="keys" | "items")) if id(node) not in used:
                return True
    return False


def formats_attributes(tree: ast.Module) -> bool:
    """Whether a format string is not literal, or has a field that goes through an attribute."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in FORMATS
        and not (isinstance(node.value, ast.Constant) and not _FIELD.search(str(node.value.value)))
        for node in ast.walk(tree)
    )


def keeps_addressed(tree: ast.Module, functions: frozenset[str], values: frozenset[str]) -> bool:
    """Whether a function, an iterator or a bound method is kept, whose text would state an address.

    ``functions``: members of modules that count as functions when imported; ``values``: members that never do.
    """
    nodes = list(ast.walk(tree))
    called, used = _uses(tree, nodes)
    modules, named = set[str](), set[str]()
    for node in nodes:
        match node:
            case ast.Import(names=aliases):
                modules |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
            case ast.ImportFrom(names=aliases):
                named |= {alias.asname or alias.name for alias in aliases if alias.name in functions}
                named |= functions if any(alias.name == "*" for alias in aliases) else frozenset()
            case ast.FunctionDef(decorator_list=[_, *_]):
                return True
            case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda()):
                named.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other) as same) if other in named:
                named.add(name)  # another name for the same function
                used.add(id(same))
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name in _ITERATORS and id(node) not in called:
                return True
            case _ if id(node) in used:
                pass
            case ast.Lambda() | ast.GeneratorExp():
                return True
            case ast.Name(id=name, ctx=ast.Load()) if name in named:
                return True
            case ast.Call(func=ast.Name(id=name)) if name in _ITERATORS:
                return True
            case ast.Attribute(attr=name, value=value) if name not in _DATA:
                if not (isinstance(value, ast.Name) and value.id in modules and name in values):
                    return True
    return False


def _uses(tree: ast.Module, nodes: Sequence[ast.AST]) -> tuple[set[int], set[int]]:
    """Ids of expressions that are called, and of all that are used up where they stand.

    One is used up by a loop, or by a call of what is known to take that argument apart; everything else keeps it.
    """
    bound, called, used = frozenset(_bound(nodes)), set[int](), set[int]()
    for node in nodes:
        match node:
            case ast.Call(func=function):
                called.add(id(function))
                used |= _used_up(node, bound)
            case (
                ast.For(iter=value)
                | ast.comprehension(iter=value)
                | ast.Expr(value=value)
                | ast.Starred(value=value)
                | ast.Assign(targets=[ast.Name()], value=ast.Lambda() as value)
                | ast.Assign(targets=[ast.Tuple() | ast.List()], value=value)
                | ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[value])
            ):
                used.add(id(value))
    used |= {id(part) for _, annotation in _annotations(tree) for part in ast.walk(annotation)}
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


def _annotations(tree: ast.Module) -> Iterator[tuple[int, ast.expr]]:
    """Annotations of parameters, results and names, with their lines."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.arg(annotation=ast.expr() as annotation)
                | ast.FunctionDef(returns=ast.expr() as annotation)
                | ast.AnnAssign(annotation=annotation)
            ):
                yield annotation.lineno, annotation


def has_plain_annotations(tree: ast.Module) -> bool:
    """Whether annotations are names of classes, with or without brackets, and so hold no text to evaluate."""
    bound = frozenset(_bound(node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.arg)))
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for _, annotation in _annotations(tree):
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
