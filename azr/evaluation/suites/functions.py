"""Code generation by functions: HumanEval, HumanEval+ and MBPP+."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from azr.evaluation.graders import plain_json
from azr.evaluation.graders.calls import Calls
from azr.evaluation.graders.sandboxed import case_text
from azr.evaluation.question import Question, Suite
from azr.evaluation.suites.files import Row, reader, text

_CODEC = Path(plain_json.__file__).read_text()
_COMPLETE = (
    "Complete this Python function. Give the whole function with all that it needs, in one block that begins with "
    "```python.\n\n```python\n{prompt}\n```"
)
_WRITE = (
    "Write a Python function for this task, with the name and the arguments that its example shows. Give the whole "
    "program in one block that begins with ```python.\n\n{prompt}"
)
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
_HUMANEVAL_JUDGES = {
    32: ("root", 1e-4), 33: ("sequence", 0.0), 37: ("sequence", 0.0), 52: ("truth", 0.0), 56: ("truth", 0.0),
    61: ("truth", 0.0), 2: ("", 1e-6), 4: ("", 1e-6),
}  # fmt: skip
"""Rule and tolerance of tests that do not ask for equality, by task."""


def _humaneval_row(row: Row, number: int) -> Question:
    id, prompt, entry = text(row, "task_id"), text(row, "prompt"), text(row, "entry_point")
    solution, test = text(row, "canonical_solution"), text(row, "test")
    ast.parse(prompt + solution)
    ast.parse(test)
    judge, atol = _HUMANEVAL_JUDGES.get(_number(id), ("", 0.0))
    task = f"{prompt}{solution}\n{test}"
    recorder = f"import json\n{_CODEC}{_RECORDER.format(task=task, entry=entry)}"
    gold = Calls(
        entry=entry,
        cases={"base": ()},
        reference=prompt + solution,
        recorder=recorder,
        prelude=prompt,
        begun=True,
        atol=atol,
        judge=judge,
    )
    return _question("humaneval", id, _COMPLETE, prompt.rstrip(), gold)


def _question(suite: str, id: str, form: str, prompt: str, gold: Calls) -> Question:
    return Question(
        id=id,
        suite=suite,
        group="all",
        message=form.format(prompt=prompt),
        problem=prompt,
        gold=gold,
        programs=(gold.reference,),
    )


def _number(id: str) -> int:
    return int(id.partition("/")[2])


def _plus_cases(row: Row, restore: Callable[[list[Any]], Iterable[Any]]) -> Mapping[str, tuple[str, ...]]:
    return {
        part: tuple(case_text(list(restore(arguments))) for arguments in row[f"{part}_input"])
        for part in ("base", "plus")
    }


def _humaneval_plus_row(row: Row, number: int) -> Question:
    id, prompt, entry = text(row, "task_id"), text(row, "prompt"), text(row, "entry_point")
    reference = prompt + text(row, "canonical_solution")
    ast.parse(reference)
    gold = Calls(
        entry=entry,
        cases=_plus_cases(row, list),
        reference=reference,
        prelude=prompt,
        begun=True,
        atol=float(row["atol"]) if _number(id) != 32 else max(float(row["atol"]), 1e-4),
        judge="root" if _number(id) == 32 else "",
    )
    return _question("humaneval+", id, _COMPLETE, prompt.rstrip(), gold)


def _mbpp_row(row: Row, number: int) -> Question:
    id, prompt, entry = text(row, "task_id"), text(row, "prompt"), text(row, "entry_point")
    reference = text(row, "canonical_solution")
    ast.parse(reference)
    gold = Calls(
        entry=entry,
        cases=_plus_cases(row, lambda arguments: restored(_number(id), arguments)),
        reference=f"{prompt}\n{reference}",
        atol=float(row["atol"]),
        judge=_MBPP_JUDGES.get(_number(id), ""),
    )
    return _question("mbpp+", id, _WRITE, prompt.strip().strip('"').strip(), gold)


_MBPP_JUDGES = {
    **dict.fromkeys((2, 7, 111, 140, 232, 249, 579, 769), "set"),
    **dict.fromkeys((737, 787, 794), "not none"),
    164: "any", 295: "or zero", 581: "surface", 558: "digits",
}  # fmt: skip
"""Rules of tasks that EvalPlus does not judge by equality, by task."""


def _tuples(value: list[Any]) -> list[Any]:
    return [tuple(each) for each in value]


def _deep(value: Any) -> Any:
    return tuple(map(_deep, value)) if isinstance(value, list) else value


def _first(arguments: list[Any], change: Callable[[Any], Any]) -> list[Any]:
    return [change(arguments[0]), *arguments[1:]]


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
    307: lambda arguments: _first(arguments, tuple),
    722: lambda arguments: _first(arguments, lambda records: {key: tuple(value) for key, value in records.items()}),
}
"""Types of MBPP+ arguments that JSON lost, by task, as EvalPlus restores them."""


def restored(task: int, arguments: list[Any]) -> list[Any]:
    """Restore tuples, sets and complex numbers, which JSON does not have, in the arguments of one call."""
    return list(_RESTORE[task](arguments)) if task in _RESTORE else arguments


_HUMANEVAL = ("HumanEval.jsonl.gz", "HumanEval.jsonl")
_HUMANEVAL_PLUS = ("HumanEvalPlus.jsonl.gz", "HumanEvalPlus.jsonl")
_MBPP_PLUS = ("MbppPlus.jsonl", "MbppPlus.jsonl.gz")

SUITES = (
    Suite(
        name="humaneval",
        files=_HUMANEVAL,
        rows=164,
        licence="MIT",
        source="data/HumanEval.jsonl.gz of github.com/openai/human-eval",
        grader="calls",
        read=reader(_HUMANEVAL, _humaneval_row),
        metric="pass@1",
        sha256={"HumanEval.jsonl.gz": "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"},
    ),
    Suite(
        name="humaneval+",
        files=_HUMANEVAL_PLUS,
        rows=164,
        licence="Apache-2.0",
        source="HumanEvalPlus.jsonl.gz, version v0.1.10, of the releases of github.com/evalplus/humanevalplus_release",
        grader="calls",
        read=reader(_HUMANEVAL_PLUS, _humaneval_plus_row),
        metric="pass@1",
    ),
    Suite(
        name="mbpp+",
        files=_MBPP_PLUS,
        rows=378,
        licence="Apache-2.0 (MBPP: CC-BY-4.0)",
        source="MbppPlus.jsonl.gz, version v0.2.0, of the releases of github.com/evalplus/mbppplus_release",
        grader="calls",
        read=reader(_MBPP_PLUS, _mbpp_row),
        metric="pass@1",
        sha256={"MbppPlus.jsonl": "b54e762755248ca411b523c917fa9f93c07b5ff2966bf60b3917b853926a3dad"},
    ),
)
