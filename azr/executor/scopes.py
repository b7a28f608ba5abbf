"""What the names of a program refer to, by Python's own scoping rules.

The screen asks three things of a name that is read: is it a local variable, does an import statement bind it (and
to what), or may it still be the builtin? Where flow decides (a module-level ``input = ...`` above every use of it)
only what is certain from the order of unconditional statements counts as bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Position = tuple[int, int]
"""Line, and column in bytes."""


@dataclass(slots=True, eq=False)
class Scope:
    """A module, class, function (lambdas included) or comprehension, and the names it binds."""

    kind: str
    parent: Scope | None = None
    bound: set[str] = field(default_factory=set)
    outer: dict[str, str] = field(default_factory=dict)
    """Names declared ``global`` or ``nonlocal`` here."""
    imports: dict[str, str] = field(default_factory=dict)
    """Names that import statements bind, with the dotted path of what they are bound to."""
    modules: set[str] = field(default_factory=set)
    """Those of them that certainly are modules."""
    since: dict[str, Position] = field(default_factory=dict)
    """Modules and classes: from where on in the text a name is certainly bound."""
    unbound: set[str] = field(default_factory=set)
    """Names that something deletes."""


@dataclass(slots=True, eq=False)
class Read:
    """One place where a name is read, with the attributes that follow it: ``a.b.c``."""

    name: str
    scope: Scope
    position: Position
    attributes: list[tuple[str, int]]
    """Each with its line, in order of access."""
    changes: bool = False
    """Whether the last attribute is assigned to or deleted."""
    literals: bool = False
    """Whether it is called with at least one argument, all of which (getattr: the second) are literal strings."""


@dataclass(slots=True, eq=False)
class Import:
    line: int
    path: str
    """``os.path`` for ``import os.path`` and for ``from os import path``; ends in ``*`` for a star import."""
    relative: bool


@dataclass(slots=True, eq=False)
class Survey:
    """Every read of a name, every other attribute and every import of a program."""

    module: Scope
    reads: list[Read]
    attributes: list[tuple[str, int]]
    """Those not in ``reads``, of other expressions and of class patterns, with their lines."""
    imports: list[Import]

    def binder(self, name: str, scope: Scope) -> Scope:
        """The scope in which a read of ``name`` in ``scope`` looks; a class or module may still lack it then."""
        current: Scope | None = scope
        while current is not None and current is not self.module:
            declared = current.outer.get(name)
            if declared == "global":
                return self.module
            if declared is None and name in current.bound and (current.kind != "class" or current is scope):
                return current
            current = current.parent
        return self.module

    def may_be_builtin(self, read: Read) -> bool:
        """Whether the name is neither a local variable nor certainly bound before this read."""
        binder = self.binder(read.name, read.scope)
        if binder.kind in ("function", "comprehension"):
            return False
        return not any(_certain(place, read) for place in (binder, self.module))

    def import_path(self, read: Read) -> tuple[str, bool] | None:
        """What an import statement bound the name to, and whether that is certainly a module."""
        binder = self.binder(read.name, read.scope)
        places = (binder, self.module) if binder.kind == "class" else (binder,)
        found = next((place for place in places if read.name in place.imports), None)
        return None if found is None else (found.imports[read.name], read.name in found.modules)


def _certain(place: Scope, read: Read) -> bool:
    since = place.since.get(read.name)
    return since is not None and since <= read.position and read.name not in place.unbound
