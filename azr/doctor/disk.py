"""Room for run directories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from azr.doctor.findings import Finding, Section, missing, ok

GIB = 2**30
LEAST_BYTES = GIB
"""What a run of the smallest model may leave, and then some."""


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def check(
    root: Path, checkpoint: float, kept: int, free: Callable[[Path], int] = free_bytes, may_write: bool | None = None
) -> Section:
    """`root`: the folder of run directories. `checkpoint`: bytes of one, 0 when unknown; `kept`: how many stay.

    `may_write`: whether files can be made there; found out when not given.
    """
    place = nearest(root)
    writable = os.access(place, os.W_OK | os.X_OK) if may_write is None else may_write
    return Section(title="Room for run directories", findings=[_room(root, checkpoint, kept, free(place), writable)])


def nearest(path: Path) -> Path:
    """The path, or the last folder on the way to it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.is_dir())


def _room(root: Path, checkpoint: float, kept: int, free: int, writable: bool) -> Finding:
    name, has = str(root), f"{free / GIB:.0f} GiB free"
    if not writable:
        return missing(name, "nothing can be written there: choose another --run.root, or change its owner")
    # The next one is written aside before the oldest goes.
    needed = max(LEAST_BYTES, checkpoint * (kept + 1))
    amount = f"{kept} checkpoints and a new one take {needed / GIB:.0f} GiB" if checkpoint else "a run may take 1 GiB"
    if free < needed:
        less = ", or keep fewer with --checkpoint.keep 1" if checkpoint and kept > 1 else ""
        return missing(name, f"{has}, and {amount}: choose a larger disk with --run.root{less}")
    return ok(name, f"{has}; {amount}" if checkpoint else has)
