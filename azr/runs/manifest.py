"""What a checkpoint's folder must hold: every file with its size and checksum, written last of all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

NAME = "manifest.json"


class Damaged(Exception):
    """A file of a checkpoint is not what was written; the message names it."""


def write(folder: Path) -> None:
    """Describes everything in the folder and makes sure that all of it is on the disk."""
    files = {}
    for path in _files(folder):
        files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
        _sync(path)
    manifest = folder / NAME
    manifest.write_text(json.dumps({"files": files}, indent=1) + "\n")
    _sync(manifest)
    for path in (folder, *(inner for inner in folder.rglob("*") if inner.is_dir())):
        _sync(path)


def check(folder: Path) -> None:
    """Compares the folder with its manifest, byte by byte.

    Raises:
        Damaged: a file is missing, cut off or altered, or there is no manifest that can be read.
    """
    path = folder / NAME
    try:
        files = json.loads(path.read_text())["files"]
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path} cannot be read") from error
    for name, (size, digest) in expected.items():
        file = folder / name
        if not file.is_file():
            raise Damaged(f"{file} is missing")
        if file.stat().st_size != size:
            raise Damaged(f"{file} has {file.stat().st_size} bytes instead of {size}")
        if _digest(file) != digest:
            raise Damaged(f"{file} has another content than was written")


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
