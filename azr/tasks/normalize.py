"""Form of a task program, and equality of programs."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from functools import lru_cache

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
    return None if _deeper_than(MAX_DEPTH, tree) else tree


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


def _deeper_than(limit: int, tree: ast.AST) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(limit):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return bool(level)


class _Normalizer(ast.NodeTransformer):
    """Drops docstrings and annotations, and renames what the program itself binds in order of appearance."""

    def __init__(self, tree: ast.Module) -> None:
        self._names: dict[str, str] = {}
        for node in ast.walk(tree):
            match node:
                case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                    self._bind(name)
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if name != ENTRY:
                    self._bind(name)

    def _bind(self, name: str) -> None:
        self._names.setdefault(name, f"v{len(self._names)}")

    def visit_Module(self, node: ast.Module | ast.FunctionDef | ast.ClassDef) -> ast.AST:
        if len(node.body) > 1 and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
            del node.body[0]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef | ast.FunctionDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        return self.visit_Module(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.visit_ClassDef(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(arg=self._names[node.arg])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return ast.Pass()
        return ast.Assign(targets=[node.target], value=node.value, lineno=0)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(id=self._names.get(node.id, node.id), ctx=node.ctx)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        if node.name is not None:
            node.name = self._names[node.name]
        return self.generic_visit(node)


@lru_cache(maxsize=4096)
def normalize(program: str) -> str:
    """Return the program without comments, docstrings, annotations, layout and choice of local names.

    Raises:
        SyntaxError: the text is not Python; callers parse first.
    """
    # A proposal is asked for it when it is validated, reserved and stored.
    tree = ast.parse(program)
    return ast.unparse(_Normalizer(tree).visit(tree))  # which needs no positions of nodes


def fingerprint(program: str, *extra: str) -> str:
    """Hash that equal tasks share: of the normalized program and of ``extra``, what else distinguishes tasks."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (normalize(program), *extra):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


class Renamed(ast.NodeTransformer):
    """Gives functions, and what refers to them, other names."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self._names.get(node.id, node.id), node.ctx), node)


class _WithoutConstants(ast.NodeTransformer):
    """Makes all constants equal, negative ones too."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(value=0)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return ast.Constant(value=0)
        return self.generic_visit(node)


@lru_cache(maxsize=1 << 16)
def shape(program: str) -> str:
    """Hash of a program up to names and constants."""
    # Each stored program is asked for when it is proposed, stored and evicted.
    tree = _WithoutConstants().visit(ast.parse(normalize(program)))
    return hashlib.blake2b(ast.dump(tree).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


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
