"""Table ``samples`` of the index: a column for every field of `Sample` and `Judgement` but prompt and response."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from azr.explorer.record_files import LinePlace
from azr.records import Judgement, Sample
from azr.runs.sample_file import FIELDS

MAX_KEPT = 2000
"""Characters that the index keeps of a text; the file has all of it."""
_TYPES = ((int, "INTEGER"), (float, "REAL"), (str, "TEXT"))


@dataclass(frozen=True, slots=True)
class Column:
    """A column with one field's values: numbers and short texts as they are, everything else as JSON."""

    name: str
    sql_type: str
    is_json: bool
    default: Any
    """NULL stands for it in a column of JSON."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A row of the table: a sample without prompt and response, and where its line is."""

    sample: Sample
    line: int
    """Index among the step's samples, from 0."""
    place: LinePlace


def _columns(record: type, names: Sequence[str]) -> list[Column]:
    hints, columns = get_type_hints(record), []
    for each in fields(record):
        if each.name in names:
            sql_type = _scalar_type(hints[each.name])
            default = each.default if each.default_factory is MISSING else each.default_factory()
            columns.append(Column(each.name, sql_type or "TEXT", sql_type is None, default))
    return columns


def _scalar_type(hint: Any) -> str | None:
    """Return the SQL type of a number or a text, which may be None; None for any other type."""
    if get_origin(hint) is UnionType:
        options = [each for each in get_args(hint) if each is not NoneType]
        return _scalar_type(options[0]) if len(options) == 1 else None
    if get_origin(hint) is Literal:
        return "TEXT"
    known = (name for base, name in _TYPES if isinstance(hint, type) and issubclass(hint, base))
    return next(known, None)


_OF_SAMPLE = _columns(Sample, [name for name in FIELDS if name not in ("prompt", "response", "judgement")])
_OF_JUDGEMENT = _columns(Judgement, [each.name for each in fields(Judgement)])
_COLUMNS = ", ".join(f'"{each.name}" {each.sql_type}' for each in (*_OF_SAMPLE, *_OF_JUDGEMENT))
TABLE = f"""
CREATE TABLE samples (
    n INTEGER PRIMARY KEY, line INTEGER, member INTEGER, start INTEGER, size INTEGER, {_COLUMNS}
);
CREATE INDEX samples_of_step ON samples (step);
CREATE INDEX samples_of_problem ON samples (problem_id);
CREATE INDEX flagged ON samples (step) WHERE flags IS NOT NULL;
"""
INSERT = f"INSERT INTO samples VALUES (NULL{', ?' * (4 + len(_OF_SAMPLE) + len(_OF_JUDGEMENT))})"


def values(row: SampleRow) -> tuple[Any, ...]:
    """Return what `INSERT` takes."""
    place, judgement = row.place, row.sample.judgement
    judged = [None] * len(_OF_JUDGEMENT) if judgement is None else [_value(judgement, each) for each in _OF_JUDGEMENT]
    of_sample = [_value(row.sample, each) for each in _OF_SAMPLE]
    return (row.line, place.member, place.start, place.size, *of_sample, *judged)


def made(row: sqlite3.Row) -> SampleRow:
    """Return a row of the table as it was inserted, with long texts shortened."""
    judgement = None if row["verdict"] is None else _tree(row, _OF_JUDGEMENT)
    sample = msgspec.convert(_tree(row, _OF_SAMPLE) | {"judgement": judgement}, Sample, strict=False)
    return SampleRow(sample, row["line"], LinePlace(row["member"], row["start"], row["size"]))


def _value(record: Any, column: Column) -> Any:
    value = getattr(record, column.name)
    if not column.is_json:
        return kept(value)
    if value == column.default:
        return None
    text = msgspec.json.encode(value)
    return (text if len(text) <= MAX_KEPT else msgspec.json.encode(kept(value))).decode()


def kept(value: Any) -> Any:
    """Return a value with its long texts shortened."""
    if isinstance(value, str):
        return value[:MAX_KEPT]
    if isinstance(value, list | tuple):
        return [kept(each) for each in value]
    return {name: kept(each) for name, each in value.items()} if isinstance(value, dict) else value


def _tree(row: sqlite3.Row, columns: Sequence[Column]) -> dict[str, Any]:
    pairs = ((column, row[column.name]) for column in columns)
    return {
        column.name: json.loads(value) if column.is_json else value
        for column, value in pairs
        if not (column.is_json and value is None)
    }
