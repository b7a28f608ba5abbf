"""Which rows a step takes. It follows from the seed and the step alone, so a resumed run goes on amid an epoch."""

from __future__ import annotations

import random
from functools import lru_cache

from azr.config import DataConfig


def rows_of_step(data: DataConfig, step: int, count: int, seed: int) -> list[tuple[int, int]]:
    """Epoch and row number, both from 0, of the rows that this step, counted from 1, takes of ``count``.

    Epochs follow one another without a gap, each in an order of its own, so a step may take the last rows of one and
    the first of the next.
    """
    if not data.takes_rows(step):
        return []
    before = step // 2 - 1 if data.play == "alternate" else step - 1
    positions = range(before * data.prompts, (before + 1) * data.prompts)
    return [(epoch, _order(epoch, count, seed)[place]) for epoch, place in (divmod(at, count) for at in positions)]


@lru_cache(maxsize=2)
def _order(epoch: int, count: int, seed: int) -> list[int]:
    return random.Random(f"data/{seed}/{epoch}").sample(range(count), count)
