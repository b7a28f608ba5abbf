"""Users' rows: their gold answers by grader, and suites that a TOML beside the data declares."""

from __future__ import annotations

import json
import math
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from azr import values
from azr.errors import UserError
from azr.evaluation.suites.files import Row, questions, text
from azr.executor.static_check import load
from azr.graders.choice import Choice
from azr.graders.code_blocks import defines
from azr.graders.mathematics import MathGold
from azr.graders.own import is_own
from azr.graders.programs import Tests, starter_calls
from azr.graders.question import GRADERS, GraderName, Question, Suite
from azr.graders.sandboxed import MAX_INPUT
from azr.graders.value import ProgramValue
from azr.text import brief, clipped

FIELDS: dict[GraderName, tuple[str, ...]] = {
    "math": ("answer",), "choice": ("answer", "options"), "value": ("program", "input", "output"),
    "calls": ("entry", "inputs", "outputs"), "stdin": ("inputs", "outputs"),
}  # fmt: skip
"""Fields that each built-in grader needs; a user's grader gets the whole row."""
TOLERANCE = "tolerance"
"""Optional field of a row for ``math``, ``calls`` and ``stdin``."""
assert FIELDS.keys() == set(GRADERS)
_NAME = re.compile(r"[\w+.-]+")
_PLACE = re.compile(r"\{(\w+)\}")
_STATED_NAME = re.compile(r"""^name\s*=\s*["']([\w+.-]+)["']""", re.MULTILINE)
"""The name in a TOML that cannot be read."""


def check_grader(name: object) -> None:
    """Raise ValueError if there is no grader of this name."""
    if not isinstance(name, str) or not (name in GRADERS or is_own(name)):
        raise ValueError(
            f"the grader {name!r} is none of {', '.join(GRADERS)}, no module:function and none of a package"
        )


def check_text(row: Mapping[str, Any]) -> None:
    """Raise ValueError if a row holds half a character, which no tokenizer takes."""
    try:
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise ValueError("its text holds half a character: correct or remove it") from error


def labels(options: Sequence[Any]) -> tuple[str, ...]:
    """Return the letters of the options of a choice."""
    return tuple(string.ascii_uppercase[: len(options)])


def gold(grader: GraderName, given: Mapping[str, Any], *, tolerance: float | None = None, asked: str = "output") -> Any:
    """Return the gold answer for a grader from the fields of a row.

    ``tolerance``: of ``math``, ``calls`` and ``stdin``, where the row has none of its own; it is absolute.
    ``asked``: of ``value``, ``output`` or ``input``.
    Raises KeyError with the name of a missing field, TypeError or ValueError for one of another form.
    """
    if is_own(grader):
        return json.loads(json.dumps(dict(given), default=str))
    stated = tolerance if given.get(TOLERANCE) is None else given[TOLERANCE]
    if isinstance(stated, bool) or not isinstance(stated, int | float | None) or not 0 <= (stated or 0) < math.inf:
        raise ValueError(f"its tolerance {stated!r} is not a number from 0")
    tolerance = None if stated is None else float(stated)
    given = {name: given[name] for name in FIELDS[grader]}
    match grader:
        case "math":
            answers = given["answer"] if isinstance(given["answer"], list) else [given["answer"]]
            if not answers or not all(map(_is_answer, answers)):
                raise TypeError(f"the answer {given['answer']!r} is neither text nor a number, nor a list of them")
            if tests := next(filter(is_tests, answers), None):
                raise ValueError(f"the answer {clipped(tests)!r} is tests of a program: its grader is calls or stdin")
            return MathGold(tuple(map(str, answers)), tolerance)
        case "choice":
            options, label = given["options"], given["answer"]
            if not isinstance(options, list) or not 2 <= len(options) <= len(string.ascii_uppercase):
                raise TypeError("its options are not a list of 2 to 26")
            letters = labels(options)
            if isinstance(label, int) and not isinstance(label, bool):
                label = letters[label] if 0 <= label < len(letters) else str(label)
            if label not in letters:
                raise ValueError(f"the answer {label!r} is none of {', '.join(letters)}")
            return Choice(label, letters)
        case "value":
            return _program_value(given, asked)
    inputs, outputs = given["inputs"], given["outputs"]
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise TypeError("inputs and outputs are not both lists")
    if len(inputs) != len(outputs) or not inputs:
        raise ValueError("there are not as many outputs as inputs, or none")
    if grader == "stdin":
        if others := [each for each in (*inputs, *outputs) if not isinstance(each, str)]:
            raise TypeError(f"an input or output is {brief(others[0])}: write as text what is read or printed")
        if any(len(repr(each).encode()) > MAX_INPUT for each in inputs):
            raise ValueError(f"an input is longer than {MAX_INPUT >> 20} MiB, the most that a program may read")
        return Tests(tuple(inputs), tuple(outputs), tolerance)
    if not isinstance(given["entry"], str) or not given["entry"].isidentifier():
        raise ValueError(f"its entry {given['entry']!r} is not a name of a function")
    if not all(isinstance(arguments, list) for arguments in inputs):
        raise TypeError("its inputs are not lists, of the arguments of one call each")
    return starter_calls(given["entry"], inputs, outputs, json=True, atol=tolerance or 0.0)


def is_tests(answer: object) -> bool:
    """Whether an answer is a program's tests, or their JSON text: an object, or a list of objects or assertions."""
    stated = answer
    if isinstance(answer, str) and answer.strip()[:1] in ("{", "["):
        try:
            stated = json.loads(answer)
        except (ValueError, RecursionError):
            return False
    if not isinstance(stated, dict | list):
        return False
    first = stated[0] if isinstance(stated, list) and stated else stated
    return bool(first) if isinstance(first, dict) else isinstance(first, str) and first.lstrip().startswith("assert ")


def _is_answer(value: object) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, int) and not isinstance(value, bool):
        return True
    return isinstance(value, float | Decimal) and math.isfinite(value)


def _program_value(given: Mapping[str, Any], asked: str) -> ProgramValue:
    if not all(isinstance(value, str) for value in given.values()):
        raise TypeError("its program, input and output are not all text")
    gold = ProgramValue(given["program"], asked, given["input"], given["output"])  # type: ignore[arg-type]
    if reasons := load(gold.program)[1]:
        raise ValueError(f"its program is refused: {'; '.join(reasons)}")
    try:
        values.parse(gold.output)
    except values.PlainDataError as error:
        raise ValueError(f"its output is not plain data: {error}") from error
    if not defines(gold.program, gold.entry):
        raise ValueError(f"its program does not define {gold.entry}")
    return gold


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


def read_declaration(path: Path) -> Suite | None:
    """Return the suite that a TOML declares; None for one with neither name nor file, which is about something else.
    Raises UserError when it declares none."""
    try:
        fields = tomllib.loads(path.read_text("utf-8-sig"))
        if fields.keys().isdisjoint(("name", "file")):
            return None
        stated = msgspec.convert(fields, Declaration)
        check_grader(stated.grader)
    except (OSError, ValueError, RecursionError) as error:  # also of tomllib, msgspec and the decoder of UTF-8
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise UserError(f"{path} declares no suite: {why}.") from error
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

    def read_row(stored: Row, number: int) -> Question:
        check_text(stored)
        row = {name: value for name, value in stored.items() if value is not None}  # as in rows to train on
        renamed = {name: row[field] for name, field in stated.fields.items() if field in row or name in needed}
        fields = {name: value for name, value in row.items() if name not in stated.fields} | renamed
        given = stored if is_own(stated.grader) else fields
        return Question(
            id=str(fields.get("id", number)),
            suite=name,
            group=str(fields.get("group", "all")),
            message=_message(stated, row, fields),
            problem="\n".join(str(row[name]) for name in _PLACE.findall(stated.prompt) if name in row),
            gold=gold(stated.grader, given, tolerance=stated.tolerance, asked=stated.asked),
            programs=(text(fields, "program"),) if stated.grader == "value" else (),
        )

    about = {field: getattr(stated, field) for field in ("name", "rows", "licence", "source", "grader")}
    sha256 = {stated.file: stated.sha256} if stated.sha256 else {}
    return Suite(files=(stated.file,), read_file=partial(questions, read=read_row), sha256=sha256, **about)


def declared(folder: Path, taken: Mapping[str, Suite]) -> dict[str, Suite]:
    """Return all suites that the folder's TOML files declare, by name. One that declares none, or whose name is taken,
    is a suite, by its name or else the file's, whose questions cannot be read: UserError is raised there."""
    found: dict[str, Suite] = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            if (suite := read_declaration(path)) is None:
                continue
            if suite.name in taken or suite.name in found:
                raise UserError(f"{path}: there is a suite {suite.name} already; give one of them another name.")
            found[suite.name] = suite
        except UserError as error:
            stated = _STATED_NAME.search(path.read_text(errors="replace")) if path.is_file() else None
            name = stated[1] if stated is not None else path.stem
            found[name] = Suite(
                name=name, files=(path.name,), rows=0, licence="not stated", source="a suite of your own",
                grader="math", read_file=partial(_refuse, error=error),
            )  # fmt: skip
    return found


def _refuse(file: Path, *, error: UserError) -> Sequence[Question]:
    raise error


def _message(stated: Declaration, row: Row, fields: Row) -> str:
    def fill(place: re.Match[str]) -> str:
        if place[1] == "options" and stated.grader == "choice":
            options = fields["options"]
            return "\n".join(f"{label}) {each}" for label, each in zip(labels(options), options, strict=True))
        return str(row[place[1]])

    return _PLACE.sub(fill, stated.prompt)
