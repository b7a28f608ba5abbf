"""Measure the size of the tree and compare it with tests/ratchets.toml.

Every figure may fall. One that rises above its limit needs a higher limit together with a reason. The caps of the core,
of the edges and of the tests never rise: what is added there takes away something else.

    python -m tests.ratchets --why "REASON"    set all limits to today's figures; limits that rise get the reason
    python -m tests.ratchets --of ROOT         print the figures of another checkout
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("ratchets.toml")
STEP = 50
"""Limits of lines are rounded up to a multiple of this, so that small corrections need no new limit."""
SPINE = (
    "azr/records.py", "azr/answering.py", "azr/experiment.py", "azr/prompts/*.py", "azr/selfplay/**/*.py",
    "azr/datasets/play.py", "azr/algorithms/advantages.py", "azr/algorithms/packing.py", "azr/algorithms/batch.py",
    "azr/train/learner.py", "azr/train/train_batch.py", "azr/train/policy.py",
)  # fmt: skip
"""Files between a proposal and the loss. Every public class defined in one of them counts."""

EDGES = (
    "evaluation", "environments", "graders", "datasets", "runs", "plugins", "monitoring", "explorer", "plan", "doctor",
    "cli",
)  # fmt: skip
"""Rooms around the trainer; every other file of azr/ is the core."""
CAPS = {"core": 21_500, "edges": 16_500, "tests": 33_000}
"""Lines, at most, whatever is added."""

Figures = dict[str, dict[str, int]]
_HEAD = "# The tree may shrink freely and grow for a reason: see tests/ratchets.py. `why`: what the last rise was for."


def figures(root: Path) -> Figures:
    """Return the figures of a checkout: unit and count by the name of their row."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rooms = defaultdict(list)
    for path in sorted((root / "azr").rglob("*.py")):
        inside = path.relative_to(root).parts
        rooms["azr/*.py" if len(inside) == 2 else f"azr/{inside[1]}/"].append(path)
    files = [path for room in rooms.values() for path in room]
    return {
        "azr/": {"files": len(files), "lines": lines(files)},
        **{name: {"files": len(paths), "lines": lines(paths)} for name, paths in sorted(rooms.items())},
        "tests/": {"lines": lines(list((root / "tests").rglob("*.py")))},
        "options": {"count": options(root / "azr")},
        "layers of the import contract": {
            "count": next(len(each["layers"]) for each in contracts if each["type"] == "layers")
        },
        "types between a proposal and the loss": {"count": len(spine_types(root))},
    }


def capped(measured: Figures) -> dict[str, int]:
    """Return the lines that `CAPS` bounds, from figures."""
    rooms = {name: row["lines"] for name, row in measured.items() if name.startswith("azr/") and name != "azr/"}
    edges = sum(rooms.get(f"azr/{name}/", 0) for name in EDGES)
    return {"core": sum(rooms.values()) - edges, "edges": edges, "tests": measured["tests/"]["lines"]}


def lines(paths: list[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def options(package: Path) -> int:
    """Count the fields of the config's classes, except those that hold another of these classes, and tags."""
    own = [path for name in ("config", "config_training") if (path := package / f"{name}.py").is_file()]
    sections = _classes(own)
    fields = [
        field
        for node in sections + _classes([*(package / "estimators").glob("*.py")])
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    ]
    others = "|".join([r"ClassVar.*", r"Literal\['[^']+'\]", *(node.name for node in sections)])
    return sum(re.fullmatch(others, ast.unparse(field.annotation)) is None for field in fields)


def _classes(files: list[Path]) -> list[ast.ClassDef]:
    trees = [ast.parse(file.read_text()) for file in files]
    return [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]


def spine_types(root: Path) -> list[str]:
    """Return the names of the public classes that are defined in the files of the spine."""
    trees = [ast.parse(path.read_text()) for pattern in SPINE for path in root.glob(pattern)]
    names = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [name for name in names if not name.startswith("_")]


def table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(TABLE.read_text())


def excesses(measured: Figures, limits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return one sentence for every figure above its limit."""
    return [
        f"{name} has {figure:,} {unit}, above its limit of {limit:,}: make it smaller, or raise the line in "
        "tests/ratchets.toml together with a reason"
        for name, row in measured.items()
        for unit, figure in row.items()
        if figure > (limit := limits.get(name, {}).get(unit, 0))
    ]


def new_table(measured: Figures, old: Mapping[str, Mapping[str, Any]], why: str) -> str:
    """Return the table with the measured figures as limits; rows that rise get the reason ``why``."""
    rows = [_HEAD]
    for name, row in measured.items():
        rises = bool(excesses({name: row}, old))
        limits = {unit: -(-figure // STEP) * STEP if unit == "lines" else figure for unit, figure in row.items()}
        cells = ", ".join(f"{unit} = {limit}" for unit, limit in limits.items())
        rows.append(f'"{name}" = {{ {cells}, why = "{why if rises else old[name]["why"]}" }}')
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Set the limits of tests/ratchets.toml, or print figures.")
    parser.add_argument("--why", default="", help="reason of the limits that rise")
    parser.add_argument("--of", type=Path, help="print the figures of this checkout")
    given = parser.parse_args()
    if given.of is not None:
        measured = figures(given.of)
        print("\n".join(f"{name}\t{row}" for name, row in [*measured.items(), *capped(measured).items()]))
    elif excesses(figures(ROOT), table()) and not given.why:
        parser.error("some limits would rise: give a reason with --why")
    else:
        TABLE.write_text(new_table(figures(ROOT), table(), given.why))
