"""Tasks that an accepted task makes for free: its program ran, so what it returned is known."""

from __future__ import annotations

import random
from collections.abc import Sequence

from azr.records import Task
from azr.tasks.registry import KINDS


def crossings(task: Task, kinds: Sequence[str], most: int, rng: random.Random) -> list[Task]:
    """Of each kind that is played, at most ``most`` tasks at random that the task's runs make."""
    runs = KINDS[task.kind].runs(task)
    posed = [KINDS[name].pose(task, runs) for name in kinds]
    return [crossing for tasks in posed for crossing in rng.sample(tasks, min(most, len(tasks)))]
