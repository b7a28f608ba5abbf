"""Read seed files of the Absolute Zero authors' code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert

from azr.records import Task
from azr.selfplay.seeds import SeedLine, seed_lines

SINGLE_CALL_KINDS = ("deduction", "abduction")
"""Default kinds of a record with one call: the authors' code starts both from the same records."""
_MANY_CALLS_KIND = "induction"


class _Program(Struct, kw_only=True):
    snippet: str
    imports: list[str] = []


class _OneCall(_Program, kw_only=True):
    input: str
    output: str


class _ManyCalls(_Program, kw_only=True):
    inputs: list[str]
    outputs: list[str]
    message: str


def read_authors_seeds(path: Path, kinds: Sequence[str] = SINGLE_CALL_KINDS) -> list[SeedLine]:
    """Return the lines of one of their files. Raises UserError as `seed_lines`.

    A record of one call is a task of each of ``kinds``, one with a message and many inputs an induction.
    """
    no_task = "is no seed file of the authors' code {}: give one whose lines have a snippet."
    return seed_lines(path, lambda record, _: _tasks(record, kinds), no_task)


def _tasks(record: Mapping[str, Any], kinds: Sequence[str]) -> Iterator[Task]:
    """Raises ValueError with a few words."""
    try:
        stated = convert(record, _ManyCalls) if "inputs" in record else convert(record, _OneCall)
    except ValidationError as error:
        raise ValueError(f"the line is no record of a seed: {error}") from error
    program = with_imports(stated.snippet, stated.imports)
    if isinstance(stated, _ManyCalls):
        yield _task(_MANY_CALLS_KIND, program, stated.inputs, stated.outputs, stated.message)
    else:
        for kind in kinds:
            yield _task(kind, program, [stated.input], [stated.output])


def with_imports(snippet: str, imports: Sequence[str]) -> str:
    """Return the program, with the import lines that it lacks in front."""
    present = set(snippet.splitlines())
    missing = [line for line in dict.fromkeys(imports) if line not in present]
    return "\n".join([*missing, snippet])


def _task(kind: str, program: str, inputs: Sequence[str], outputs: Sequence[str], message: str = "") -> Task:
    return Task(
        id="", kind=kind, program=program, inputs=tuple(inputs), outputs=tuple(outputs), fingerprint="", message=message
    )
