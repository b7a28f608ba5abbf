"""The task buffer: accepted tasks per kind, which prompts show and solvers get, and their latest solve rates."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import msgspec

from azr.config import Replay
from azr.records import Sample, Task, grouped
from azr.tasks.base import RejectReason
from azr.tasks.normalize import held_out_keys, shape
from azr.tasks.registry import KINDS

CAPACITY = 16384
"""Tasks kept per kind."""
RATES_FILE = "solve_rates.json"
DECAY = 0.9
"""Factor of a task's counts for each step that passes, so that the rate follows the policy."""

Counts = tuple[float, float, int]
"""Right and graded answers, with older ones decayed, and the step of the newest."""


Draw = Callable[[int, random.Random], list[Task]]
"""Draws up to so many tasks, none twice."""


class TaskBuffer:
    """Newest tasks of each kind, no two with the same fingerprint and none about a program near one of the benchmark or
    near a worked example of the prompts.

    When a kind is full its oldest task leaves, so stale programs never displace new ones.

    Answers to stored tasks are counted after each step that was played. A step draws from the counts of the steps
    before it. Those after the last recorded step are kept apart, since a checkpoint may be written when the next step
    has been played already.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        capacity: int = CAPACITY,
        benchmark: Mapping[str, str] | None = None,
        examples: Mapping[str, str] | None = None,
        corpus: Sequence[Task] = (),
    ) -> None:
        """``benchmark``: names of questions by the `held_out_keys` of their programs; ``examples``: the same of the
        prompts' worked examples. A task whose program shares a key is never stored. ``corpus``: passages, see
        `azr.selfplay.corpus.read_corpus`."""
        self._corpus = corpus
        self._playable = [each for each in corpus if each.program]
        self.capacity = capacity
        self._benchmark, self._examples = benchmark or {}, examples or {}
        self._tasks: dict[str, dict[str, Task]] = {kind: {} for kind in kinds}
        """The stored tasks of a kind, by fingerprint, oldest first."""
        self._shapes: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
        """How many stored tasks of a kind have a program of a shape."""
        self._answered: dict[int, Mapping[str, Counts]] = {0: {}}
        """Counts by task after a step, oldest first; never changed once they are there."""

    def sizes(self) -> dict[str, int]:
        """Return the number of stored tasks per kind."""
        return {kind: len(tasks) for kind, tasks in self._tasks.items()}

    def num_shapes(self) -> dict[str, int]:
        """Return the number of distinct shapes of stored programs per kind."""
        return {kind: len(shapes) for kind, shapes in self._shapes.items()}

    def times_seen(self, task: Task) -> int:
        """Return how many stored tasks of the kind have a program of the task's shape; 0 for a task without one."""
        return self._shapes[task.kind][shape(task.program)] if task.program else 0

    def tasks(self, kind: str) -> tuple[Task, ...]:
        """Return the tasks of a kind, oldest first."""
        return tuple(self._tasks[kind].values())

    def reject_reason(self, task: Task) -> RejectReason | None:
        """Return why the task cannot be stored: its program is near one of the benchmark, or the task is a duplicate of
        a stored one or of a worked example."""
        if _named(task, self._benchmark) is not None:
            return RejectReason.IN_BENCHMARK
        known = task.fingerprint in self._tasks[task.kind] or _named(task, self._examples) is not None
        return RejectReason.DUPLICATE if known else None

    def twin(self, task: Task) -> str:
        """Return the id of the stored task, or the name of the benchmark's question or of the worked example, that a
        rejected task equals."""
        named = _named(task, self._benchmark) or _named(task, self._examples)
        return named or self._tasks[task.kind][task.fingerprint].id

    def repeats_seed(self, duplicate: Task) -> bool:
        """Whether a duplicate repeats a task that the buffer began with, or a worked example."""
        known = self._tasks[duplicate.kind].get(duplicate.fingerprint)
        return known is None or known.step == 0

    def add(self, task: Task) -> None:
        """Add a task for which `reject_reason` returned None."""
        assert self.reject_reason(task) is None, "only a task without a reject reason may be stored"
        self._append(task)

    def restore(self, tasks: Iterable[Task]) -> None:
        """Add tasks that were stored before, in their order, such as those of a run's log."""
        for task in tasks:
            self._append(task)

    def _append(self, task: Task) -> None:
        tasks = self._tasks[task.kind]
        if len(tasks) == self.capacity:
            self._count(tasks.pop(next(iter(tasks))), -1)
        tasks[task.fingerprint] = task
        self._count(task, 1)

    def _count(self, task: Task, more: int) -> None:
        if task.program:
            shapes, its_shape = self._shapes[task.kind], shape(task.program)
            shapes[its_shape] += more
            if not shapes[its_shape]:
                del shapes[its_shape]

    def note(self, step: int, samples: Iterable[Sample]) -> None:
        """Count the answers of a step to stored tasks, and forget those to others."""
        stored = {task.id for tasks in self._tasks.values() for task in tasks.values()}
        answered = ((each.problem_id, each.accuracy) for each in samples if each.problem_id in stored)
        new = grouped((id, accuracy) for id, accuracy in answered if accuracy is not None)
        counts = {id: each for id, each in self._latest.items() if id in stored}
        for id, answers in sorted(new.items()):
            right, graded = self._counts(id, step)
            counts[id] = right + sum(answers), graded + len(answers), step
        self._answered[step] = counts

    def is_answered(self, id: str) -> bool:
        return id in self._latest

    def rate(self, id: str, step: int) -> float:
        """Return the mean of a Beta(1, 1) prior updated by the task's answers, as old as they are in this step."""
        right, graded = self._counts(id, step)
        return (1 + right) / (2 + graded)

    def recorded(self, step: int) -> None:
        """Forget counts that only checkpoints of earlier steps would hold."""
        first = max(each for each in self._answered if each <= step)
        self._answered = {each: counts for each, counts in self._answered.items() if each >= first}

    def write_rates(self, folder: Path, step: int) -> None:
        """Write the counts after a step into a checkpoint's folder."""
        counts = self._answered[max(each for each in self._answered if each <= step)]
        (folder / RATES_FILE).write_bytes(msgspec.json.encode(counts))

    def read_rates(self, folder: Path, step: int) -> None:
        """Take over the counts of the checkpoint of a step, if its folder has any."""
        if (file := folder / RATES_FILE).is_file():
            self._answered = {step: msgspec.json.decode(file.read_bytes(), type=dict[str, Counts])}

    @property
    def _latest(self) -> Mapping[str, Counts]:
        return self._answered[max(self._answered)]

    def _counts(self, id: str, step: int) -> tuple[float, float]:
        right, graded, counted = self._latest.get(id, (0.0, 0.0, step))
        decay = DECAY ** (step - counted)
        return right * decay, graded * decay

    def references(self, kind: str, replay: Replay, step: int) -> Draw:
        """Return what draws the tasks that a prompt shows to a proposer of this kind."""
        tasks = [task for name in KINDS[kind].reference_kinds if name in self._tasks for task in self.tasks(name)]
        if replay in ("learnability", "easy_to_hard"):
            return self._by_learnability(tasks, step)
        return lambda count, rng: rng.sample(tasks, min(count, len(tasks)))

    def passage(self, kind: str, share: float, rng: random.Random) -> Task | None:
        """Draw a function of the corpus for so large a share of the proposals of a kind, else None.

        Half of them can be played, and are given, without a message. Others are shown for their ideas, as far as the
        kind proposes programs."""
        proposes = KINDS[kind].proposes_programs
        if not KINDS[kind].plays_corpus or rng.random() >= share:
            return None
        if self._playable and (not proposes or rng.random() < 0.5):
            return replace(rng.choice(self._playable), message="")
        return rng.choice(self._corpus) if proposes and self._corpus else None

    def repeated(self, kind: str, count: int, replay: Replay, step: int, rng: random.Random) -> list[Task]:
        """Draw up to ``count`` tasks that solvers answer again, by the rule of `selfplay.replay`."""
        tasks = self.tasks(kind)
        if replay in ("learnability", "easy_to_hard"):
            return self._by_learnability(tasks, step)(count, rng)
        seeds = [task for task in tasks if task.step == 0] if replay == "newest_and_seeds" else []
        drawn = rng.sample(seeds, min(count // 2, len(seeds)))
        learnable = [task for task in tasks if task.solve_rate is not None and 0 < task.solve_rate < 1]
        recent = learnable[-4 * count :] if count else []
        return drawn + rng.sample(recent, min(count - len(drawn), len(recent)))

    def _by_learnability(self, tasks: Sequence[Task], step: int) -> Draw:
        """Draw in proportion to p (1 - p) of the latest solve rate p: 1/4 of a task that was never answered."""
        rates = (self.rate(task.id, step) for task in tasks)
        return partial(_weighted, tasks, [*accumulate(rate * (1 - rate) for rate in rates)])

    def sample_tasks(self, kind: str, count: int, excluded: Collection[str], rng: random.Random) -> list[Task]:
        """Draw stored tasks for solvers, without excluded ids; repeat tasks only if there are too few."""
        pool = [task for task in self.tasks(kind) if task.id not in excluded]
        if len(pool) >= count:
            return rng.sample(pool, count)
        again = pool or self.tasks(kind)
        return pool + [rng.choice(again) for _ in range(count - len(pool))]


def _weighted(tasks: Sequence[Task], cumulative: Sequence[float], count: int, rng: random.Random) -> list[Task]:
    """Draw up to ``count`` tasks, none twice. ``cumulative``: sums of their weights up to each."""
    chosen: dict[int, Task] = {}
    while len(chosen) < min(count, len(tasks)):
        (index,) = rng.choices(range(len(tasks)), cum_weights=cumulative)
        chosen[index] = tasks[index]
    return list(chosen.values())


def _named(task: Task, names: Mapping[str, str]) -> str | None:
    """Return the name under one of the `held_out_keys` of the task's program."""
    return next((names[key] for key in held_out_keys(task.program) if key in names), None)
