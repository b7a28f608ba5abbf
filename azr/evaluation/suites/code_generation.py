"""Code generation, judged by calls (HumanEval, HumanEval+, MBPP+) and by hidden tests (LiveCodeBench).

The hidden tests call a function, or run a program on standard input.
"""

from __future__ import annotations

import ast
import base64
import json
import pickletools
import tomllib
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from azr.evaluation.suites.files import PROMPTS, Row, text
from azr.graders.programs import Calls, Tests, starter_calls
from azr.graders.question import Question
from azr.graders.sandboxed import PLAIN_JSON, case_text

MAX_TESTS_BYTES = 2**28
"""Most bytes of private tests of one problem, unpacked."""
_RECORDER = """
def record():
    import copy, random
    random.seed(0)
    task, taken = {{}}, []
    exec(compile({task!r}, "task", "exec"), task)

    def recorded(*arguments):
        taken.append(json.dumps(encode(list(copy.deepcopy(arguments)))))
        return task[{entry!r}](*arguments)

    task["check"](recorded)
    return taken
"""
_JUDGES = tomllib.loads(Path(__file__).with_name("judges.toml").read_text(encoding="utf-8"))
"""Rules, of HumanEval also tolerances, of tests that do not ask for equality, by task."""


def _humaneval_row(suite: str, row: Row, number: int) -> Question:
    id, prompt, entry = text(row, "task_id"), text(row, "prompt"), text(row, "entry_point")
    ast.parse(reference := prompt + text(row, "canonical_solution"))
    judge, atol = _JUDGES["humaneval"].get(id.partition("/")[2], ("", 0.0))
    cases: Mapping[str, tuple[str, ...]] = {"base": ()}
    recorder = ""
    if suite == "humaneval":
        ast.parse(test := text(row, "test"))
        task = f"{reference}\n{test}"
        recorder = f"import json\n{PLAIN_JSON}{_RECORDER.format(task=task, entry=entry)}"
    else:
        cases = _plus_cases(row, list)
        judge, atol = (judge, max(float(row["atol"]), atol)) if judge == "root" else ("", float(row["atol"]))
    gold = Calls(
        entry=entry, cases=cases, reference=reference, recorder=recorder, prelude=prompt, begun=True, atol=atol,
        judge=judge,
    )  # fmt: skip
    return _function_question(suite, id, "complete", prompt.rstrip(), gold)


def _function_question(suite: str, id: str, form: str, prompt: str, gold: Calls) -> Question:
    message = PROMPTS[form].format(prompt=prompt)
    return Question(
        id=id, suite=suite, group="all", message=message, problem=prompt, gold=gold, programs=(gold.reference,)
    )


def _plus_cases(row: Row, restore: Callable[[list[Any]], Iterable[Any]]) -> Mapping[str, tuple[str, ...]]:
    parts = {part: row[f"{part}_input"] for part in ("base", "plus")}
    return {part: tuple(case_text(list(restore(each))) for each in given) for part, given in parts.items()}


def _mbpp_row(suite: str, row: Row, number: int) -> Question:
    id, prompt, entry = text(row, "task_id"), text(row, "prompt"), text(row, "entry_point")
    ast.parse(reference := text(row, "canonical_solution"))
    task, atol = int(id.partition("/")[2]), float(row["atol"])
    cases = _plus_cases(row, partial(restored, task))
    judge, reference = _JUDGES["mbpp"].get(str(task), ""), f"{prompt}\n{reference}"
    gold = Calls(entry=entry, cases=cases, reference=reference, atol=atol, judge=judge)
    return _function_question(suite, id, "write", prompt.strip().strip('"').strip(), gold)


def _tuples(value: list[Any]) -> list[Any]:
    return [tuple(each) for each in value]


def _deep(value: Any) -> Any:
    return tuple(map(_deep, value)) if isinstance(value, list) else value


_EACH = (2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809)
_EACH_OF_EACH = (63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780)
_RESTORE: dict[int, Callable[[list[Any]], Any]] = {
    **dict.fromkeys(_EACH, _tuples),
    **dict.fromkeys(_EACH_OF_EACH, lambda arguments: [_tuples(each) for each in arguments]),
    **dict.fromkeys((75, 413, 444, 753), lambda arguments: [_tuples(arguments[0]), arguments[1]]),
    **dict.fromkeys((106, 750), lambda arguments: [arguments[0], tuple(arguments[1])]),
    **dict.fromkeys((250, 405, 446, 617, 720, 763, 808), lambda arguments: [tuple(arguments[0]), arguments[1]]),
    **dict.fromkeys((259, 401, 445), lambda arguments: [tuple(_tuples(each)) for each in arguments]),
    **dict.fromkeys((580, 615, 791), lambda arguments: [_deep(each) for each in arguments]),
    115: lambda arguments: [[set(each) if isinstance(each, list) and each else {} for each in arguments[0]]],
    124: lambda arguments: [float(arguments[0]), complex(arguments[1])],
    252: lambda arguments: [complex(arguments[0])],
    278: lambda arguments: [tuple(tuple(each) if isinstance(each, list) else each for each in arguments[0])],
    307: lambda arguments: [tuple(arguments[0]), *arguments[1:]],
    722: lambda arguments: [{key: tuple(value) for key, value in arguments[0].items()}, *arguments[1:]],
}
"""Types of MBPP+ arguments that JSON lost, by task, as EvalPlus restores them."""


def restored(task: int, arguments: list[Any]) -> list[Any]:
    """Restore tuples, sets and complex numbers, which JSON does not have, in the arguments of one call."""
    return list(_RESTORE[task](arguments)) if task in _RESTORE else arguments


def private_tests(packed: str) -> list[dict[str, Any]]:
    """Read tests from JSON text, or from base64 of zlib of a pickle of JSON text. Raises ValueError for other data.

    Nothing is unpickled, so that nothing in a pickle can run: its text is read where it stands.
    """
    try:
        tests = json.loads(packed)
    except ValueError:
        try:
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(base64.b64decode(packed.encode(), validate=True), MAX_TESTS_BYTES)
            texts = [str(given) for code, given, _ in pickletools.genops(data) if "UNICODE" in code.name]
        except (ValueError, zlib.error) as error:
            raise ValueError(f"the private tests cannot be read ({type(error).__name__})") from error
        if unpacker.unconsumed_tail or len(texts) != 1:
            raise ValueError("the private tests are too long, or no pickle of one text alone") from None
        tests = json.loads(texts[0])
    if not isinstance(tests, list):
        raise ValueError("the private tests are not a list")
    return tests


def _livecodebench_row(suite: str, row: Row, number: int) -> Question:
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
        gold = starter_calls(str(name), arguments, [json.loads(output) for output in outputs], outer_list=True)
        message = PROMPTS["function"].format(problem=problem.rstrip(), starter=starter.rstrip())
    else:
        gold = Tests(tuple(inputs), tuple(outputs), tolerance=0.0)
        message = PROMPTS["program"].format(problem=problem.rstrip())
    id, difficulty = text(row, "question_id"), text(row, "difficulty")
    return Question(id=id, suite=suite, group=difficulty, message=message, problem=problem, gold=gold)


def livecodebench_files(folder: Path) -> list[Path]:
    """Return the existing files among the first five, which are version 5."""
    place = folder / "livecodebench" if (folder / "livecodebench").is_dir() else folder
    names = ("test.jsonl", "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl")
    return [place / name for name in names if (place / name).is_file()]


READERS: dict[str, Callable[[str, Row, int], Question]] = {
    "humaneval": _humaneval_row, "humaneval+": _humaneval_row, "mbpp+": _mbpp_row,
    "livecodebench": _livecodebench_row,
}  # fmt: skip
"""Questions of rows, by suite."""
