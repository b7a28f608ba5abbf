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
    same = all(o.value is not None and values.equal(values.parse(o.value), values.parse(e)) for o, e in pairs)
    return Verdict.RIGHT if same else Verdict.WRONG
