"""The mini in small, played once without any trouble: most of what a run does and leaves is read from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.runs import mini, succeed


@dataclass(frozen=True)
class Played:
    folder: Path
    shown: str
    """What it printed."""


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    root = tmp_path_factory.mktemp("undisturbed")
    return Played(root / "three_kinds", succeed(*mini(root)))
