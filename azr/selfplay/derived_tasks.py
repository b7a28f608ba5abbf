"""Tasks that an accepted task makes for free: its program ran, so what it returned is known."""

from __future__ import annotations

import random
from collections.abc import Sequence

from azr.records import Task
from azr.tasks.registry import KINDS


def derived_tasks(task: Task, kinds: Sequence[str], most: int, rng: random.Random) -> list[Task]:
    """Of each kind that is played, at most ``most`` tasks at random that the task's runs make."""
    pairs = KINDS[task.kind].io_pairs(task)
    posed = [KINDS[name].derive_tasks(task, pairs) for name in kinds]
    return [derived for tasks in posed for derived in rng.sample(tasks, min(most, len(tasks)))]
