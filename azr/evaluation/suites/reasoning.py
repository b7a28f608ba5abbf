"""Code reasoning: CruxEval in both directions, and LiveCodeBench's execution."""

from __future__ import annotations

import ast
from typing import Literal

from azr.evaluation.graders.value import ProgramValue
from azr.evaluation.question import Question, Suite
from azr.evaluation.suites.files import Row, reader, text

_OUTPUT = (
    "Here are a Python program and a call of its function. Work out what the call returns. Think it through step by "
    "step, and give the returned value as a Python literal in a last block that begins with ```output.\n\n"
    "```python\n{program}\n```\n\nThe call is:\n```python\n{entry}({input})\n```"
)
_INPUT = (
    "Here are a Python program and a value. Find arguments for which its function {entry} returns this value; where "
    "several are right, give any of them. Think it through step by step, and give what would stand between the "
    "parentheses of the call in a last block that begins with ```input.\n\n"
    "```python\n{program}\n```\n\nThe value is:\n```python\n{output}\n```"
)


def ask(gold: ProgramValue) -> str:
    """Return the user turn that asks for the output of a program, or for an input."""
    form = _INPUT if gold.asked == "input" else _OUTPUT
    return form.format(program=gold.program.strip("\n"), entry=gold.entry, input=gold.input, output=gold.output)


def _question(suite: str, id: str, group: str, gold: ProgramValue) -> Question:
    return Question(
        id=id, suite=suite, group=group, message=ask(gold), problem=gold.program, gold=gold, programs=(gold.program,)
    )


def _cruxeval(name: str, asked: Literal["input", "output"]) -> Suite:
    def read_row(row: Row, number: int) -> Question:
        program = text(row, "code")
        ast.parse(program)
        gold = ProgramValue(program, asked, text(row, "input"), text(row, "output"))
        return _question(name, text(row, "id"), "all", gold)

    return Suite(
        name=name,
        files=_CRUXEVAL,
        rows=800,
        licence="MIT",
        source="data/cruxeval.jsonl of github.com/facebookresearch/cruxeval",
        grader="value",
        read=reader(_CRUXEVAL, read_row),
        metric="pass@1",
        sha256={"cruxeval.jsonl": "8368b81047dc5014e4caf5a2f97604eff7644e0ecd7415e3ceeb184bbc2e0c96"},
    )


_CRUXEVAL = ("cruxeval.jsonl",)
_EXECUTION = ("livecodebench_execution.jsonl", "execution-v2.jsonl")


def _execution_row(row: Row, number: int) -> Question:
    program, entry = text(row, "code"), text(row, "function_name")
    call = ast.parse(text(row, "input"), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != entry:
        raise ValueError(f"input is no call of {entry}")
    arguments = ast.get_source_segment(row["input"], call) or ""
    arguments = arguments[arguments.index("(") + 1 : arguments.rindex(")")]
    gold = ProgramValue(program, "output", arguments, text(row, "output"), entry)
    return _question("livecodebench-execution", str(row["id"]), str(row.get("difficulty", "all")), gold)


SUITES = (
    _cruxeval("cruxeval-i", "input"),
    _cruxeval("cruxeval-o", "output"),
    Suite(
        name="livecodebench-execution",
        files=_EXECUTION,
        rows=479,
        licence="CC (data card)",
        source="test.jsonl of the data set livecodebench/execution-v2, saved under one of these names",
        grader="value",
        read=reader(_EXECUTION, _execution_row),
        metric="pass@1",
    ),
)
