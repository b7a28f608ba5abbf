"""The index of a run: a sqlite file beside its records, made from them, brought up to date, and thrown away at will."""

from __future__ import annotations

import ast
import json
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from azr.errors import UserError
from azr.evaluation.answer_file import ANSWERS
from azr.explorer.index_file import INSERT, index_path, is_run, open_index, run_in, temporary_path, transaction, values
from azr.explorer.record_files import ROLLOUTS, Problem, read_grown, read_rollouts
from azr.records import FinishReason, Task
from azr.runs.sample_file import clean

_TAIL = 256
"""Bytes before a growing file's offset by which it is known again."""


class RunIndex:
    """The index of one run directory. Threads and processes may use it at once, each by an object of its own."""

    def __init__(self, run: Path) -> None:
        """Open the index, or make an empty one; `refresh` fills it.

        Raises UserError when the folder is no run directory, nor one that azr eval has written.
        """
        self.is_evaluation = not is_run(run) and (run / ANSWERS).is_file()
        """The folder is no run's but of azr eval."""
        if not self.is_evaluation and not is_run(run):
            raise UserError(f"There is no run in {run}: name a run directory, such as {run_in(run)}.")
        self.run = run
        self.path = temporary_path(run) if self.is_evaluation else index_path(run)
        self._connection = open_index(self.path)

    def close(self) -> None:
        self._connection.close()

    @property
    def changes(self) -> int:
        """Another with every change."""
        if self.is_evaluation:
            return _stat(self.run / ANSWERS)[0]
        return int(self._connection.execute("SELECT count FROM changes").fetchone()[0])

    def select(self, query: str, *values: Any) -> list[sqlite3.Row]:
        return self._connection.execute(query, values).fetchall()

    def refresh(self, tell: Callable[[str], None] = lambda sentence: None, seconds: float | None = None) -> bool:
        """Reads what is new, changed or gone since; whether everything was read in these seconds.

        ``tell`` hears how far it is, every few seconds.
        """
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
        known = next(iter(self.select("SELECT * FROM files WHERE path = ?", name)), None)
        offset, tail = (known["offset"], known["tail"]) if known is not None else (0, b"")
        stat = _stat(path)
        if known is not None and stat == (known["size"], known["mtime_ns"]):
            return
        with transaction(self._connection):
            if known is not None and _tail(path, offset) != tail:
                offset = 0  # a resumed run has taken lines away
                for table in tables:
                    self._connection.execute(f"DELETE FROM {table}")
                self._connection.execute("DELETE FROM problems WHERE path = ?", (name,))
            records, offset, problems = read_grown(path, offset, kind)
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
            # A kind of the user's own may hold everything in its payload: what solvers see of it says what it is.
            shown = "\n".join(f"{label}: {text}" for label, text in task.views.get("solver_view", ()))
            message = task.message or shown
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
        there: dict[str, Path] = {}
        changed: list[tuple[int, Path]] = []
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name) if folder.is_dir() else []
        except OSError:
            return []
        for entry in entries:
            if match := ROLLOUTS.fullmatch(entry.name):
                there[entry.name] = Path(entry.path)
                if _stat(Path(entry.path)) != known.get(entry.name):
                    changed.append((int(match[1]), Path(entry.path)))
        for name in known:
            if (match := ROLLOUTS.fullmatch(name)) and name not in there:
                with transaction(self._connection):
                    self._forget(int(match[1]), name)
                    self._connection.execute("UPDATE changes SET count = count + 1")
        return changed

    def _read_rollouts(self, step: int, path: Path) -> None:
        stat = _stat(path)
        rows, problems = list[list[Any]](), list[Problem]()
        lengths: defaultdict[tuple[str, str], list[tuple[int, bool]]] = defaultdict(list)
        for item in read_rollouts(path):
            if isinstance(item, Problem):
                problems.append(item)
                continue
            place, sample = item
            sample.step = step
            rows.append(values(sample, len(rows), place))
            is_sampled = sample.origin != "trace" and sample.finish_reason is not FinishReason.GIVEN_UP
            if sample.response_tokens is not None and is_sampled:
                is_cut_off = sample.finish_reason is FinishReason.LENGTH
                lengths[sample.kind, sample.role].append((sample.response_tokens, is_cut_off))
        with transaction(self._connection):
            self._forget(step, path.name)
            self._connection.executemany(INSERT, rows)
            spreads = [(step, *player, *_spread(some)) for player, some in sorted(lengths.items())]
            self._connection.executemany("INSERT INTO lengths VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", spreads)
            self._note(path.name, stat, 0, b"", problems)

    def _forget(self, step: int, name: str) -> None:
        for table in ("samples", "lengths"):
            self._connection.execute(f"DELETE FROM {table} WHERE step = ?", (step,))
        self._connection.execute("DELETE FROM files WHERE path = ?", (name,))
        self._connection.execute("DELETE FROM problems WHERE path = ?", (name,))

    def _note(self, name: str, stat: tuple[int, int], offset: int, tail: bytes, problems: list[Problem]) -> None:
        self._connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", (name, *stat, offset, tail))
        rows = [(name, clean(str(problem))) for problem in problems]
        self._connection.executemany("INSERT INTO problems VALUES (?, ?)", rows)
        self._connection.execute("UPDATE changes SET count = count + 1")


def _spread(lengths: list[tuple[int, bool]]) -> tuple[float, ...]:
    """Count, how many were cut off, mean, three percentiles and the longest."""
    tokens = sorted(length for length, _ in lengths)
    last = len(tokens) - 1
    percentiles = (tokens[round(share * last)] for share in (0.1, 0.5, 0.9))
    cut_off = sum(is_cut_off for _, is_cut_off in lengths)
    return len(tokens), cut_off, sum(tokens) / len(tokens), *percentiles, tokens[-1]


def _num_nodes(program: str) -> int | None:
    """Nodes of the syntax tree; None for what is no program."""
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
    """What comes right before the offset."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, offset - _TAIL))
            return file.read(min(offset, _TAIL))
    except OSError:
        return b""
