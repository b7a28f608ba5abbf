"""Where a run goes on: what the driver alone knows about a step that was done."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from azr.runs.log_offsets import Mark, Position
from azr.runs.manifest import Damaged

FILE = "driver.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """After a step. Every draw of a run is seeded by its step, so the step is the driver's random state too."""

    step: int
    """The last step that was done; also the version of the weights."""
    elapsed_s: float
    """Seconds that the run has taken, pauses between its processes left out."""
    position: Position
    """Of the logs; the task buffer is what the task log says."""

    def write(self, folder: Path) -> None:
        """Into a checkpoint's folder, with the version of the code."""
        tree = asdict(self) | {"code": code_version()}
        (folder / FILE).write_text(json.dumps(tree, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> tuple[Point, str]:
        """From a checkpoint's folder, with the version of the code that wrote it. Raises `Damaged`."""
        try:
            tree: dict[str, Any] = json.loads((folder / FILE).read_text())
            position = Position(**{name: Mark(**mark) for name, mark in tree["position"].items()})
            return cls(step=tree["step"], elapsed_s=tree["elapsed_s"], position=position), tree["code"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{folder / FILE} cannot be read") from error


BEGINNING = Point(step=0, elapsed_s=0.0, position=Position())
"""Before anything was done, the seed tasks included."""


def code_version() -> str:
    """The package's version, and the commit it was checked out at where that is known."""
    version = metadata.version("azr")
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return version
    return f"{version} ({commit.stdout.strip()})"
