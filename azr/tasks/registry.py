"""The reasoning kinds that can be played, by name, and the tasks of one kind that a task of another makes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from azr.records import Task
from azr.tasks.abduction import Abduction
from azr.tasks.base import TaskKind
from azr.tasks.deduction import Deduction
from azr.tasks.error import Error
from azr.tasks.induction import Induction

_ALL: tuple[TaskKind, ...] = (Deduction(), Abduction(), Induction(), Error())
KINDS: dict[str, TaskKind] = {kind.name: kind for kind in _ALL}


async def derived_tasks(task: Task, kinds: Sequence[str], most: int, rng: random.Random) -> list[Task]:
    """Of each of these kinds, at most ``most`` tasks at random that the known pairs of a task make for free."""
    pairs = KINDS[task.kind].io_pairs(task)
    chosen: list[Task] = []
    for name in kinds:
        derived = KINDS[name].derive_tasks(task, pairs)
        tasks = derived if isinstance(derived, tuple) else await derived
        chosen += rng.sample(tasks, min(most, len(tasks)))
    return chosen
