"""Modules of the user's own, which are found in the working directory too, and what installed packages offer by name.

A package offers by entry points, in groups such as ``azr.kinds``. They are looked at for a name that nothing here has:
a package that no run names costs nothing and is not imported.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from types import ModuleType
from typing import Any

from azr.errors import UserError


def search_here() -> str:
    """Has modules found in the working directory, after all other places, and returns it."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    return here


def import_own(name: str, what: str) -> ModuleType:
    """The module; ``what`` is what it is to the user, in the words that begin a sentence.

    Raises UserError when it cannot be imported; the traceback of one that is there is printed before.
    """
    search_here()
    try:
        return importlib.import_module(name)
    except Exception as error:
        if not isinstance(error, ModuleNotFoundError) or error.name != name:
            traceback.print_exc()
        raise UserError(f"{what} cannot be imported: {type(error).__name__}: {error}.") from error


def find_entry(group: str, name: str) -> EntryPoint | None:
    """What installed packages offer by this name; None when they offer nothing.

    Raises UserError when several packages do.
    """
    search_here()
    return _find_entry(group, name, tuple(sys.path))


@cache
def _find_entry(group: str, name: str, path: tuple[str, ...]) -> EntryPoint | None:
    found = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if len(found) > 1:
        packages = " and ".join(sorted(str(entry.dist.name) for entry in found.values() if entry.dist is not None))
        raise UserError(f"{packages} both have an entry point {name!r} in {group}: uninstall one of them.")
    return next(iter(found.values()), None)


def entries_of(package: str) -> list[EntryPoint]:
    """What an installed package of this name offers to us; empty when there is none."""
    search_here()
    try:
        entries = distribution(package).entry_points
    except (PackageNotFoundError, ValueError):  # a name that no package can have
        return []
    return [entry for entry in entries if entry.group.startswith("azr.")]


def load_entry(entry: EntryPoint) -> Any:
    """What an entry point names. Raises UserError as `import_own` does, and when its module does not have it."""
    package = f" of the package {entry.dist.name}" if entry.dist is not None else ""
    what = f"The entry point {entry.name} in {entry.group}{package}"
    module = import_own(entry.module, what)
    try:
        return entry.load()
    except AttributeError as error:
        raise UserError(f"{what} names {entry.value}, which {module.__name__} does not have.") from error
