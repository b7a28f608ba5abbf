"""Latest solve rates of stored tasks, from every group of answers to them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from pathlib import Path

import msgspec

from azr.records import Sample, grouped

FILE = "solve_rates.json"
DECAY = 0.9
"""Factor of a task's counts for each step that passes, so that the rate follows the policy."""

Counts = tuple[float, float, int]
"""Right and graded answers, with older ones decayed, and the step of the newest."""


class SolveRates:
    """Answers to stored tasks, counted after each step that was played.

    A step draws from the counts of the steps before it. Those after the last recorded step are kept apart, since a
    checkpoint may be written when the next step has been played already.
    """

    def __init__(self) -> None:
        self._after: dict[int, Mapping[str, Counts]] = {0: {}}
        """By step, oldest first; never changed once they are there."""

    def note(self, step: int, samples: Iterable[Sample], stored: Container[str]) -> None:
        """Count a step's answers to tasks with ids in ``stored``, and forget all other tasks."""
        answered = ((each.problem_id, each.accuracy) for each in samples if each.problem_id in stored)
        new = grouped((id, accuracy) for id, accuracy in answered if accuracy is not None)
        counts = {id: each for id, each in self._latest.items() if id in stored}
        for id, answers in sorted(new.items()):
            right, graded = self._counts(id, step)
            counts[id] = right + sum(answers), graded + len(answers), step
        self._after[step] = counts

    def is_known(self, id: str) -> bool:
        """Whether the task has been answered."""
        return id in self._latest

    def rate(self, id: str, step: int) -> float:
        """Return the mean of a Beta(1, 1) prior updated by the task's answers, as old as they are in this step."""
        right, graded = self._counts(id, step)
        return (1 + right) / (2 + graded)

    def learnability(self, id: str, step: int) -> float:
        """Return p (1 - p) of the task's rate p; 1/4 if it was never answered."""
        rate = self.rate(id, step)
        return rate * (1 - rate)

    def recorded(self, step: int) -> None:
        """Forget what only checkpoints of earlier steps would hold."""
        first = max(each for each in self._after if each <= step)
        self._after = {each: counts for each, counts in self._after.items() if each >= first}

    def write(self, folder: Path, step: int) -> None:
        """Write the counts after a step into a checkpoint's folder."""
        counts = self._after[max(each for each in self._after if each <= step)]
        (folder / FILE).write_bytes(msgspec.json.encode(counts))

    def read(self, folder: Path, step: int) -> None:
        """Take over the counts of the checkpoint of a step, if its folder has any."""
        if (folder / FILE).is_file():
            self._after = {step: msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, Counts])}

    @property
    def _latest(self) -> Mapping[str, Counts]:
        return self._after[max(self._after)]

    def _counts(self, id: str, step: int) -> tuple[float, float]:
        right, graded, counted = self._latest.get(id, (0.0, 0.0, step))
        decay = DECAY ** (step - counted)
        return right * decay, graded * decay
