"""Process of a user's grader: answers ``{row, response}`` with ``{score, parts}``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from azr.evaluation.graders.own import checked, load_grader
from azr.isolated import Ask, serve


def load(arguments: Sequence[str]) -> Callable[[Any, Ask], dict[str, Any]]:
    (name,) = arguments
    function = load_grader(name)
    return lambda asked, ask: checked(function(asked["row"], asked["response"]))


if __name__ == "__main__":
    serve(load)
