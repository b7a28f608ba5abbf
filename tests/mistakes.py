"""How tests look at a user's mistake: by the options that its sentence names. `mistakes.txt` holds whole sentences."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from azr.errors import UserError


@contextmanager
def mistake(*options: str, says: str = "") -> Iterator[None]:
    """Pass if a UserError is raised whose one line says some words and names these options, if any are given."""
    with pytest.raises(UserError) as raised:
        yield
    text = str(raised.value)
    assert options in ((), raised.value.options) and says in text, text
    assert "\n" not in text and text.endswith((".", "?", ")")), text


def part(heading: str) -> list[str]:
    """Return the lines of `mistakes.txt` below a heading."""
    text = Path(__file__).with_suffix(".txt").read_text().split(f"# {heading}\n")[1]
    return text.split("\n\n#")[0].strip().splitlines()


def sentences(heading: str) -> dict[str, str]:
    """Return what is said by what is typed, below a heading of `mistakes.txt`."""
    lines = part(heading)
    return {typed: said.strip() for typed, said in zip(lines[::2], lines[1::2], strict=True)}
