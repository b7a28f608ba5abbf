"""A process that compares mathematical answers by math-verify; its parent kills it when it takes too long.

It reads one JSON object a line, ``{gold: [..], answer, tolerance}``, and answers with one: ``{right, exact, close,
parsed}``, or ``{failed}`` when the library raised. The library's own alarms are off: they need a main thread, cancel
each other and do not stop native code.
"""

from __future__ import annotations

import json
import math
import resource
import sys
from typing import Any

MEMORY_BYTES = 2 * 2**30
RELATIVE = 1e-4
"""Within this share of the gold answer a number is close, as Qwen2.5-Math's grader has it."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # Deep nesting ends in an exception here, and in a crash beyond.
    sys.setrecursionlimit(3_000)
    # What the libraries print must not be taken for a verdict.
    said_to, sys.stdout = sys.stdout, sys.stderr
    from math_verify import parse, verify
    from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

    how = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    parsed: dict[str, list[Any]] = {}

    def read(text: str) -> list[Any]:
        return list(parse(_boxed(text), extraction_config=how, parsing_timeout=None, raise_on_error=True))

    print(json.dumps({"ready": True}), file=said_to, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            for gold in asked["gold"]:
                if gold not in parsed:
                    parsed[gold] = read(gold)
            answer = read(asked["answer"])
            golds = [parsed[gold] for gold in asked["gold"]]
            if not all(golds):
                said: dict[str, Any] = {"failed": "the gold answer cannot be parsed"}
            else:
                right = any(bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True)) for gold in golds)
                right = right or any(_same_text(gold, asked["answer"]) for gold in asked["gold"])
                distances = [_distance(gold, answer) for gold in golds]
                within = asked["tolerance"] is not None and any(a <= asked["tolerance"] for a, _ in distances)
                said = {"right": right or within, "exact": right}
                said["close"] = right or any(relative <= RELATIVE for _, relative in distances)
                # What the library makes nothing of it leaves as text.
                said["parsed"] = all(any(not isinstance(each, str) for each in gold) for gold in golds)
        except Exception as error:
            said = {"failed": type(error).__name__}
        print(json.dumps(said), file=said_to, flush=True)


def _boxed(text: str) -> str:
    return f"$\\boxed{{{text}}}$"


def _same_text(gold: str, answer: str) -> bool:
    return "".join(gold.split()) == "".join(answer.split())


def _distance(gold: list[Any], answer: list[Any]) -> tuple[float, float]:
    """Absolute and relative, of two real numbers; infinite for all else."""
    one, other = _number(gold), _number(answer)
    if one is None or other is None:
        return math.inf, math.inf
    distance = abs(one - other)
    return distance, distance / abs(one) if one else (0.0 if distance == 0 else math.inf)


def _number(parsed: list[Any]) -> float | None:
    for each in parsed:
        try:
            value = float(each.evalf()) if hasattr(each, "evalf") else None
        except (TypeError, ValueError, OverflowError, AttributeError):
            value = None
        if value is not None and math.isfinite(value):
            return value
    return None


if __name__ == "__main__":
    main()
