"""Process of a user's grader: answers ``{row, response}`` with true, false or null."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from azr.evaluation.graders.own import load_grader
from azr.isolated import Ask, Nonsense, serve


def load(arguments: Sequence[str]) -> Callable[[Any, Ask], bool | None]:
    (name,) = arguments
    function = load_grader(name)

    def grade(asked: Any, ask: Ask) -> bool | None:
        right = function(asked["row"], asked["response"])
        if right is None or isinstance(right, bool):
            return right
        raise Nonsense(f"{repr(right)[:60]}, which is none of True, False and None")

    return grade


if __name__ == "__main__":
    serve(load)
