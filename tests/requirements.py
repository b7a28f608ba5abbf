"""Which packages the project takes, as its pyproject.toml and the packages themselves say."""

import tomllib
from collections.abc import Callable, Collection
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def installed(name: str) -> list[str]:
    """Requirements of a package; none if it is not installed."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def needed_by(extras: Collection[str] = (), requires: Callable[[str], list[str]] = installed) -> set[str]:
    """Return the names of all packages that the project with some extras takes, directly or not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, set[str]] = {}
    lines = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    while lines:
        wanted = Requirement(lines.pop())
        name = canonicalize_name(wanted.name)
        new = {"", *wanted.extras} - found.setdefault(name, set())
        found[name] |= new
        if name != "azr":  # only extras of its own, which are asked for here
            lines += [line for line in requires(name) if any(_holds(Requirement(line), extra) for extra in new)]
    return found.keys() - {"azr"}


def _holds(wanted: Requirement, extra: str) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})
