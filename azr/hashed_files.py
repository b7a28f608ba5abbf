"""Files that are hashed while they are written, so that knowing their content takes no second reading."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class HashedFile:
    """What a file held when it was written."""

    path: str
    nbytes: int
    digest: str
    """BLAKE3 of its content, hexadecimal."""


def write_hashed(path: Path, chunks: Iterable[bytes | memoryview]) -> HashedFile:
    """Writes bytes one chunk at a time; all of them are on the disk on return. Raises OSError."""
    hasher, nbytes = blake3(), 0
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            hasher.update(chunk)
            nbytes += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return HashedFile(str(path), nbytes, hasher.hexdigest())


def hash_file(path: Path) -> HashedFile:
    """Reads a file that is there already. Raises OSError."""
    hasher, nbytes = blake3(max_threads=blake3.AUTO), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            nbytes += len(chunk)
    return HashedFile(str(path), nbytes, hasher.hexdigest())


def sync(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
