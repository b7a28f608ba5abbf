"""Long tables of tests, in text files beside them: prose, and then parts below headings ``#### name``."""

import json
from pathlib import Path
from typing import Any


def programs(path: Path, use: str) -> dict[str, str]:
    """Return the texts below the headings ``#### use: name`` by name, without blank lines around them."""
    parts = path.read_text().split(f"\n#### {use}: ")[1:]
    named = [part.split("\n#### ")[0].partition("\n") for part in parts]
    found = {name: text.strip("\n") for name, _, text in named}
    assert len(found) == len(named) > 0, f"no programs, or two of one name: {use}"
    return found


def values(path: Path, heading: str) -> list[Any]:
    """Return what lies below a heading, JSON a line. Lines that begin with ``#`` are comments."""
    lines = path.read_text().split(f"\n#### {heading}\n")[1].split("\n#### ")[0].splitlines()
    return [json.loads(line) for line in lines if line and line[0] != "#"]


def table(file: str, heading: str) -> list[Any]:
    """Return what lies below a heading of the tables.txt beside a file, as `values`."""
    return values(Path(file).with_name("tables.txt"), heading)
