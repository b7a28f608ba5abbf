"""Read prompts.toml, and files of suites: JSON lines, JSON arrays, gzip and parquet. Errors name the row."""

from __future__ import annotations

import codecs
import gzip
import json
import math
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from azr.errors import UserError
from azr.graders.question import Question

PROMPTS = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
"""Texts of user turns, with places for what a question holds."""
Row = dict[str, Any]
ReadRow = Callable[[Row, int], Question]
"""The question of a row and its number, counted from 1. Whatever it raises of `ROW_ERRORS` is the row's fault."""
ROW_ERRORS = (
    KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, SyntaxError,
)  # fmt: skip
_START_BYTES = 4_096
_BOM = codecs.BOM_UTF8
_STARTS = {
    b"version https://git-lfs": "a Git LFS pointer, and not the file that it stands for: `git lfs pull` gets that",
    **dict.fromkeys((b"<!doctype html", b"<html"), "an HTML page, such as a log-in: download the file itself"),
    **dict.fromkeys((b"<?xml", b"<error"), "an XML page, such as a server's error: download the file itself"),
    b"pk\x03\x04": "a zip archive: unpack it",
    b"(\xb5/\xfd": "compressed by zstd: unpack it",
    b"bzh": "compressed by bzip2: unpack it",
    b"\xfd7zxz": "compressed by xz: unpack it",
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "UTF-32 text: save it as UTF-8"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "UTF-16 text: save it as UTF-8"),
}
"""Beginnings of files that hold no rows, in lower case, and their kinds."""
_MOST_SPREAD = 2**24
"""Longest row over several lines that is recognised, bytes."""
_MOST_UNPACKED, _MOST_RATIO = 2**28, 100
"""Bytes of rows from which on gzip may not have packed them by more than this."""
_GZIP, _PARQUET = b"\x1f\x8b", b"par1"


def read_rows(path: Path) -> Iterator[Row]:
    """Return the rows of a file in order. Raises UserError with the number of the first that cannot be read."""
    number = 0
    _check_kind(path)
    try:
        for number, row in enumerate(_rows(path), 1):
            if type(row) is list:
                raise _bad_row(path, number, "it is not a JSON object, but an array: write one object on each line")
            if type(row) is not dict:
                raise _bad_row(path, number, "it is not a JSON object: correct it, or get the file again")
            yield row
    except UserError:
        raise
    except (ValueError, RecursionError, OSError, EOFError, zlib.error) as error:
        said = str(error.args[-1]).rstrip(".") if error.args else type(error).__name__
        raise UserError(f"{path}, row {number or 1}: {said}; get the file again.") from error


def _bad_row(path: Path, number: int, why: str) -> UserError:
    return UserError(f"{path}, row {number}: {why}.")


def _check_kind(path: Path) -> None:
    """Raise UserError if the file is of another kind than its name says."""
    try:
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    begins, suffix = start.removeprefix(_BOM).lstrip().lower(), path.suffix
    is_gzip, is_json = begins.startswith(_GZIP), begins.startswith((b"{", b"["))
    kinds = [
        *((begins.startswith(known), what) for known, what in _STARTS.items()),
        (suffix != ".gz" and is_gzip, "compressed by gzip: its name must end with .gz"),
        (suffix == ".gz" and start and not is_gzip, "not compressed by gzip: its name must not end with .gz"),
        (suffix != ".parquet" and begins.startswith(_PARQUET), "a parquet file: its name must end with .parquet"),
        (suffix == ".parquet" and is_json, "JSON: its name must end with .jsonl or .json"),
        (suffix not in (".parquet", ".gz") and b"\0" in start, "UTF-16 text or no text at all: save it as UTF-8"),
    ]
    for what in (what for is_this, what in kinds if is_this):
        raise UserError(f"{path} is {what}.")


def _rows(path: Path) -> Iterator[Any]:
    if path.suffix == ".parquet":
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            said = f"{path} takes pyarrow, which is missing: run pip install -e '.[eval]' in the clone"
            raise UserError(said) from error
        with ParquetFile(path) as file:
            for batch in file.iter_batches(1_024):
                yield from batch.to_pylist()
        return
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        if path.name.removesuffix(".gz").endswith(".json"):
            rows = _json(b"".join(_pieces(path, file.read)).removeprefix(_BOM), path, 1)
            if type(rows) is not list:
                raise _bad_row(path, 1, "the file is not a JSON array: write its rows between [ and ]")
            yield from rows
            return
        for number, line in enumerate(_pieces(path, file.readline), 1):
            if line := line.removeprefix(_BOM).strip():
                try:
                    row = _json(line, path, number)
                except UserError as error:
                    # Only here is the rest of the file read: the row may continue there.
                    if _is_spread(line + b"\n" + file.read(_MOST_SPREAD)):
                        why = "its JSON takes several lines: write each row on one line"
                        raise _bad_row(path, number, why) from error
                    raise
                yield row


def _pieces(path: Path, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield what a file holds. Raise UserError for a bomb of gzip: a few megabytes that become gigabytes."""
    most = max(_MOST_UNPACKED, _MOST_RATIO * path.stat().st_size) if path.suffix == ".gz" else math.inf
    unpacked = 0
    while piece := read(_MOST_UNPACKED):
        if (unpacked := unpacked + len(piece)) > most:
            raise UserError(f"{path} unpacks to over {_MOST_RATIO} times its size, as no rows do: get the file again.")
        yield piece


class _TwiceError(ValueError):
    """An object of a row has a key twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _TwiceError(next(key for (key, _), new in zip(pairs, [*found, None], strict=False) if key != new))
    return found


def _json(text: bytes, path: Path, number: int) -> Any:
    try:
        return json.loads(text.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        match error:
            case _TwiceError():
                why = f"it has the key {str(error)!r} twice: leave one of them out"
            case UnicodeDecodeError():
                why = "it is not JSON, for its text is not UTF-8: save the file as UTF-8"
            case json.JSONDecodeError(msg=said, colno=column, doc=stated):
                place = f"at column {column} of {stated[:40]!r}"
                why = f"it is not JSON ({said}, {place}): correct it, or get the file again"
                if said == "Extra data" and stated[:1] in ("{", "["):
                    why = f"it is more than one JSON value, {place}: write each on a line of its own"
            case RecursionError():
                why = "it is JSON that is nested too deeply: correct it, or get the file again"
            case _:  # the only other ValueError of json.loads
                why = f"it holds a number of over {sys.get_int_max_str_digits():,} digits: write it as text"
        raise _bad_row(path, number, why) from error


def _is_spread(text: bytes) -> bool:
    """Whether a text begins with a row or an array that takes several lines."""
    stated = text.decode(errors="replace")
    try:
        _, end = json.JSONDecoder().raw_decode(stated)
    except (ValueError, RecursionError):
        return False
    return "\n" in stated[:end]


def questions(path: Path, read: ReadRow, *, repeats: bool = False) -> list[Question]:
    """Return the questions of a file. Raises UserError with the file and the number of the first row that is not one of
    the suite, or repeats an id. ``repeats``: it may, and is left out: LUFFY's file has AIME and AMC 32 times, but an
    evaluation draws its samples itself."""
    found: list[Question] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(read_rows(path), 1):
        try:
            question = read(row, number)
        except ROW_ERRORS as error:
            what = f"it has no field {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
            raise UserError(f"{path}, row {number}: this is not a row of the suite ({what[:300]}).") from error
        first = seen.setdefault(question.id, number)
        if first == number:
            found.append(question)
        elif not repeats:
            raise UserError(f"{path}, row {number}: the id {question.id!r} is that of row {first} too.")
    if not found:
        raise UserError(f"{path} holds no questions: get the file again.")
    return found


def text(row: Row, name: str) -> str:
    """Return a field that must be text. Raises KeyError or TypeError."""
    value = row[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is not text")
    return value
