"""Version of the code."""

from __future__ import annotations

import functools
import subprocess
from importlib import metadata
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_COMMIT = _HERE / "COMMIT"
"""Written by setup.py into a built package, where there is no clone to ask."""


@functools.cache
def code_version() -> str:
    """Return the package's version, with its commit in brackets if known."""
    version = metadata.version("azr")
    commit = _COMMIT.read_text(encoding="utf-8").strip() if _COMMIT.is_file() else commit_of_clone()
    return f"{version} ({commit})" if commit else version


def commit_of_clone() -> str:
    """Return the clone's commit; empty without a clone or git."""
    if not (_HERE.parent / ".git").exists():
        return ""
    command = ["git", "-C", str(_HERE), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
