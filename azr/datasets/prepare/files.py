"""Read a source's file or a data set of the hub, and read and write files of rows, in all their formats."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from huggingface_hub import HfApi, constants

from azr.datasets.rows import FORMATS
from azr.errors import UserError
from azr.evaluation.suites.files import Row, read_rows
from azr.hardware import cache_folder
from azr.runs.model_folder import HUB_S, hub_errors, must_be_local

READ = (".parquet", ".jsonl", ".jsonl.gz", ".json", ".json.gz")
_BATCH = 1_000
"""Rows of a parquet file that are written at once."""
_DATA_SET = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?(?::(?P<split>[\w.-]+))?")


def is_on_hub(named: str) -> bool:
    """Whether a path can only be a data set of the hub: OWNER/NAME or OWNER/NAME/CONFIG, with or without :SPLIT."""
    match = _DATA_SET.fullmatch(named)
    return match is not None and not named.endswith(READ) and not must_be_local(match["name"])


@cache
def rows_file(named: str) -> Path:
    """Return the file that is named, or the rows of a folder or a data set of the hub as JSON lines in the cache.

    Raises UserError if the package `datasets` or the data set is missing, or the hub does not answer.
    """
    place, _, split = named.partition(":")
    if is_on_hub(named):
        owner, name, *subset = place.split("/")
        source = [f"{owner}/{name}", *subset]
    elif Path(place).is_dir():
        source = [str(Path(place).resolve())]
    else:
        return Path(named)
    if find_spec("datasets") is None:
        raise UserError(f"{named} takes the package datasets: run pip install -e '.[hub]' in the clone.")
    with hub_errors(f"{named} is no file, and no data set that can be read (HF_HUB_OFFLINE=1 uses the cache alone)"):
        if is_on_hub(named) and not constants.HF_HUB_OFFLINE:
            HfApi().dataset_info(source[0], timeout=HUB_S)  # `datasets` would try for half a minute
        rows = importlib.import_module("datasets").load_dataset(*source, split=split or "train")
    name = "--".join([*source, split or "train"]).replace("/", "--")
    out = cache_folder() / "rows" / f"{name}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    with written(out, ()) as write:
        for row in rows:
            write(row)
    return out


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
                file.write(f"{json.dumps(row, ensure_ascii=False, default=str)}\n".encode())

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
        raise UserError(f"{path} takes pyarrow, which is missing: run pip install -e '.[eval]' in the clone") from error
