"""Files that are hashed while they are written, so that no second reading is needed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class HashedFile:
    """Path, size and digest of a file."""

    path: str
    nbytes: int
    digest: str
    """BLAKE3, hexadecimal."""


def write_hashed(path: Path, chunks: Iterable[bytes | memoryview]) -> HashedFile:
    """Write the chunks; all are on disk on return. Raises OSError."""
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
    """Hash an existing file. Raises OSError."""
    hasher, nbytes = blake3(max_threads=blake3.AUTO), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            nbytes += len(chunk)
    return HashedFile(str(path), nbytes, hasher.hexdigest())


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
