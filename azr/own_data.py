"""The data of this project, the exam and the 14M model, and its version: in the clone or in the installed package."""

from __future__ import annotations

import functools
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_COMMIT = _PACKAGE / "COMMIT"
"""Written by setup.py into a built package, where there is no clone to ask."""


def own_data(name: str) -> str:
    """Return the path of a folder of ``data/``, relative to the working directory if it is below."""
    packed = _PACKAGE / "data" / name
    path = packed if packed.is_dir() else _PACKAGE.parent / "data" / name
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def find_own_data(path: str) -> str:
    """Return where own data is that a run's config names relative to the working directory of then; other paths as they
    are."""
    before, _, inside = path.rpartition("data/")
    name, slash, rest = inside.partition("/")
    own = f"{own_data(name)}{slash}{rest}"
    is_own = bool(name) and (not before or before.endswith("/")) and not Path(path).is_absolute()
    return own if is_own and not Path(path).exists() and Path(own).exists() else path


@functools.cache
def code_version() -> str:
    """Return the package's version, with its commit in brackets if known."""
    version = metadata.version("azr")
    commit = _COMMIT.read_text(encoding="utf-8").strip() if _COMMIT.is_file() else commit_of_clone()
    return f"{version} ({commit})" if commit else version


def commit_of_clone() -> str:
    """Return the clone's commit, for setup.py, too; empty without a clone or git."""
    if not (_PACKAGE.parent / ".git").exists():
        return ""
    command = ["git", "-C", str(_PACKAGE), "describe", "--always", "--dirty"]
    with suppress(OSError, subprocess.CalledProcessError):  # there may be no git
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return ""
