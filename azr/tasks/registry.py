"""Reasoning kinds by name, and tasks of one kind that are derived from a task of another."""

from __future__ import annotations

import random
from collections.abc import Sequence

from azr.records import Task
from azr.registry import Registry
from azr.tasks.abduction import Abduction
from azr.tasks.base import TaskKind
from azr.tasks.deduction import Deduction
from azr.tasks.error import Error
from azr.tasks.induction import Induction

_ALL: tuple[TaskKind, ...] = (Deduction(), Abduction(), Induction(), Error())
KINDS = Registry("task kind", {kind.name: kind for kind in _ALL}, "selfplay.kinds may hold")


async def derived_tasks(task: Task, kinds: Sequence[str], most: int, rng: random.Random) -> list[Task]:
    """Return at most ``most`` random tasks of each kind, made from the known pairs of a task."""
    pairs = KINDS[task.kind].io_pairs(task)
    chosen: list[Task] = []
    for name in kinds:
        derived = KINDS[name].derive_tasks(task, pairs)
        tasks = derived if isinstance(derived, tuple) else await derived
        chosen += rng.sample(tasks, min(most, len(tasks)))
    return chosen
