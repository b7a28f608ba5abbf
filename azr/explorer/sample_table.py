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
_ENCODER = msgspec.json.Encoder()
_TYPES = ((int, "INTEGER"), (float, "REAL"), (str, "TEXT"))


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of one record's fields: numbers and texts as they are, then everything else as JSON."""

    scalars: dict[str, str]
    """SQL type by name."""
    trees: dict[str, Any]
    """Default by name, for which NULL stands."""

    @property
    def sql(self) -> list[str]:
        types = self.scalars | dict.fromkeys(self.trees, "TEXT")
        return [f'"{name}" {sql_type}' for name, sql_type in types.items()]


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A row of the table: a sample without prompt and response, and where its line is."""

    sample: Sample
    line: int
    """Index among the step's samples, from 0."""
    place: LinePlace


def _columns(record: type, names: Sequence[str]) -> Columns:
    columns, hints = Columns({}, {}), get_type_hints(record)
    for each in fields(record):
        if each.name not in names:
            continue
        if sql_type := _scalar_type(hints[each.name]):
            columns.scalars[each.name] = sql_type
        else:
            columns.trees[each.name] = each.default if each.default_factory is MISSING else each.default_factory()
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
_SQL = [*_OF_SAMPLE.sql, *_OF_JUDGEMENT.sql]
TABLE = f"""
CREATE TABLE samples (
    n INTEGER PRIMARY KEY, line INTEGER, member INTEGER, start INTEGER, size INTEGER, {", ".join(_SQL)}
);
CREATE INDEX samples_of_step ON samples (step);
CREATE INDEX samples_of_problem ON samples (problem_id);
CREATE INDEX flagged ON samples (step) WHERE flags IS NOT NULL;
"""
INSERT = f"INSERT INTO samples VALUES (NULL{', ?' * (4 + len(_SQL))})"


def values(sample: Sample, line: int, place: LinePlace) -> list[Any]:
    """Return what `INSERT` takes; ``line``: index among the step's samples."""
    judgement = sample.judgement
    judged = [None] * len(_OF_JUDGEMENT.sql) if judgement is None else _values(judgement, _OF_JUDGEMENT)
    return [line, place.member, place.start, place.size, *_values(sample, _OF_SAMPLE), *judged]


def made(row: sqlite3.Row) -> SampleRow:
    """Return a row of the table as it was inserted, with long texts shortened."""
    judgement = None if row["verdict"] is None else _tree(row, _OF_JUDGEMENT)
    sample = msgspec.convert(_tree(row, _OF_SAMPLE) | {"judgement": judgement}, Sample, strict=False)
    return SampleRow(sample, row["line"], LinePlace(row["member"], row["start"], row["size"]))


def _values(record: Any, columns: Columns) -> list[Any]:
    scalars = [getattr(record, name) for name in columns.scalars]
    trees = [_text(getattr(record, name), default) for name, default in columns.trees.items()]
    return [value[:MAX_KEPT] if isinstance(value, str) else value for value in scalars] + trees


def _text(value: Any, default: Any) -> str | None:
    """Return the JSON of a value with long texts shortened; None for its default."""
    if value == default:
        return None
    text = _ENCODER.encode(value)
    return (text if len(text) <= MAX_KEPT else _ENCODER.encode(kept(value))).decode()


def kept(value: Any) -> Any:
    """Return a value with its long texts shortened."""
    if isinstance(value, str):
        return value[:MAX_KEPT]
    if isinstance(value, list | tuple):
        return [kept(each) for each in value]
    return {name: kept(each) for name, each in value.items()} if isinstance(value, dict) else value


def _tree(row: sqlite3.Row, columns: Columns) -> dict[str, Any]:
    trees = {name: json.loads(row[name]) for name in columns.trees if row[name] is not None}
    return {name: row[name] for name in columns.scalars} | trees
