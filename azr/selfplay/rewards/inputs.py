"""What a bonus may look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from azr.records import Task


@dataclass(frozen=True, slots=True)
class BonusInputs:
    """A task that was just proposed, and what it can be compared with."""

    task: Task
    references: Sequence[Task]
    """Tasks that the proposer's prompt showed; may be empty."""
    known: Callable[[], Sequence[Task]]
    """The stored tasks of its kind; they cost time, so only a bonus that needs them asks."""
