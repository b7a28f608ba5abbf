"""Files and folders that appear when they are complete, and files that are hashed while they are written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from blake3 import blake3

_CHUNK = 16 << 20


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a file beside ``path`` to write, which replaces it at the end of the block. Nothing is left of it if the
    block fails. Raises OSError."""
    staging = path.with_name(f".{os.getpid()}.{path.name}")
    staging.unlink(missing_ok=True)  # a killed process may have had the same id
    try:
        yield staging
        os.replace(staging, path)
    except BaseException:
        with contextlib.suppress(OSError):  # of a disk on which nothing can be written
            staging.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside ``path`` to fill, which gets its name at the end of the block. Nothing is left of it if
    the block fails. Raises OSError, also if there is a folder with files of this name by then."""
    staging = path.absolute().with_name(f".{path.name}.{uuid4().hex[:8]}")
    staging.mkdir()
    try:
        yield staging
        os.rename(staging, path)
    except BaseException:
        shutil.rmtree(staging)
        raise


def write_problem(folder: Path) -> str:
    """Return why no file of a MiB can be made in a folder, or in the last one on the way there; empty if one can."""
    try:
        existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(1 << 20))
            file.flush()
    except OSError as error:
        return str(error.strerror)
    return ""


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read. Raises OSError, also for a pipe or a device, which might never end."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return file


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
    make: Any = partial(blake3, max_threads=blake3.AUTO)
    with path.open("rb", buffering=0) as file:
        hasher = hashlib.file_digest(file, make, _bufsize=_CHUNK)
        return HashedFile(str(path), file.tell(), hasher.hexdigest())


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
