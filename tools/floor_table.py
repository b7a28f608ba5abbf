"""Prints README's table of floors, made from the import contract: ``python -m tools.floor_table``."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def floors() -> list[list[str]]:
    """Modules by floor, from the top floor down, as the import contract of pyproject.toml has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return [re.split(r"\s*[:|]\s*", layer) for layer in layers]


def path_of(module: str) -> str:
    """``azr/cli/`` for a package, ``azr/errors.py`` for a module."""
    path = module.replace(".", "/")
    return f"{path}/" if (ROOT / path).is_dir() else f"{path}.py"


def purpose(module: str) -> str:
    """The first line of its docstring, without the full stop. Raises ValueError when it has none."""
    path = path_of(module)
    file = ROOT / path / "__init__.py" if path.endswith("/") else ROOT / path
    docstring = ast.get_docstring(ast.parse(file.read_text()))
    if docstring is None:
        raise ValueError(f"{file} has no docstring")
    return docstring.splitlines()[0].removesuffix(".").replace("``", "`")


def table() -> str:
    """Markdown: one row per module, floor 0 imports none of the others."""
    rows = ["| floor | where | what it does |", "|---|---|---|"]
    for floor, modules in zip(reversed(range(len(floors()))), floors(), strict=True):
        rows += [f"| {floor} | `{path_of(module)}` | {purpose(module)} |" for module in modules]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
