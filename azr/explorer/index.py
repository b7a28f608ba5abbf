"""The index of a run: a sqlite file beside its records, made from them, brought up to date, and thrown away at will."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from azr.errors import UserError
from azr.evaluation.answer_file import ANSWERS
from azr.explorer.record_files import ROLLOUTS, LinePlace, read_grown, read_samples
from azr.files import open_regular
from azr.records import Sample, Task
from azr.runs.sample_file import FIELDS, clean
from azr.text import map_texts

_TAIL = 256
"""Bytes before a growing file's offset by which it is known again."""
NAME = "explorer.sqlite"
"""In the run's directory."""
ROOM_BYTES = 64 << 20
"""An index of thousands of steps takes about as much."""
MAX_KEPT = 2000
"""Characters that the index keeps of a text; the file has all of it."""
_COLUMNS = {
    "step": "INTEGER", "role": "TEXT", "kind": "TEXT", "problem_id": "TEXT", "used": "TEXT", "accuracy": "REAL",
    "reward": "REAL", "advantage": "REAL", "mismatch": "REAL", "response_tokens": "INTEGER",
}  # fmt: skip
"""Fields by which samples are found and ordered, with their SQL types; so are ``verdict`` and ``flags``."""
_DEFAULTS = {
    each.name: each.default if each.default_factory is MISSING else each.default_factory()
    for each in fields(Sample)
    if each.name in FIELDS and each.name not in ("prompt", "response", "tokens", *_COLUMNS)
}
"""All other fields but the texts, which are one column of JSON, with the values that it leaves out."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A row of the table: a sample without prompt and response, and where its line is."""

    sample: Sample
    line: int
    """Index among the step's samples, from 0."""
    place: LinePlace


INSERT = f"INSERT INTO samples VALUES (NULL{', ?' * (7 + len(_COLUMNS))})"
_TABLES = f"""
CREATE TABLE files (path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, offset INTEGER, tail BLOB);
CREATE TABLE problems (path TEXT, sentence TEXT);
CREATE TABLE metrics (step INTEGER PRIMARY KEY, numbers TEXT);
CREATE TABLE tasks (
    n INTEGER PRIMARY KEY, id TEXT UNIQUE, kind TEXT, step INTEGER, solve_rate REAL, lines INTEGER, nodes INTEGER,
    parents TEXT
);
CREATE TABLE children (parent TEXT, child TEXT);
CREATE INDEX child_of ON children (parent);
CREATE TABLE texts (n INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE task_records (n INTEGER PRIMARY KEY, record TEXT);
CREATE TABLE samples (
    n INTEGER PRIMARY KEY, line INTEGER, member INTEGER, start INTEGER, size INTEGER, verdict TEXT, flags TEXT,
    record TEXT, reason TEXT AS (json_extract(record, '$.judgement.reason')),
    {", ".join(f"{name} {sql_type}" for name, sql_type in _COLUMNS.items())}
);
CREATE INDEX samples_of_step ON samples (step);
CREATE INDEX samples_of_kind ON samples (kind);
CREATE INDEX samples_of_problem ON samples (problem_id);
CREATE INDEX flagged ON samples (step) WHERE flags IS NOT NULL;
"""
READER = 1
"""To be raised when the same tables are filled otherwise."""
VERSION = zlib.crc32(f"{READER}{_TABLES}".encode()) >> 1 | 1
"""An index of another version is replaced."""


class RunIndex:
    """The index of one run directory. Threads and processes may use it at once, each by an object of its own."""

    def __init__(self, run: Path) -> None:
        """Open the index, or make an empty one; `refresh` fills it. Raises UserError when the folder is not a run
        directory, nor one that azr eval has written."""
        self.is_evaluation = not is_run(run) and (run / ANSWERS).is_file()
        """The folder holds an evaluation of azr eval, not a run."""
        if not self.is_evaluation and not is_run(run):
            runs = [path for path in run.iterdir() if is_run(path)] if run.is_dir() else []
            newest = max(runs, key=lambda path: path.stat().st_mtime, default=Path("orz_ckpt/NAME"))
            raise UserError(f"There is no run in {run}: name a run directory, such as {newest}.")
        self.run = run
        # Into the run, or where that cannot be written or has no room, into the folder for temporary files.
        may_write = os.access(run, os.W_OK) and (not (run / NAME).exists() or os.access(run / NAME, os.W_OK))
        fits = may_write and not self.is_evaluation and shutil.disk_usage(run).free > ROOM_BYTES
        self.path = run / NAME if fits else temporary_path(run)
        with self._removed_if_damaged():
            self._connection = open_index(self.path)

    def close(self) -> None:
        self._connection.close()

    @property
    def changes(self) -> tuple[int, int]:
        """Another with every change."""
        return _stat(self.run / ANSWERS if self.is_evaluation else self.path)

    def select(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._removed_if_damaged():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _removed_if_damaged(self) -> Iterator[None]:
        """Raise UserError if the disk is full or a damaged page is met. A damaged index is removed, so that the next to
        open it makes another."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise UserError(f"{self.path} cannot grow ({error}): make room, or set another TMPDIR.") from error
            if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise
            self.path.unlink(missing_ok=True)
            raise UserError(f"{self.path} was damaged and is removed: try again, and it is made anew.") from error

    def refresh(self, tell: Callable[[str], None] = lambda sentence: None, seconds: float | None = None) -> bool:
        """Reads what is new, changed or gone since; whether everything was read in these seconds. ``tell`` hears how
        far it is, every few seconds."""
        with self._removed_if_damaged():
            started = told = time.monotonic()
            self._grown("metrics.jsonl", dict, self._add_metrics, "metrics")
            self._grown("tasks.jsonl", Task, self._add_tasks, "tasks", "texts", "task_records", "children")
            paths = self._changed_rollouts()
            for done, (step, path) in enumerate(paths):
                if seconds is not None and time.monotonic() - started > seconds:
                    return False
                if time.monotonic() - told > 2:
                    told = time.monotonic()
                    tell(f"indexing {self.run}: {done} of {len(paths)} steps")
                self._read_rollouts(step, path)
            return True

    def _grown(self, name: str, kind: type[Any], add: Callable[[list[Any]], None], *tables: str) -> None:
        path = self.run / name
        known = self.select("SELECT size, mtime_ns, offset, tail FROM files WHERE path = ?", name)
        *seen, offset, tail = known[0] if known else (None, None, 0, b"")
        stat = _stat(path)
        if [*stat] == seen:
            return
        with transaction(self._connection):
            if _tail(path, offset) != tail:
                offset = 0  # a resumed run has taken lines away
                for table in tables:
                    self._connection.execute(f"DELETE FROM {table}")
                self._connection.execute("DELETE FROM problems WHERE path = ?", (name,))
            problems = list[str]()
            records, offset = read_grown(path, offset, kind, problems)
            add(records)
            self._note(name, stat, offset, _tail(path, offset), problems)

    def _add_metrics(self, records: list[dict[str, Any]]) -> None:
        rows = [(record["step"], json.dumps(record)) for record in records if isinstance(record.get("step"), int)]
        self._connection.executemany("INSERT OR REPLACE INTO metrics VALUES (?, ?)", rows)

    def _add_tasks(self, tasks: list[Task]) -> None:
        for task in tasks:
            values = (clean(task.id), task.kind, task.step, task.solve_rate, task.program.count("\n") + 1)
            cursor = self._connection.execute(
                "INSERT OR IGNORE INTO tasks VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
                (*values, _num_nodes(task.program), json.dumps(task.parents)),
            )
            if cursor.rowcount != 1:
                continue  # read before
            message = task.message or (json.dumps(task.payload, ensure_ascii=False) if task.payload else "")
            text = "\n".join((task.id, task.program, message, *task.inputs, *task.outputs))
            record = {"program": task.program, "message": message, "inputs": task.inputs, "outputs": task.outputs}
            self._connection.execute("INSERT INTO texts VALUES (?, ?)", (cursor.lastrowid, clean(text)))
            self._connection.execute("INSERT INTO task_records VALUES (?, ?)", (cursor.lastrowid, json.dumps(record)))
            children = [(parent, task.id) for parent in task.parents]
            self._connection.executemany("INSERT INTO children VALUES (?, ?)", children)

    def _changed_rollouts(self) -> list[tuple[int, Path]]:
        """Rollout files to be read; what is of others that are gone is forgotten."""
        folder = self.run / "rollouts"
        known = {row["path"]: (row["size"], row["mtime_ns"]) for row in self.select("SELECT * FROM files")}
        try:
            paths = sorted(folder.iterdir()) if folder.is_dir() else []
        except OSError:
            return []
        there = {path.name: (int(match[1]), path) for path in paths if (match := ROLLOUTS.fullmatch(path.name))}
        for name in known.keys() - there.keys():
            if match := ROLLOUTS.fullmatch(name):
                with transaction(self._connection):
                    self._forget(int(match[1]), name)
        return [(step, path) for step, path in there.values() if _stat(path) != known.get(path.name)]

    def _read_rollouts(self, step: int, path: Path) -> None:
        stat = _stat(path)
        rows, problems = list[list[Any]](), list[str]()
        for place, sample in read_samples(path, problems):
            sample.step = step
            rows.append(values(sample, len(rows), place))
        with transaction(self._connection):
            self._forget(step, path.name)
            self._connection.executemany(INSERT, rows)
            self._note(path.name, stat, 0, b"", problems)

    def _forget(self, step: int, name: str) -> None:
        self._connection.execute("DELETE FROM samples WHERE step = ?", (step,))
        self._connection.execute("DELETE FROM files WHERE path = ?", (name,))
        self._connection.execute("DELETE FROM problems WHERE path = ?", (name,))

    def _note(self, name: str, stat: tuple[int, int], offset: int, tail: bytes, problems: list[str]) -> None:
        self._connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", (name, *stat, offset, tail))
        rows = [(name, clean(problem)) for problem in problems]
        self._connection.executemany("INSERT INTO problems VALUES (?, ?)", rows)


def open_index(path: Path) -> sqlite3.Connection:
    """The index there, or a new one where there is none of this version."""
    rollouts = path.with_name("rollouts")  # the lock on the run's folder is its owner's, as long as it runs
    descriptor = os.open(rollouts if rollouts.is_dir() else path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # nobody else opens an index in this folder meanwhile
        connection = _connected(path)
        if not _is_current(connection):
            connection.close()
            for leftover in (path, path.with_name(f"{path.name}-journal")):
                leftover.unlink(missing_ok=True)
            connection = _connected(path)
            with transaction(connection):
                for statement in _TABLES.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {VERSION}")
        # It can be made again at any time, so it need not survive a power cut.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -65536")
        return connection
    finally:
        os.close(descriptor)


def is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("metrics.jsonl", "tasks.jsonl", "rollouts"))


def temporary_path(run: Path) -> Path:
    """A place for the index of a folder in which none may be."""
    name = hashlib.sha256(os.fsencode(run.resolve())).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"azr-explorer-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}): set TMPDIR to a folder of yours.") from error
    if folder.stat().st_uid != os.getuid():
        raise UserError(f"{run} cannot be written, and {folder} is another user's: set TMPDIR to a folder of yours.")
    return folder / f"{name}.sqlite"


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    return connection


def _is_current(connection: sqlite3.Connection) -> bool:
    """Whether an index is there, and of this version."""
    try:
        connection.execute("SELECT count(*) FROM files").fetchone()
        return bool(connection.execute("PRAGMA user_version").fetchone()[0] == VERSION)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise
        return False


def transaction(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Begin what the connection's context ends: all or nothing; one at a time, whichever process it is of."""
    connection.execute("BEGIN IMMEDIATE")
    return connection


def values(sample: Sample, line: int, place: LinePlace) -> list[Any]:
    """Return what `INSERT` takes; ``line``: index among the step's samples."""
    flags = msgspec.json.encode(sample.flags).decode() if sample.flags else None
    given = {name: value for name, default in _DEFAULTS.items() if (value := getattr(sample, name)) != default}
    record = msgspec.json.encode(given)
    if len(record) > MAX_KEPT:
        record = msgspec.json.encode(kept(msgspec.to_builtins(given)))
    columns = (kept(getattr(sample, name)) for name in _COLUMNS)
    return [line, place.member, place.start, place.size, kept(sample.verdict), flags, record.decode(), *columns]


def made(row: sqlite3.Row) -> SampleRow:
    """Return a row of the table as it was inserted, with long texts shortened."""
    columns = {name: row[name] for name in _COLUMNS if row[name] is not None}
    sample = msgspec.convert(columns | json.loads(row["record"]), Sample, strict=False)
    return SampleRow(sample, row["line"], LinePlace(row["member"], row["start"], row["size"]))


def kept(value: Any) -> Any:
    """Return a value with its long texts shortened."""
    return map_texts(value, lambda text: text[:MAX_KEPT])


def _num_nodes(program: str) -> int | None:
    """Nodes of the syntax tree; None for what is not a program."""
    try:
        return sum(1 for _ in ast.walk(ast.parse(program)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _stat(path: Path) -> tuple[int, int]:
    """Size and time of change; of what is not there, -1."""
    try:
        stat = path.stat()
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _tail(path: Path, offset: int) -> bytes:
    """Return the bytes before the offset, which identify a file that has grown."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, offset - _TAIL))
            return file.read(min(offset, _TAIL))
    except OSError:
        return b""
