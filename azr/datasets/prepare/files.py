"""The source's file and the file of rows: which forms there are, and how they are read and written."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from azr.datasets.rows import FORMATS
from azr.errors import UserError
from azr.evaluation.suites.files import Row, read_rows

READ = (".parquet", ".jsonl", ".jsonl.gz", ".json", ".json.gz")
_BATCH = 1_000
"""Rows of a parquet file that are written at once."""


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a file; of an array, as in Open-Reasoner-Zero's, its elements by their places.

    Raises UserError with the number of the first that cannot be read.
    """
    for row in read_rows(path, arrays=True):
        yield dict(zip(map(str, range(len(row))), row, strict=True)) if isinstance(row, list) else row


def check_files(source: Path, out: Path, *, overwrite: bool) -> None:
    """Raises UserError when one cannot be read or the other not written, as far as that is known beforehand."""
    if not source.is_file():
        raise UserError(f"There is no file {source}: give the published one that is to be prepared.")
    for path, known in ((source, READ), (out, FORMATS)):
        if not path.name.endswith(known):
            raise UserError(f"{path} is of no known form: its name must end with {', '.join(known)}.")
        if path.name.endswith(".parquet"):
            _pyarrow("pyarrow", path)
    if not out.parent.is_dir():
        raise UserError(f"There is no folder {out.parent} to write {out.name} into: make it, or name another file.")
    if out.exists() and out.samefile(source):
        raise UserError(f"{out} is the file that is to be prepared: name another one to write.")
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists already: name another file, or replace it by --overwrite.")


@contextlib.contextmanager
def written(out: Path, columns: tuple[str, ...]) -> Iterator[Callable[[Row], None]]:
    """``with written(out, columns) as write``; the file appears under its name when the block has ended well.

    ``columns``: fields of rows that are text, beside ``id``, ``source``, ``prompt``, ``grader`` and ``traces``.
    Raises UserError when there is no room.
    """
    staging = out.with_name(f".{out.name}.part")
    try:
        with _opened(staging, out.name, columns) as write:
            yield write
        os.replace(staging, out)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): name another file.") from error
    finally:
        with contextlib.suppress(OSError):  # where nothing can be written, nothing is left behind
            staging.unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(staging: Path, name: str, columns: tuple[str, ...]) -> Iterator[Callable[[Row], None]]:
    if name.endswith(".parquet"):
        with _parquet(staging, columns) as write:
            yield write
        return
    with staging.open("wb") as plain:
        # Without name and time the same rows are the same bytes.
        packed = gzip.GzipFile("", "wb", 6, plain, 0) if name.endswith(".gz") else contextlib.nullcontext(plain)
        with packed as file:

            def write(row: Row) -> None:
                file.write(f"{json.dumps(row, ensure_ascii=False)}\n".encode())

            yield write


@contextlib.contextmanager
def _parquet(staging: Path, columns: tuple[str, ...]) -> Iterator[Callable[[Row], None]]:
    arrow, parquet = _pyarrow("pyarrow", staging), _pyarrow("pyarrow.parquet", staging)
    text = arrow.string()
    turns = arrow.list_(arrow.struct({"role": text, "content": text}))
    schema = arrow.schema(
        {"id": text, "source": text, "prompt": turns, "grader": text}
        | dict.fromkeys(columns, text)
        | {"traces": arrow.list_(text)}
    )
    rows: list[Row] = []

    with parquet.ParquetWriter(staging, schema) as writer:

        def flush() -> None:
            writer.write_table(arrow.Table.from_pylist(rows, schema))
            rows.clear()

        def write(row: Row) -> None:
            rows.append(row)
            if len(rows) == _BATCH:
                flush()

        yield write
        flush()


def _pyarrow(module: str, path: Path) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{path} takes pyarrow, which is missing: pip install azr[eval]") from error
