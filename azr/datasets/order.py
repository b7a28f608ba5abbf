"""Which rows a step takes: every row once an epoch, each epoch in an order of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from azr.config import DataConfig
from azr.records import NO_ROWS_TAKEN, RowsLeft


class RowOrder:
    """Deals out a run's rows, and remembers for each step which were left of its epoch.

    The order of an epoch follows from the seed, the epoch and the number of rows. After a resume, `RowsLeft` of the
    checkpoint decides the rest of its epoch, so options may change meanwhile: rows that no longer fit are passed over,
    and rows that now fit join in the next epoch. Rows of another file begin an epoch.

    Example: ``order = RowOrder(["a", "b", "c"], "e3b0…", seed=1)``; ``order.take(1, 2)`` gives two pairs such as
    ``(0, 2)``, epoch and index of a row, and ``order.left_after(1)`` names the third row.
    """

    def __init__(
        self, ids: Sequence[str], file: str, seed: int, left: RowsLeft | None = NO_ROWS_TAKEN, taken: int = 0
    ) -> None:
        """Begin with the rows that a checkpoint has left, by default those of a new run.

        ``ids``: ids of the rows, all different. ``file``: digest of their file. ``left`` None: the checkpoint does not
        say, and ``taken`` rows were taken before, as `rows_taken` counts them.
        """
        assert ids, "there is no row to take"
        self._ids, self._file, self._seed = ids, file, seed
        if left is None:
            self._epoch, self._next = divmod(taken, len(ids))
            self._rows = epoch_order(self._epoch, len(ids), seed)
        elif left.file == file:
            index_of = {id: index for index, id in enumerate(ids)}
            self._epoch, self._next = left.epoch, 0
            self._rows = [index_of[id] for id in left.ids if id in index_of]
        else:
            self._epoch, self._next = (left.epoch + 1 if left.file else 0), 0
            self._rows = epoch_order(self._epoch, len(ids), seed)
        self._after = [(0, self._epoch, self._rows, self._next)]
        """Positions after each step that took rows: step, epoch, rows of the epoch, index of the next of them."""

    def take(self, step: int, count: int) -> list[tuple[int, int]]:
        """Epoch and index of the next rows, both from 0; steps take theirs in their order, each at once or in parts.

        A step may take the last rows of an epoch and the first of the next.
        """
        assert step >= self._after[-1][0], f"step {step} takes its rows after step {self._after[-1][0]}"
        taken: list[tuple[int, int]] = []
        while len(taken) < count:
            if self._next == len(self._rows):
                self._epoch, self._next = self._epoch + 1, 0
                self._rows = epoch_order(self._epoch, len(self._ids), self._seed)
            taken.append((self._epoch, self._rows[self._next]))
            self._next += 1
        if self._after[-1][0] == step:
            self._after.pop()
        self._after.append((step, self._epoch, self._rows, self._next))
        return taken

    def left_after(self, step: int) -> RowsLeft:
        """Rows of the epoch that a run has left after this step, whatever later steps have taken meanwhile."""
        _, epoch, rows, start = next(after for after in reversed(self._after) if after[0] <= step)
        return RowsLeft(epoch=epoch, ids=tuple(self._ids[row] for row in rows[start:]), file=self._file)


def rows_taken(data: DataConfig, step: int) -> int:
    """Rows that the steps up to this one took, if they all had these options."""
    steps = step // 2 if data.play == "alternate" else step
    return steps * data.prompts


@lru_cache(maxsize=2)
def epoch_order(epoch: int, count: int, seed: int) -> list[int]:
    """Indices of the rows in the order of this epoch."""
    return random.Random(f"data/{seed}/{epoch}").sample(range(count), count)
