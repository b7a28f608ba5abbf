"""Composite programs: earlier programs as functions g_0, g_1, … that a proposed program must call.

An earlier program serves when it is imports and one function ``f``, so that its function can be renamed in the syntax
tree and stand beside others. What is stored holds the functions in front and needs nothing else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from azr.config import CompositesConfig
from azr.records import Task
from azr.tasks.base import RejectReason
from azr.tasks.normalize import ENTRY, Renamed, parse, parse_program, written
from azr.tasks.prompts import Section

_GIVEN = re.compile(r"g_\d+")


@dataclass(frozen=True, slots=True)
class GivenFunctions:
    """Functions that a proposal has to call."""

    tasks: tuple[Task, ...]
    """Those whose programs they are; the function of ``tasks[k]`` is called ``g_k``."""
    source: str
    """Imports and functions, as they stand in front of the program."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"g_{k}" for k in range(len(self.tasks)))


def schedule(composites: CompositesConfig, step: int) -> tuple[float, int]:
    """Return the chance that a proposal of this step gets functions to call, and the most that one gets."""
    if step < composites.start_step or not composites.chance:
        return 0.0, 0
    grown = (step - composites.start_step) // composites.interval
    return composites.chance, min(composites.functions + grown, composites.max_functions)


def give_functions(tasks: Iterable[Task], count: int) -> GivenFunctions | None:
    """Return the first ``count`` programs that serve, or as many as there are; None if there is none. No two of equal
    text, and none that is a composite itself or imports another thing by a name already taken."""
    imports: dict[str, str] = {}
    functions: list[str] = []
    used: list[Task] = []
    seen: set[str] = set()
    for task in tasks:
        if len(used) == count:
            break
        serving = _serving(task.program) if task.program not in seen else None
        if serving is None or any(imports.get(name, line) != line for name, line in serving[0].items()):
            continue
        source = written(Renamed(ENTRY, f"g_{len(used)}").visit(serving[1]))
        if source is None or parse(source) is None:  # as some f-strings of older Pythons
            continue
        seen.add(task.program)
        imports |= serving[0]
        functions.append(source)
        used.append(task)
    if not used:
        return None
    head = "\n".join(dict.fromkeys(imports.values()))
    return GivenFunctions(tuple(used), "\n\n".join(filter(None, [head, *functions])))


def compose(sections: Sequence[Section], given: GivenFunctions) -> tuple[Section, ...] | RejectReason:
    """Return the proposal with the given functions in front of its program, or why it cannot be. It must hold one
    program, whose ``f`` calls every given function, and which binds none of their names."""
    programs = [section.text.strip("\n") for section in sections if section.label == "program"]
    tree = parse_program(programs[0]) if len(programs) == 1 else None
    if tree is None:
        return RejectReason.MALFORMED
    if not _calls_all(tree, given):
        return RejectReason.NOT_ALLOWED
    whole = Section("program", f"{given.source}\n\n{programs[0]}")
    return tuple(whole if section.label == "program" else section for section in sections)


def _serving(program: str) -> tuple[dict[str, str], ast.FunctionDef] | None:
    """Return import lines by the name that they bind, and the function, of a program that is nothing else."""
    tree = parse(program)
    if tree is None:
        return None
    imports: dict[str, str] = {}
    for node in tree.body[:-1]:
        match node:
            case ast.Import(names=aliases):
                imports |= {_bound(alias): ast.unparse(ast.Import([alias])) for alias in aliases}
            case ast.ImportFrom(module=str(module), names=aliases) if module != "__future__":
                imports |= {_bound(alias): ast.unparse(ast.ImportFrom(module, [alias], 0)) for alias in aliases}
            case _:
                return None
    entry = tree.body[-1] if tree.body else None
    if not isinstance(entry, ast.FunctionDef) or entry.name != ENTRY or entry.decorator_list or "*" in imports:
        return None
    names = [name for part in (entry.args, *entry.body) for name in _bindings(part)] + [*imports]
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | set(names)
    return None if ENTRY in names or any(map(_GIVEN.fullmatch, named)) else (imports, entry)


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _bindings(tree: ast.AST) -> list[str]:
    """Return every name that a tree binds, deletes or declares, in any scope."""
    names: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                names.append(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.append(name)
            case ast.MatchMapping(rest=str(name)):
                names.append(name)
            case ast.Global(names=declared) | ast.Nonlocal(names=declared):
                names += declared
            case ast.alias():
                names.append(_bound(node))
    return names


def _calls_all(tree: ast.Module, given: GivenFunctions) -> bool:
    if set(_bindings(tree)) & set(given.names):
        return False
    entries = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == ENTRY]
    called = {
        node.func.id
        for entry in entries
        for node in ast.walk(entry)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return called >= set(given.names)
