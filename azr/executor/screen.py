"""The static screen: refuses programs that name what a task must not use, and says where.

It keeps honest proposals deterministic and self-contained and catches the usual escape tricks early.
It is no wall: a program that slips through still runs inside all of them.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Collection, Iterator

BANNED_NAMES = frozenset(
    {
        "__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "compile", "delattr", "eval", "exec",
        "exit", "getattr", "globals", "help", "input", "locals", "open", "quit", "setattr", "vars",
    }
)  # fmt: skip
"""Builtins that reach code by text, the outside, or attributes by name."""

BANNED_ATTRIBUTES = frozenset(
    {
        "__base__", "__bases__", "__builtins__", "__closure__", "__code__", "__defaults__", "__dict__", "__func__",
        "__getattribute__", "__globals__", "__import__", "__kwdefaults__", "__loader__", "__mro__", "__reduce__",
        "__reduce_ex__", "__self__", "__spec__", "__subclasses__", "__traceback__", "ag_frame", "cr_frame", "f_back",
        "f_builtins", "f_globals", "f_locals", "gi_code", "gi_frame", "mro", "tb_frame", "tb_next",
    }
)  # fmt: skip
"""Attributes that lead from a value to the interpreter."""


def check(source: str, banned_modules: Collection[str]) -> tuple[str, ...]:
    """Reasons to refuse ``source``, such as ``line 3: imports random``; none when it passes.

    A program that does not parse has one reason, the parser's.
    """
    tree, reasons = parse(source)
    if tree is None:
        return reasons
    found = {*_imports(tree, banned_modules), *_attributes(tree, banned_modules), *_names(source, tree)}
    return tuple(f"line {line}: {why}" for line, why in sorted(found))


def parse(source: str) -> tuple[ast.Module | None, tuple[str, ...]]:
    """The program's syntax tree, or None and why there is none. Nothing is run."""
    try:
        tree = ast.parse(source)
        symtable.symtable(source, "program", "exec")
        compile(tree, "program", "exec", dont_inherit=True)
    except SyntaxError as error:
        return None, (f"line {error.lineno or 1}: {error.msg}",)
    except (ValueError, MemoryError, RecursionError) as error:
        return None, (f"line 1: cannot be parsed ({type(error).__name__})",)
    return tree, ()


def _imports(tree: ast.Module, banned: Collection[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "imports relatively"
            dotted = [f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names]
        else:
            continue
        for name in dotted:
            parts = name.split(".")
            bad = next((part for part in parts if part in banned or part in BANNED_ATTRIBUTES), None)
            if bad:
                yield node.lineno, f"imports {bad}"


def _attributes(tree: ast.Module, banned_modules: Collection[str]) -> Iterator[tuple[int, str]]:
    modules = _module_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr in BANNED_ATTRIBUTES:
                yield node.lineno, f"uses the attribute {node.attr}"
            if _root(node) in modules:
                if node.attr in banned_modules:
                    yield node.lineno, f"reaches the module {node.attr}"
                if not isinstance(node.ctx, ast.Load):
                    yield node.lineno, f"changes the module {_root(node)}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Format strings reach attributes too: "{0.__globals__}".format(f).
            for name in BANNED_ATTRIBUTES:
                if name.startswith("__") and name in node.value:
                    yield node.lineno, f"names {name} in a string"


def _module_names(tree: ast.Module) -> set[str]:
    """Names that import statements bind, whether to a module or to something in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return names


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _names(source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Banned builtins that a name really resolves to: a parameter called ``input`` is no offence."""
    reachable = _builtins_used(symtable.symtable(source, "program", "exec"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in reachable and isinstance(node.ctx, ast.Load):
            yield node.lineno, f"uses {node.id}"


def _builtins_used(table: symtable.SymbolTable) -> set[str]:
    in_function = table.get_type() == "function"
    used = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced()
        and symbol.get_name() in BANNED_NAMES
        # Only a function's own names can never fall back to the builtins.
        and not (in_function and (symbol.is_local() or symbol.is_free()))
    }
    return used.union(*(_builtins_used(child) for child in table.get_children()))
