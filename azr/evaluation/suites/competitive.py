"""Code generation with hidden tests: LiveCodeBench and APPS, as functions and as programs that read standard input."""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

from azr.evaluation.graders.calls import STARTER_IMPORTS, Calls
from azr.evaluation.graders.sandboxed import DEEP_RECURSION, case_text
from azr.evaluation.graders.stdin import Tests
from azr.evaluation.question import Question, Suite
from azr.evaluation.suites.files import Row, find, questions, reader, text

MAX_TESTS_BYTES = 2**28
"""Most bytes of private tests of one problem, unpacked."""
_PROGRAM = (
    "{problem}\n\nWrite a Python program that reads from standard input and writes to standard output. Give the whole "
    "program in one block that begins with ```python."
)
_FUNCTION = (
    "{problem}\n\nStart from this code:\n```python\n{starter}\n```\n\nGive the whole program in one block that begins "
    "with ```python."
)
_CALLED = (
    "{problem}\n\nWrite a Python function with the name {name}. Give the whole program in one block that begins with "
    "```python."
)


class _PlainUnpickler(pickle.Unpickler):
    """Admits no class or function, so unpickling builds plain data and runs nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"the private tests name {module}.{name}, which plain data does not")

    def persistent_load(self, id: Any) -> Any:
        raise ValueError("the private tests refer to something outside")


def private_tests(packed: str) -> list[dict[str, Any]]:
    """Read tests from JSON text, or from base64 of zlib of a pickle of JSON text. Raises ValueError for other data."""
    try:
        tests = json.loads(packed)
    except ValueError:
        try:
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(base64.b64decode(packed.encode(), validate=True), MAX_TESTS_BYTES)
            if unpacker.unconsumed_tail:
                raise ValueError("the private tests are too long")
            tests = _PlainUnpickler(io.BytesIO(data)).load()
        except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, IndexError, KeyError) as error:
            raise ValueError(f"the private tests cannot be read ({type(error).__name__})") from error
        if not isinstance(tests, str):
            raise ValueError("the pickle of the private tests holds no text") from None
        tests = json.loads(tests)
    if not isinstance(tests, list):
        raise ValueError("the private tests are no list")
    return tests


def _calls(name: str, inputs: list[list[Any]], outputs: list[Any], *, json: bool = False) -> Calls:
    return Calls(
        entry=name,
        cases={"tests": tuple(case_text(arguments) for arguments in inputs)},
        expected={"tests": tuple(outputs)},
        prelude=STARTER_IMPORTS,
        recursion=DEEP_RECURSION,
        outer_list=True,
        json=json,
    )


def _livecodebench_row(row: Row, number: int) -> Question:
    problem, starter = text(row, "question_content"), text(row, "starter_code")
    metadata = row.get("metadata") or {}
    metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
    tests = json.loads(text(row, "public_test_cases")) + private_tests(text(row, "private_test_cases"))
    if not tests:
        raise ValueError("there are no tests")
    inputs, outputs = [str(test["input"]) for test in tests], [str(test["output"]) for test in tests]
    name = metadata.get("func_name")
    gold: Any
    if name:
        arguments = [[json.loads(line) for line in given.split("\n") if line.strip()] for given in inputs]
        gold = _calls(str(name), arguments, [json.loads(output) for output in outputs])
        message = _FUNCTION.format(problem=problem.rstrip(), starter=starter.rstrip())
    else:
        gold = Tests(tuple(inputs), tuple(outputs), tolerance=0.0)
        message = _PROGRAM.format(problem=problem.rstrip())
    return Question(
        id=text(row, "question_id"),
        suite="livecodebench",
        group=text(row, "difficulty"),
        message=message,
        problem=problem,
        gold=gold,
    )


def _apps_row(row: Row, number: int) -> Question | None:
    tests = row["input_output"]
    tests = json.loads(tests) if isinstance(tests, str) and tests.strip() else tests
    if not tests or not tests["inputs"]:
        return None
    inputs, outputs = list(tests["inputs"]), list(tests["outputs"])
    if len(inputs) != len(outputs):
        raise ValueError("there are not as many outputs as inputs")
    problem, starter, name = text(row, "question"), str(row.get("starter_code") or ""), tests.get("fn_name")
    gold: Any
    if name:
        # Outputs come in a list of one.
        wanted = [output[0] if isinstance(output, list) and len(output) == 1 else output for output in outputs]
        gold = _calls(str(name), [list(arguments) for arguments in inputs], wanted, json=True)
        form = _FUNCTION if starter.strip() else _CALLED
        message = form.format(problem=problem.rstrip(), starter=starter.rstrip(), name=name)
    else:
        gold = Tests(tuple(map(_lines, inputs)), tuple(map(_lines, outputs)), tolerance=0.0)
        message = _PROGRAM.format(problem=problem.rstrip())
    solutions = row.get("solutions") or "[]"
    programs = json.loads(solutions) if isinstance(solutions, str) else solutions
    return Question(
        id=str(row["problem_id"] if "problem_id" in row else row["id"]),
        suite="apps",
        group=str(row.get("difficulty") or "all"),
        message=message,
        problem=problem,
        gold=gold,
        programs=tuple(str(program) for program in programs[:1]),
    )


def _lines(stated: Any) -> str:
    """Return a text that may be given as its lines."""
    return "\n".join(map(str, stated)) if isinstance(stated, list) else str(stated)


_LIVECODEBENCH = ("test.jsonl", "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl")
_APPS = ("apps_test.jsonl", "apps_test.jsonl.gz")


def _read_livecodebench(folder: Path) -> list[Question]:
    """Return the existing files among the first five, which are version 5."""
    paths = _livecodebench_files(folder)
    if not paths:
        find(folder / "livecodebench", _LIVECODEBENCH)
    return [question for path in paths for question in questions(path, _livecodebench_row)]


def _livecodebench_files(folder: Path) -> list[Path]:
    place = folder / "livecodebench" if (folder / "livecodebench").is_dir() else folder
    return [place / name for name in _LIVECODEBENCH if (place / name).is_file()]


SUITES = (
    Suite(
        name="livecodebench",
        files=tuple(f"livecodebench/{name}" for name in _LIVECODEBENCH),
        rows=880,
        licence="CC (data card)",
        source="test.jsonl to test5.jsonl (version 5) of the data set livecodebench/code_generation_lite, in a folder "
        "livecodebench; fewer files make a smaller suite",
        grader="calls",
        read=_read_livecodebench,
        locate=_livecodebench_files,
        metric="pass@1",
    ),
    Suite(
        name="apps",
        files=_APPS,
        rows=5000,
        licence="MIT",
        source="test.jsonl of the data set codeparrot/apps, saved under this name",
        grader="calls",
        read=reader(_APPS, _apps_row),
        metric="strict accuracy",
    ),
)
