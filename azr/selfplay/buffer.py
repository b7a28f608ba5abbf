"""The task buffer: what has been proposed so far, per kind."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from azr.records import Task
from azr.tasks.base import RejectReason
from azr.tasks.normalize import fingerprint
from azr.tasks.registry import KINDS

CAPACITY = 16384
"""Tasks kept per kind."""


class TaskBuffer:
    """Newest tasks of each kind, no two with the same fingerprint and none about a program of the exam.

    When a kind is full its oldest task leaves, so stale programs never displace new ones. A task that is still being
    estimated holds its fingerprint by ``reserve``, so that of two equal proposals in flight one is a duplicate.
    """

    def __init__(self, kinds: Sequence[str], capacity: int = CAPACITY, exam: Collection[str] = ()) -> None:
        """``exam``: fingerprints of the programs alone that may never be stored, with whatever inputs."""
        self._capacity = capacity
        self._exam = frozenset(exam)
        self._tasks: dict[str, deque[Task]] = {kind: deque() for kind in kinds}
        self._known: dict[str, set[str]] = {kind: set() for kind in kinds}

    def sizes(self) -> dict[str, int]:
        """Stored tasks per kind."""
        return {kind: len(tasks) for kind, tasks in self._tasks.items()}

    def tasks(self, kind: str) -> tuple[Task, ...]:
        """Tasks of a kind, oldest first."""
        return tuple(self._tasks[kind])

    def reserve(self, task: Task) -> RejectReason | None:
        """Claims the task's fingerprint; or says that an equal task is there already, or its program in the exam."""
        if fingerprint(task.program) in self._exam:
            return RejectReason.IN_BENCHMARK
        if task.fingerprint in self._known[task.kind]:
            return RejectReason.DUPLICATE
        self._known[task.kind].add(task.fingerprint)
        return None

    def release(self, task: Task) -> None:
        """Gives a claimed fingerprint back: the task will not be stored."""
        self._known[task.kind].remove(task.fingerprint)

    def add(self, task: Task) -> None:
        """Stores a task whose fingerprint was reserved."""
        assert task.fingerprint in self._known[task.kind], "reserve a task before adding it"
        tasks = self._tasks[task.kind]
        if len(tasks) == self._capacity:
            self.release(tasks.popleft())
        tasks.append(task)

    def refill(self, tasks: Iterable[Task]) -> None:
        """Stores tasks that were stored before, in their old order, such as those of a run's log."""
        for task in tasks:
            self._known[task.kind].add(task.fingerprint)
            self.add(task)

    def references(self, kind: str, count: int, rng: random.Random) -> list[Task]:
        """Past tasks to show a proposer of this kind, up to ``count``, drawn without replacement."""
        sources = [name for name in KINDS[kind].reference_kinds if name in self._tasks]
        pool = [task for name in sources for task in self._tasks[name]]
        wanted = KINDS[kind].references_per_prompt(count)
        return rng.sample(pool, min(wanted, len(pool)))

    def sample_tasks(self, kind: str, count: int, excluded: Collection[str], rng: random.Random) -> list[Task]:
        """Stored tasks for solvers, without those whose ids are excluded; repeats only when there are too few."""
        pool = [task for task in self._tasks[kind] if task.id not in excluded]
        if len(pool) >= count:
            return rng.sample(pool, count)
        again = pool or list(self._tasks[kind])
        return pool + [rng.choice(again) for _ in range(count - len(pool))]
