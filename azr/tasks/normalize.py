"""Form of a task program, and equality of programs."""

from __future__ import annotations

import ast
import builtins
import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T", bound=ast.AST)
ENTRY = "f"
"""Name of the function every task program defines."""
MAX_DEPTH = 100
"""Deepest syntax tree accepted; what walks one later recurses, and must not hit Python's limit."""
MAX_CHARS = 2**18
"""Longest text that is parsed; the executor's own limit on programs is far below."""


def parse(program: str) -> ast.Module | None:
    """Return the syntax tree of a text within the bounds of this file, else None."""
    if len(program) > MAX_CHARS:
        return None
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return None if level else tree


def parse_program(program: str) -> ast.Module | None:
    """Return the syntax tree of a program that defines ``f`` at module level with a parameter, else None. Of a program
    that is parsed so, the functions below take every task and raise nothing."""
    tree = parse(program)
    if tree is None:
        return None
    entries = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == ENTRY]
    if len(entries) != 1:
        return None
    arguments = entries[0].args
    takes_some = arguments.posonlyargs or arguments.args or arguments.vararg
    return tree if takes_some and written(tree) is not None else None


@lru_cache(maxsize=4096)
def is_program(program: str) -> bool:
    """Whether `parse_program` returns a tree."""
    # A proposal is asked for it when it is validated and when it is compared with what its prompt showed.
    return parse_program(program) is not None


def written(tree: ast.AST) -> str | None:
    """Return the text of a syntax tree; None if it cannot be written. Python reads integers in hex of any length but
    writes none of over 4,300 decimal digits, and it cannot write some f-strings that it can read."""
    try:
        return ast.unparse(tree)
    except (ValueError, RecursionError):
        return None


_TELLING = frozenset(
    {"__annotations__", "__code__", "__dict__", "__doc__", "__name__", "__qualname__", "dir", "getattr", "globals",
     "hasattr", "locals", "vars"}
)  # fmt: skip
"""By these a program learns its own names or docstrings, which are then a part of what it computes."""
_KNOWN = frozenset(name for kind in vars(builtins).values() if isinstance(kind, type) for name in dir(kind))
"""Attributes of builtin types: a method of this name may stand for another's."""
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def _simplify(nodes: Sequence[ast.AST]) -> None:
    """Drop docstrings and annotations, and rename what the program itself binds in order of appearance. ``nodes``: all
    of its tree, from the top down."""
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    members = {name for node in classes for name in _members(node)}
    stored = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    imported = {(each.asname or each.name).partition(".")[0] for each in nodes if isinstance(each, ast.alias)}
    foreign = {each.attr for each in nodes if isinstance(each, ast.Attribute) and _root(each) in imported}
    own = {node.name for node in classes} | {"object"}
    plain = not any(node.decorator_list or node.keywords or {*map(_root, node.bases)} - own for node in classes)
    named = (members | stored) - (_KNOWN | foreign) if plain else ()
    attributes = {name for name in named if name[:2] != "__"}  # that only the program's classes can have
    kept = {ENTRY} | members - attributes
    parameters = {node.name: _parameters(node) for node in nodes if isinstance(node, _FUNCTIONS)}
    parameters |= {
        node.name: _parameters(each) for node in classes for each in node.body
        if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    }  # fmt: skip
    new = _new_names(nodes, attributes, kept)
    of_attributes = {name: its for name, its in new.items() if name in attributes}
    for node in nodes:
        for field in () if isinstance(node, ast.alias) else ("name", "rest", "id"):
            if isinstance(name := getattr(node, field, None), str):
                setattr(node, field, new.get(name, name))
        for field in ("body", "orelse", "finalbody"):
            if isinstance(body := getattr(node, field, None), list):
                setattr(node, field, [*map(_without_annotation, body)])
        match node:
            case ast.alias(name=name, asname=alias):
                node.asname = new.get(alias or name, alias)
            case ast.arg(arg=name):
                node.arg, node.annotation = new.get(name, name), None
            case ast.Global() | ast.Nonlocal():
                node.names = [new.get(name, name) for name in node.names]
            case ast.Attribute(attr=name):
                node.attr = of_attributes.get(name, name)
            case ast.MatchClass():
                node.kwd_attrs = [of_attributes.get(name, name) for name in node.kwd_attrs]
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if (
                isinstance(node.func, ast.Name) or called in attributes
            ):
                for keyword in node.keywords:
                    if keyword.arg is not None and keyword.arg in parameters.get(called, ()):
                        keyword.arg = new.get(keyword.arg, keyword.arg)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                node.returns = None
        if isinstance(node, ast.Module | ast.ClassDef | _FUNCTIONS):
            match node.body:
                case [ast.Expr(value=ast.Constant()), _, *_]:
                    del node.body[0]


def _new_names(nodes: Sequence[ast.AST], attributes: set[str], kept: set[str]) -> dict[str, str]:
    """Return new names of what a program binds, but for those that are kept, to which paths of imports are added."""
    names: dict[str, str] = {}
    for node in nodes:
        match node:
            case ast.alias(asname=None, name=name) if "." in name or name == "*":
                kept.add(name.partition(".")[0])
                continue
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                bound = name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound = name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                bound = name
            case ast.alias(asname=alias, name=name):
                bound = alias or name
            case ast.Attribute(attr=name, ctx=ast.Store()) if name in attributes:
                bound = name
            case _:
                continue
        if bound not in kept:
            names.setdefault(bound, f"v{len(names)}")
    return {name: new for name, new in names.items() if name not in kept}


def _without_annotation(statement: ast.stmt) -> ast.stmt:
    if not isinstance(statement, ast.AnnAssign):
        return statement
    return ast.Assign([statement.target], statement.value, lineno=0) if statement.value else ast.Pass()


def _members(node: ast.ClassDef) -> set[str]:
    """Names that the statements of a class bind."""
    inner = {id(part) for each in node.body if isinstance(each, _FUNCTIONS) for part in ast.walk(each)}
    own = [each for each in ast.walk(node) if id(each) not in inner]
    targets = {each.id for each in own if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return targets | {each.name for each in node.body if isinstance(each, _FUNCTIONS | ast.ClassDef)}


def _root(node: ast.expr) -> str:
    """The name that a dotted path begins with; empty for another expression."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}


@lru_cache(maxsize=4096)
def normalize(program: str) -> str:
    """Return the program without comments, docstrings, annotations, layout and choice of local names.

    Raises:
        SyntaxError: the text is not Python; callers parse first.
    """
    # A proposal is asked for it when it is validated, reserved and stored.
    tree = ast.parse(program)
    nodes = list(ast.walk(tree))
    told = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    told |= {node.id for node in nodes if isinstance(node, ast.Name) and node.id != "__name__"}  # the module's
    if not _TELLING.isdisjoint(told):
        return ast.unparse(tree)
    _simplify(nodes)
    return ast.unparse(tree)  # which needs no positions of nodes


def fingerprint(program: str, *extra: str) -> str:
    """Hash that equal tasks share: of the normalized program and of ``extra``, what else distinguishes tasks."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (normalize(program), *extra):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def renamed(tree: T, names: Mapping[str, str]) -> T:
    """Give functions in a tree, and what refers to them, other names; return it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.name = names.get(node.name, node.name)
        elif isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return tree


def bare(tree: T) -> T:
    """Drop docstrings in a tree and the annotations of functions, which say more than the code that runs; return it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        elif isinstance(node, ast.arg):
            node.annotation = None
    return tree


@lru_cache(maxsize=1 << 16)
def shape(program: str) -> str:
    """Hash of a program up to names and constants, negative ones too."""
    # Each stored program is asked for when it is proposed, stored and evicted.
    tree = ast.parse(normalize(program))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value, node.kind = 0, None
    text = ast.dump(tree).replace("UnaryOp(op=USub(), operand=Constant(value=0))", "Constant(value=0)")
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@lru_cache(maxsize=1 << 16)
def held_out_keys(program: str) -> tuple[str, ...]:
    """What a program shares with those that would give its answer away: its fingerprint and, where there is more than a
    function of one statement, its `shape`.

    Of functions of one statement most would be the same up to constants: there only equal ones count.
    """
    # A proposal is compared with the references that it was shown, so programs of some full buffers are kept.
    tree = ast.parse(normalize(program))
    if sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) <= 2:
        return (fingerprint(program),)
    return fingerprint(program), shape(program)
