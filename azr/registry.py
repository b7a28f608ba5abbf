"""What options name: entries of registries, the user's own modules, and entry points of installed packages.

Entry points are in groups such as ``azr.kinds``, and are looked up only for names that nothing here has: a package that
no run names costs nothing and is not imported.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from azr.errors import UserError, unknown

T = TypeVar("T")


class Registry(dict[str, T], Generic[T]):
    """Entries by name: the project's, and after them those of plug-ins.

    Example: ``TRACKERS = Registry("tracker", {"wandb": WandbTracker}, "tracking.to may hold")``
    """

    def __init__(self, what: str, built_in: Mapping[str, T], option_may: str) -> None:
        """``what``: word for an entry. ``option_may``: begins the sentence that lists all names."""
        super().__init__(built_in)
        self._what, self._option_may = what, option_may

    def find(self, name: str) -> T:
        """Return the entry. Raises UserError, with the nearest name, if there is none."""
        if name not in self:
            raise unknown(self._what, name, self, f"{self._option_may} {', '.join(self)}.")
        return self[name]


def search_here() -> str:
    """Append the working directory to the module search path, and return it."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    return here


def import_own(name: str, what: str) -> ModuleType:
    """Import and return the module, or the file that ends with .py, which may import its neighbours; ``what`` begins
    the sentence of the error. Raises UserError if it cannot be imported, after the traceback of a module that exists.
    """
    path = str(Path(search_here(), name))
    try:
        if name.endswith(".py"):
            if path not in sys.modules:
                sys.path.append(str(Path(path).parent))
                spec = spec_from_file_location(path, path)
                assert spec is not None and spec.loader is not None, "a .py file has a loader"
                sys.modules[path] = module_from_spec(spec)  # where dataclasses look up their annotations
                spec.loader.exec_module(sys.modules[path])
            return sys.modules[path]
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        sys.modules.pop(path, None)
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
        is_missing |= name.endswith(".py") and not Path(name).is_file()
        if not is_missing and name[:1] not in ("", "."):  # which no module is called
            traceback.print_exc()
        raise UserError(f"{what} cannot be imported: {type(error).__name__}: {error}.") from error


def find_entry(group: str, name: str) -> EntryPoint | None:
    """Return the entry point of this name; None if there is none. Raises UserError if several packages have one."""
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
    """Return the entry points for this project of an installed package; empty if there is none."""
    search_here()
    try:
        entries = distribution(package).entry_points
    except (PackageNotFoundError, ValueError):  # a name that no package can have
        return []
    return [entry for entry in entries if entry.group.startswith("azr.")]


def load_entry(entry: EntryPoint) -> Any:
    """Load what an entry point names. Raises UserError as `import_own`, and if its module does not have it."""
    package = f" of the package {entry.dist.name}" if entry.dist is not None else ""
    what = f"The entry point {entry.name} in {entry.group}{package}"
    module = import_own(entry.module, what)
    try:
        return entry.load()
    except AttributeError as error:
        raise UserError(f"{what} names {entry.value}, which {module.__name__} does not have.") from error
