"""Path of the project's own data, the exam and the 14M model: in the clone, or in the installed package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def own_data(name: str) -> str:
    """Return the path of a folder of ``data/``, relative to the working directory if it is below."""
    packed = _PACKAGE / "data" / name
    path = packed if packed.is_dir() else _PACKAGE.parent / "data" / name
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
