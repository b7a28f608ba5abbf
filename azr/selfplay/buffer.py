"""The task buffer: what has been proposed so far, per kind."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from azr.records import Task
from azr.tasks.base import RejectReason
from azr.tasks.normalize import held_out_keys
from azr.tasks.registry import KINDS

CAPACITY = 16384
"""Tasks kept per kind."""


class TaskBuffer:
    """Newest tasks of each kind, no two with the same fingerprint and none about a program near one of the benchmark.

    When a kind is full its oldest task leaves, so stale programs never displace new ones.
    """

    def __init__(
        self, kinds: Sequence[str], capacity: int = CAPACITY, benchmark: Mapping[str, str] | None = None
    ) -> None:
        """``benchmark``: names of questions by the `held_out_keys` of their programs; what shares one of them may never
        be stored, whatever its inputs."""
        self._capacity = capacity
        self._benchmark = benchmark or {}
        self._tasks: dict[str, deque[Task]] = {kind: deque() for kind in kinds}
        self._ids: dict[str, dict[str, str]] = {kind: {} for kind in kinds}
        """Of the stored tasks of a kind, by their fingerprints."""

    def sizes(self) -> dict[str, int]:
        """Stored tasks per kind."""
        return {kind: len(tasks) for kind, tasks in self._tasks.items()}

    def tasks(self, kind: str) -> tuple[Task, ...]:
        """Tasks of a kind, oldest first."""
        return tuple(self._tasks[kind])

    def reject_reason(self, task: Task) -> RejectReason | None:
        """Why the task cannot be stored: an equal one is there already, or its program is near one of the benchmark."""
        if self._question(task) is not None:
            return RejectReason.IN_BENCHMARK
        return RejectReason.DUPLICATE if task.fingerprint in self._ids[task.kind] else None

    def twin(self, task: Task) -> str:
        """Id of the stored task, or name of the benchmark's question, for which a task is rejected."""
        return self._question(task) or self._ids[task.kind][task.fingerprint]

    def _question(self, task: Task) -> str | None:
        return next((self._benchmark[key] for key in held_out_keys(task.program) if key in self._benchmark), None)

    def add(self, task: Task) -> None:
        """Stores a task that nothing speaks against."""
        assert self.reject_reason(task) is None, "only a task without a reject reason may be stored"
        self._append(task)

    def refill(self, tasks: Iterable[Task]) -> None:
        """Stores tasks that were stored before, in their old order, such as those of a run's log."""
        for task in tasks:
            self._append(task)

    def _append(self, task: Task) -> None:
        tasks, ids = self._tasks[task.kind], self._ids[task.kind]
        if len(tasks) == self._capacity:
            del ids[tasks.popleft().fingerprint]
        tasks.append(task)
        ids[task.fingerprint] = task.id

    def references(self, kind: str, count: int, rng: random.Random) -> list[Task]:
        """Past tasks to show a proposer of this kind, up to ``count``, drawn without replacement."""
        pool = [task for name in KINDS[kind].reference_kinds for task in self._tasks.get(name, ())]
        return rng.sample(pool, min(KINDS[kind].references_per_prompt(count), len(pool)))

    def sample_tasks(self, kind: str, count: int, excluded: Collection[str], rng: random.Random) -> list[Task]:
        """Stored tasks for solvers, without those whose ids are excluded; repeats only when there are too few."""
        pool = [task for task in self._tasks[kind] if task.id not in excluded]
        if len(pool) >= count:
            return rng.sample(pool, count)
        again = pool or list(self._tasks[kind])
        return pool + [rng.choice(again) for _ in range(count - len(pool))]

    def sample_learnable(self, kind: str, count: int, rng: random.Random) -> list[Task]:
        """Up to ``count`` tasks that were solved sometimes but not always, drawn from the newest ``4 * count`` such."""
        learnable = [task for task in self._tasks[kind] if task.solve_rate is not None and 0 < task.solve_rate < 1]
        recent = learnable[-4 * count :] if count else []
        return rng.sample(recent, min(count, len(recent)))
