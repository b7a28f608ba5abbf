"""Read files of suites: JSON lines, JSON arrays, gzip and parquet. Errors name the row."""

from __future__ import annotations

import gzip
import importlib
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, overload

from azr.errors import UserError
from azr.evaluation.question import Question

Row = dict[str, Any]
ReadRow = Callable[[Row, int], Question | None]
"""The question of a row and its number, counted from 1; None for a row that holds none. Whatever it raises of the
kinds in `ROW_ERRORS` is the row's fault."""
ROW_ERRORS = (
    KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, SyntaxError,
)  # fmt: skip


def find(folder: Path, names: tuple[str, ...]) -> Path:
    """Return the first existing file. Raises UserError when there is none."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder} has no {' or '.join(names)}: see `azr eval --list` for where it comes from.")


@overload
def read_rows(path: Path) -> Iterator[Row]: ...
@overload
def read_rows(path: Path, *, arrays: bool) -> Iterator[Row | list[Any]]: ...
def read_rows(path: Path, *, arrays: bool = False) -> Iterator[Any]:
    """Return the rows of a file in order; with ``arrays``, a row may be a JSON array too.

    Raises UserError with the number of the first that cannot be read.
    """
    number = 0
    try:
        for number, row in enumerate(_rows(path), 1):  # noqa: B007
            if type(row) is not dict and not (arrays and type(row) is list):
                raise ValueError("it is no JSON object" + " or array" * arrays)
            yield row
    except (ValueError, RecursionError, OSError, EOFError, zlib.error) as error:
        at = error.args[0] if isinstance(error, _BadLine) else number
        raise UserError(f"{path}, row {at or 1}: {error.args[-1]}; get the file again.") from error


class _BadLine(ValueError):
    """Return the number of the line and its error."""


def _rows(path: Path) -> Iterator[Any]:
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        if path.name.removesuffix(".gz").endswith(".json"):
            rows = json.loads(file.read().decode())
            if type(rows) is not list:
                raise _BadLine(1, "the file is no JSON array")
            yield from rows
            return
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield json.loads(line.decode())
                except (ValueError, RecursionError) as error:
                    raise _BadLine(number, f"it is no JSON ({type(error).__name__})") from error


def _parquet(path: Path) -> Iterator[Any]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UserError(f"{path} is read by pyarrow, which is missing: pip install azr[eval]") from error
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(1_024):
            yield from batch.to_pylist()


def questions(path: Path, read: ReadRow) -> list[Question]:
    """Return the questions of a file.

    Raises UserError with the file and the number of the first row that is no row of the suite, or repeats an id.
    """
    found: list[Question] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(read_rows(path), 1):
        try:
            question = read(row, number)
        except ROW_ERRORS as error:
            what = f"it has no field {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
            raise UserError(f"{path}, row {number}: this is no row of the suite ({what[:300]}).") from error
        if question is None:
            continue
        if question.id in seen:
            raise UserError(f"{path}, row {number}: the id {question.id!r} is that of row {seen[question.id]} too.")
        seen[question.id] = number
        found.append(question)
    if not found:
        raise UserError(f"{path} holds no questions: get the file again.")
    return found


def reader(names: tuple[str, ...], read: ReadRow) -> Callable[[Path], list[Question]]:
    """Return a function that reads the questions of the first existing file in a folder."""
    return lambda folder: questions(find(folder, names), read)


def text(row: Row, name: str) -> str:
    """Return a field that must be text. Raises KeyError or TypeError."""
    value = row[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text")
    return value
