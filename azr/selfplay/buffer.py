"""The task buffer: accepted tasks per kind, which prompts show and solvers get."""

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
    """Newest tasks of each kind, no two with the same fingerprint and none about a program near one of the benchmark or
    near a worked example of the prompts.

    When a kind is full its oldest task leaves, so stale programs never displace new ones.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        capacity: int = CAPACITY,
        benchmark: Mapping[str, str] | None = None,
        examples: Mapping[str, str] | None = None,
    ) -> None:
        """``benchmark``: names of questions by the `held_out_keys` of their programs; ``examples``: the same of the
        prompts' worked examples. A task whose program shares a key is never stored."""
        self._capacity = capacity
        self._benchmark, self._examples = benchmark or {}, examples or {}
        self._tasks: dict[str, deque[Task]] = {kind: deque() for kind in kinds}
        self._ids: dict[str, dict[str, str]] = {kind: {} for kind in kinds}
        """Ids of the stored tasks of a kind, by fingerprint."""

    def sizes(self) -> dict[str, int]:
        """Return the number of stored tasks per kind."""
        return {kind: len(tasks) for kind, tasks in self._tasks.items()}

    def tasks(self, kind: str) -> tuple[Task, ...]:
        """Return the tasks of a kind, oldest first."""
        return tuple(self._tasks[kind])

    def reject_reason(self, task: Task) -> RejectReason | None:
        """Return why the task cannot be stored: its program is near one of the benchmark, or the task is a duplicate of
        a stored one or of a worked example."""
        if _named(task, self._benchmark) is not None:
            return RejectReason.IN_BENCHMARK
        known = task.fingerprint in self._ids[task.kind] or _named(task, self._examples) is not None
        return RejectReason.DUPLICATE if known else None

    def twin(self, task: Task) -> str:
        """Return the id of the stored task, or the name of the benchmark's question or of the worked example, that a
        rejected task equals."""
        named = _named(task, self._benchmark) or _named(task, self._examples)
        return named or self._ids[task.kind][task.fingerprint]

    def add(self, task: Task) -> None:
        """Add a task for which `reject_reason` returned None."""
        assert self.reject_reason(task) is None, "only a task without a reject reason may be stored"
        self._append(task)

    def restore(self, tasks: Iterable[Task]) -> None:
        """Add tasks that were stored before, in their order, such as those of a run's log."""
        for task in tasks:
            self._append(task)

    def _append(self, task: Task) -> None:
        tasks, ids = self._tasks[task.kind], self._ids[task.kind]
        if len(tasks) == self._capacity:
            del ids[tasks.popleft().fingerprint]
        tasks.append(task)
        ids[task.fingerprint] = task.id

    def references(self, kind: str, count: int, rng: random.Random) -> list[Task]:
        """Draw up to ``count`` tasks to show a proposer of this kind, without replacement."""
        pool = [task for name in KINDS[kind].reference_kinds for task in self._tasks.get(name, ())]
        return rng.sample(pool, min(KINDS[kind].references_per_prompt(count), len(pool)))

    def sample_tasks(self, kind: str, count: int, excluded: Collection[str], rng: random.Random) -> list[Task]:
        """Draw stored tasks for solvers, without excluded ids; repeat tasks only if there are too few."""
        pool = [task for task in self._tasks[kind] if task.id not in excluded]
        if len(pool) >= count:
            return rng.sample(pool, count)
        again = pool or list(self._tasks[kind])
        return pool + [rng.choice(again) for _ in range(count - len(pool))]

    def sample_learnable(self, kind: str, count: int, rng: random.Random) -> list[Task]:
        """Draw up to ``count`` tasks with a solve rate between 0 and 1, from the newest ``4 * count`` of them."""
        learnable = [task for task in self._tasks[kind] if task.solve_rate is not None and 0 < task.solve_rate < 1]
        recent = learnable[-4 * count :] if count else []
        return rng.sample(recent, min(count, len(recent)))


def _named(task: Task, names: Mapping[str, str]) -> str | None:
    """Return the name under one of the `held_out_keys` of the task's program."""
    return next((names[key] for key in held_out_keys(task.program) if key in names), None)
