"""Users' suites: a TOML beside the data declares file, fields, prompt and grader."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from azr.errors import UserError
from azr.evaluation.graders.own import is_own
from azr.evaluation.question import GraderName, Question, Suite
from azr.evaluation.suites.files import Row, reader, text
from azr.evaluation.suites.golds import FIELDS, TOLERANCE, check_grader, gold, labels

_NAME = re.compile(r"[\w+.-]+")
_PLACE = re.compile(r"\{(\w+)\}")


class Declaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Declaration of a user's suite."""

    name: str
    file: str
    """JSON lines, a JSON array or parquet, beside the TOML."""
    grader: GraderName
    prompt: str
    """The user turn; ``{field}`` stands for a field of the row, ``{options}`` for the labelled options of a choice."""
    licence: str = "not stated"
    source: str = "a suite of your own"
    fields: Mapping[str, str] = {}
    """Names in the file of the grader's fields, ``id`` and ``group``, if they differ."""
    tolerance: float | None = None
    """Tolerance of ``math``, ``calls`` and ``stdin``; a row may have its own."""
    asked: str = "output"
    """For ``value``: ``output`` or ``input``."""
    rows: int = 0
    sha256: str = ""


def read_declaration(path: Path) -> Suite:
    """Return the suite that a TOML declares. Raises UserError when it declares none."""
    try:
        stated = msgspec.convert(tomllib.loads(path.read_text("utf-8-sig")), Declaration)
        check_grader(stated.grader)
    except ValueError as error:  # also of tomllib, msgspec and the decoder of UTF-8
        raise UserError(f"{path} declares no suite: {error}.") from error
    needed = FIELDS.get(stated.grader, ())
    known = sorted({*needed, TOLERANCE, "id", "group"})
    if unknown := sorted(stated.fields.keys() - known):
        listed = ", ".join(known)
        raise UserError(f"{path}: fields names {unknown[0]!r}, and the grader {stated.grader} knows {listed}.")
    if stated.asked not in ("output", "input"):
        raise UserError(f"{path}: asked is output or input, not {stated.asked!r}.")
    name = stated.name
    if not _NAME.fullmatch(name):
        raise UserError(f"{path}: the name {name!r} is not of letters, digits, '+', '-', '_' and '.' alone.")

    def read_row(row: Row, number: int) -> Question:
        renamed = {name: row[field] for name, field in stated.fields.items() if field in row or name in needed}
        fields = {name: value for name, value in row.items() if name not in stated.fields} | renamed
        given = row if is_own(stated.grader) else fields
        return Question(
            id=str(fields.get("id", number)),
            suite=name,
            group=str(fields.get("group", "all")),
            message=_message(stated, row, fields),
            problem="\n".join(str(row[name]) for name in _PLACE.findall(stated.prompt) if name in row),
            gold=gold(stated.grader, given, tolerance=stated.tolerance, asked=stated.asked),
            programs=(text(fields, "program"),) if stated.grader == "value" else (),
        )

    return Suite(
        name=name,
        files=(stated.file,),
        rows=stated.rows,
        licence=stated.licence,
        source=stated.source,
        grader=stated.grader,
        read=reader((stated.file,), read_row),
        sha256={stated.file: stated.sha256} if stated.sha256 else {},
    )


def declared(folder: Path, taken: Mapping[str, Suite]) -> dict[str, Suite]:
    """Return all suites that the folder's TOML files declare, by name. Raises UserError for a name that is taken."""
    found: dict[str, Suite] = {}
    for path in sorted(folder.glob("*.toml")):
        suite = read_declaration(path)
        if suite.name in taken or suite.name in found:
            raise UserError(f"{path}: there is a suite {suite.name} already; give this one another name.")
        found[suite.name] = suite
    return found


def _message(stated: Declaration, row: Row, fields: Row) -> str:
    def fill(place: re.Match[str]) -> str:
        if place[1] == "options" and stated.grader == "choice":
            options = fields["options"]
            return "\n".join(f"{label}) {each}" for label, each in zip(labels(options), options, strict=True))
        return str(row[place[1]])

    return _PLACE.sub(fill, stated.prompt)
