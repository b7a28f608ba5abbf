"""Tasks of other kinds that a validated task makes for free: its program ran, so its inputs and outputs are known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from azr.records import Task

CROSSED = ("deduction", "abduction")
"""Kinds whose tasks are a program with one input and the value it returned."""
SOURCES = (*CROSSED, "induction")
"""Kinds whose tasks hold such pairs."""


def crossings(task: Task, kinds: Sequence[str], most: int, rng: random.Random) -> list[Task]:
    """The task's pairs, ``most`` of them at random, as tasks of every other kind of `CROSSED` that is played."""
    if task.kind not in SOURCES:
        return []
    pairs = list(zip(task.inputs, task.outputs, strict=True))
    return [
        replace(
            task,
            id=f"{task.id}-{kind}-{number}",
            kind=kind,
            inputs=(given,),
            outputs=(returned,),
            message="",
            parents=(task.id,),
            solve_rate=None,
        )
        for number, (given, returned) in enumerate(rng.sample(pairs, min(most, len(pairs))))
        for kind in CROSSED
        if kind in kinds and kind != task.kind
    ]
