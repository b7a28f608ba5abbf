"""Chains of two programs: f(x) = second(first(x)).

Two functions of straight lines become one. Others stand in front of a function that calls them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from azr.executor.syntax import bound_names, by_kind
from azr.tasks.normalize import ENTRY, bare, parse, renamed, written


@dataclass(frozen=True, slots=True)
class _Program:
    """A program that is imports and functions, of which ``f`` has plain parameters."""

    imports: dict[str, str]
    """Lines by the name that they bind."""
    functions: list[ast.FunctionDef]
    entry: ast.FunctionDef
    bound: set[str]
    """Names that its functions bind, in any scope; none of a function."""
    read: set[str]

    @property
    def parameters(self) -> list[str]:
        return [each.arg for each in (*self.entry.args.posonlyargs, *self.entry.args.args)]

    @property
    def is_straight(self) -> bool:
        """Whether it is assignments to names and a return."""
        *lines, last = self.entry.body
        returns = isinstance(last, ast.Return) and last.value is not None
        return len(self.functions) == 1 and ENTRY not in self.read and returns and all(map(_assigns_a_name, lines))


def chain(first: str, second: str) -> str | None:
    """Return the program that gives what ``first`` returns to ``second``; None if they cannot be put together.

    Example: of ``def f(x): return x + 1`` and ``def f(y): return y * 2`` it is ``def f(x): y = x + 1; return y * 2``,
    on lines of their own.
    """
    one, two = _read(first), _read(second)
    if one is None or two is None or len(two.parameters) != 1:
        return None
    if any(two.imports.get(name, line) != line for name, line in one.imports.items()):
        return None
    # A name that one half binds must not be a builtin or an import for the other.
    disjoint = one.bound.isdisjoint(two.read - two.bound) and two.bound.isdisjoint(one.read - one.bound)
    inlines = disjoint and one.is_straight and two.is_straight
    source = written(ast.Module([_inlined(one, two)] if inlines else _nested(one, two), []))
    if source is None:
        return None
    head = "\n".join(dict.fromkeys((one.imports | two.imports).values()))
    return f"{head}\n\n{source}" if head else source


@lru_cache(maxsize=1 << 16)
def num_lines(program: str) -> int:
    """Return the number of a program's statements, apart from imports and heads of functions."""
    heads = ast.FunctionDef, ast.Import, ast.ImportFrom
    return sum(isinstance(node, ast.stmt) and not isinstance(node, heads) for node in ast.walk(ast.parse(program)))


def _read(program: str) -> _Program | None:
    tree = parse(program)
    if tree is None:
        return None
    imports: dict[str, str] = {}
    functions: list[ast.FunctionDef] = []
    for node in tree.body:
        match node:
            case ast.Import(names=aliases):
                imports |= {_bound(alias): ast.unparse(ast.Import([alias])) for alias in aliases}
            case ast.ImportFrom(module=str(module), names=aliases) if module != "__future__":
                imports |= {_bound(alias): ast.unparse(ast.ImportFrom(module, [alias], 0)) for alias in aliases}
            case ast.FunctionDef(decorator_list=[]):
                functions.append(node)
            case _:
                return None
    names = [each.name for each in functions]
    if ENTRY not in names or "*" in imports:
        return None
    entry = functions[names.index(ENTRY)]
    arguments = entry.args
    if arguments.vararg or arguments.kwonlyargs or arguments.kwarg or arguments.defaults:
        return None
    bare(entry)  # a docstring would be of one half only
    bound = {name for each in functions for part in (each.args, *each.body) for name in bindings(part)}
    if len({*names}) < len(names) or not bound.isdisjoint(names) or not imports.keys().isdisjoint(names):
        return None
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return _Program(imports, functions, entry, bound, read)


def _assigns_a_name(line: ast.stmt) -> bool:
    match line:
        case ast.Assign(targets=[ast.Name()]) | ast.AugAssign(target=ast.Name()):
            return True
    return False


def _inlined(one: _Program, two: _Program) -> ast.stmt:
    *lines, last = one.entry.body
    assert isinstance(last, ast.Return) and last.value is not None, "is_straight says so"
    (name,) = two.parameters
    if not (isinstance(last.value, ast.Name) and last.value.id == name):
        lines.append(ast.Assign([ast.Name(name, ast.Store())], last.value, lineno=0))
    one.entry.body = [*lines, *two.entry.body]
    return one.entry


def _nested(one: _Program, two: _Program) -> list[ast.stmt]:
    """Return the functions of both, called g_0, g_1, …, and ``f``."""
    taken = {*one.imports, *two.imports}
    for each in (one, two):
        taken |= (each.bound | each.read) - {function.name for function in each.functions}
    free = (name for k in count() if (name := f"g_{k}") not in taken)
    functions, called = list[ast.stmt](), list[str]()
    for each in (one, two):
        names = {function.name: next(free) for function in each.functions}
        functions += [renamed(function, names) for function in each.functions]
        called.append(names[ENTRY])
    given = ", ".join(one.parameters)
    last = ast.parse(f"def {ENTRY}({given}):\n    return {called[1]}({called[0]}({given}))")
    return [*functions, *last.body]


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def bindings(tree: ast.AST) -> list[str]:
    """Return every name that a tree binds, deletes or declares, in any scope."""
    nodes = by_kind(tree)
    declared = [name for kind in (ast.Global, ast.Nonlocal) for node in nodes.get(kind, ()) for name in node.names]
    return [*bound_names(nodes), *declared]
