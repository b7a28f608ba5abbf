"""What the static check asks of a whole syntax tree: what is literal, passed around, annotated, asked for."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

Place = tuple[int, int]
"""Line and column at which a name begins."""
FORMATS = frozenset({"format", "format_map"})
"""Methods of texts whose fields go through attributes."""
_TAKE_APART = {
    "all", "any", "dict", "enumerate", "extend", "frozenset", "join", "len", "list", "max", "min", "next", "set",
    "sorted", "sum", "tuple", "update", "zip",
}  # fmt: skip
"""What may be given a generator without keeping it."""


def _literals(tree: ast.Module) -> set[str]:
    """Names that are bound to nothing but literal texts."""
    bound, texts = list[str](), list[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str())):
                texts.append(name)
            case ast.arg(arg=name) | ast.alias(asname=str(name)) | ast.alias(name=name, asname=None):
                bound += (name, name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                bound += (name, name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                bound += (name, name)
            case ast.Name(id=name, ctx=ast.Store()):
                bound.append(name)
    counts = Counter(bound)
    return {name for name, count in Counter(texts).items() if counts[name] == count}


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
    named, unkept, formatters = set[str](), set[int](), False
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                named |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
            case ast.FunctionDef(name=name, decorator_list=outside) | ast.ClassDef(name=name, decorator_list=outside):
                named.add(name)
                unkept |= {id(each) for each in outside}
                formatters |= isinstance(node, ast.FunctionDef) and name in FORMATS
            case ast.Call(func=function, args=arguments, keywords=keywords):
                unkept.add(id(function))
                unkept |= {id(each.value) for each in keywords if each.arg == "key"}
                if isinstance(function, ast.Name | ast.Attribute):
                    name = function.id if isinstance(function, ast.Name) else function.attr
                    unkept |= {id(each) for each in arguments if name in _TAKE_APART}
            case ast.Attribute(value=value):
                unkept.add(id(value))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other) as value) if other in named:
                named.add(name)  # another name for the same function
                unkept.add(id(value))
    for _, annotation in _annotations(tree):
        unkept |= {id(part) for part in ast.walk(annotation)}
    if formatters:
        return False  # a method of the program's own
    for node in ast.walk(tree):
        match node:
            case (
                ast.ClassDef() | ast.AsyncFunctionDef() | ast.Yield() | ast.YieldFrom() | ast.ExceptHandler(name=str())
            ):
                return True
            case ast.Lambda() | ast.GeneratorExp() if id(node) not in unkept:
                return True
            case ast.Name(id=name, ctx=ast.Load()) if name in named and id(node) not in unkept:
                return True
    return False


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
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
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
