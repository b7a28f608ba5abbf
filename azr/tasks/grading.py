"""Comparing what ran with what was expected, in the trusted process."""

from __future__ import annotations

from collections.abc import Sequence

from azr import values
from azr.records import ExecutionResult
from azr.tasks.base import Verdict


def all_equal(result: ExecutionResult, expected: Sequence[str]) -> Verdict:
    """Right when every call returned the expected plain value; ungraded when the executor lost one."""
    if result.lost:
        return Verdict.UNGRADED
    if not result.ok:
        return Verdict.WRONG
    assert len(result.outputs) == len(expected)
    pairs = zip(result.outputs, expected, strict=True)
    return Verdict.RIGHT if all(_states(o.value, e) for o, e in pairs) else Verdict.WRONG


def _states(value: str | None, expected: str) -> bool:
    if value is None:
        return False
    return value == expected or values.equal(values.parse(value), values.parse(expected))
