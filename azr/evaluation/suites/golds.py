"""What a row must state for each grader, and how that becomes what the grader needs."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from azr.evaluation.graders.calls import Calls
from azr.evaluation.graders.choice import Choice
from azr.evaluation.graders.maths import MathGold
from azr.evaluation.graders.own import is_own
from azr.evaluation.graders.sandboxed import case_text
from azr.evaluation.graders.stdin import Tests
from azr.evaluation.graders.value import ProgramValue
from azr.evaluation.question import GRADERS, GraderName

FIELDS: dict[GraderName, tuple[str, ...]] = {
    "math": ("answer",),
    "choice": ("answer", "options"),
    "calls": ("entry", "inputs", "outputs"),
    "stdin": ("inputs", "outputs"),
    "value": ("program", "input", "output"),
}
"""What each grader of ours needs of a row; one of the user's own gets all of it."""


def check_grader(name: object) -> None:
    """Raises ValueError for what is no grader's name."""
    if not isinstance(name, str) or not (name in GRADERS or is_own(name)):
        raise ValueError(
            f"the grader {name!r} is none of {', '.join(GRADERS)}, no module:function of your own and "
            "none that an installed package names"
        )


def fields_of(grader: GraderName) -> tuple[str, ...]:
    """What a row must have for its grader."""
    return FIELDS.get(grader, ())


def labels(options: Sequence[Any]) -> tuple[str, ...]:
    """The letters that the options of a choice go by."""
    return tuple(string.ascii_uppercase[: len(options)])


def gold(grader: GraderName, given: Mapping[str, Any], *, tolerance: float | None = None, asked: str = "output") -> Any:
    """What the grader needs, of the fields of a row.

    ``tolerance``: of ``math`` and ``calls``, absolute. ``asked``: of ``value``, ``output`` or ``input``.
    Raises KeyError with the name of a missing field, TypeError or ValueError for one of another form.
    """
    if is_own(grader):
        return json.loads(json.dumps(dict(given), default=str))
    given = {name: given[name] for name in FIELDS[grader]}
    match grader:
        case "math":
            answers = given["answer"] if isinstance(given["answer"], list) else [given["answer"]]
            if not answers or not all(isinstance(each, str | int | float) for each in answers):
                raise TypeError(f"the answer {given['answer']!r} is neither text nor a number, nor a list of them")
            return MathGold(tuple(map(str, answers)), tolerance)
        case "choice":
            letters, label = labels(given["options"]), given["answer"]
            if isinstance(label, int):
                label = letters[label] if 0 <= label < len(letters) else str(label)
            if label not in letters:
                raise ValueError(f"the answer {label!r} is none of {', '.join(letters)}")
            return Choice(label, letters)
        case "value":
            return ProgramValue(str(given["program"]), asked, str(given["input"]), str(given["output"]))  # type: ignore[arg-type]
    if not isinstance(given["inputs"], list) or not isinstance(given["outputs"], list):
        raise TypeError("inputs and outputs are not both lists")
    if len(given["inputs"]) != len(given["outputs"]) or not given["inputs"]:
        raise ValueError("there are not as many outputs as inputs, or none")
    if grader == "stdin":
        return Tests(tuple(map(str, given["inputs"])), tuple(map(str, given["outputs"])))
    return Calls(
        entry=str(given["entry"]),
        cases={"tests": tuple(case_text(arguments) for arguments in given["inputs"])},
        expected={"tests": tuple(given["outputs"])},
        atol=tolerance or 0.0,
    )


assert FIELDS.keys() == set(GRADERS)
