"""CRUXEval: what a program returns, and an input that makes it return something."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from azr.datasets.prepare.example import Example, Options, Source, text
from azr.evaluation.graders.value import ProgramValue
from azr.evaluation.suites.prompts import chat_message


def _read(row: Mapping[str, Any], options: Options) -> Iterator[Example]:
    program = text(row["code"], "its code")
    ast.parse(program)
    given, returned = row["input"], row["output"]
    if not isinstance(given, str) or not (returned is None or isinstance(returned, str)):
        raise TypeError("its input or output is no text")
    for asked in options.asked:
        gold = ProgramValue(program, cast(Literal["output", "input"], asked), given, returned or "")
        yield Example(
            prompt=({"role": "user", "content": chat_message(gold)},),
            question=program,
            answer={"program": program, "input": given, "output": returned, "asked": asked} if returned else None,
            source=f"cruxeval-{asked[0]}",
            part=asked,
        )


SOURCE = Source(
    name="cruxeval",
    about="CRUXEval's data/cruxeval.jsonl: programs with an input and the output",
    fields=("code", "input", "output"),
    form="code, input, output",
    grader="value",
    columns=("program", "input", "output", "asked"),
    read=_read,
    options=("asked",),
)
