"""The file of an index: where it is, which tables it has, and how it is opened and changed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from azr.errors import UserError
from azr.explorer.sample_table import TABLE

NAME = "explorer.sqlite"
"""In the run's directory."""
_TABLES = """
CREATE TABLE files (path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, offset INTEGER, tail BLOB);
CREATE TABLE problems (path TEXT, sentence TEXT);
CREATE TABLE metrics (step INTEGER PRIMARY KEY, numbers TEXT);
CREATE TABLE tasks (
    n INTEGER PRIMARY KEY, id TEXT UNIQUE, kind TEXT, step INTEGER, solve_rate REAL, lines INTEGER, nodes INTEGER,
    inputs INTEGER, parents TEXT
);
CREATE TABLE children (parent TEXT, child TEXT);
CREATE INDEX child_of ON children (parent);
CREATE TABLE texts (n INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE task_records (n INTEGER PRIMARY KEY, record TEXT);
CREATE TABLE lengths (
    step INTEGER, kind TEXT, role TEXT, count INTEGER, truncated INTEGER, mean REAL, p10 INTEGER, p50 INTEGER,
    p90 INTEGER, longest INTEGER
);
CREATE TABLE changes (count INTEGER);
INSERT INTO changes VALUES (0);
"""
_TABLES += TABLE
READER = 1
"""To be raised when the same tables are filled otherwise."""
VERSION = zlib.crc32(f"{READER}{_TABLES}".encode()) >> 1 | 1
"""An index of another version is replaced."""


def open_index(path: Path) -> sqlite3.Connection:
    """The index there, or a new one where there is none of this version."""
    with _locked(path.parent):
        if (connection := _current(path)) is not None:
            return connection
        for leftover in (path, path.with_name(f"{path.name}-journal")):
            leftover.unlink(missing_ok=True)
        connection = _connected(path)
        with transaction(connection):
            for statement in _TABLES.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        return connection


def is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("metrics.jsonl", "tasks.jsonl", "rollouts"))


def run_in(folder: Path) -> Path:
    """The newest run in a folder, which may hold many."""
    runs = [path for path in folder.iterdir() if is_run(path)] if folder.is_dir() else []
    return max(runs, key=lambda path: path.stat().st_mtime, default=Path("orz_ckpt/NAME"))


def index_path(run: Path) -> Path:
    """Where the index goes: into the run, or where that cannot be written, into the folder for temporary files."""
    if os.access(run, os.W_OK) and (not (run / NAME).exists() or os.access(run / NAME, os.W_OK)):
        return run / NAME
    return temporary_path(run)


def temporary_path(run: Path) -> Path:
    """A place for the index of a folder in which none may be."""
    name = hashlib.sha256(os.fsencode(run.resolve())).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"azr-explorer-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UserError(f"{run} cannot be written, and {folder} is another user's: set TMPDIR to a folder of yours.")
    return folder / f"{name}.sqlite"


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    # It can be made again at any time, so it need not survive a power cut.
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -65536")
    return connection


def _current(path: Path) -> sqlite3.Connection | None:
    """The index there, if it is one and of this version."""
    connection = None
    try:
        connection = _connected(path)
        if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
            connection.execute("SELECT count FROM changes, (SELECT count(*) FROM files)").fetchone()
            return connection
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise
    if connection is not None:
        connection.close()
    return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps others from opening an index in this folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing; one at a time, whichever process it is of."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
