"""Every row comes once an epoch, in an order that seed and step alone decide."""

from __future__ import annotations

from collections import Counter

import pytest

from azr.config import DataConfig
from azr.datasets.order import rows_of_step


def test_every_epoch_has_every_row_once_in_an_order_of_its_own() -> None:
    data = DataConfig(path="rows.jsonl", prompts=4)
    taken = [each for step in range(1, 16) for each in rows_of_step(data, step, 10, seed=3)]
    assert [epoch for epoch, _ in taken] == [index // 10 for index in range(60)]
    epochs = [[row for epoch, row in taken if epoch == each] for each in range(6)]
    assert all(sorted(rows) == list(range(10)) for rows in epochs)
    assert len(set(map(tuple, epochs))) == 6


def test_a_step_is_the_same_whatever_was_asked_before() -> None:
    data = DataConfig(path="rows.jsonl", prompts=3)
    ahead = [rows_of_step(data, step, 7, seed=1) for step in range(1, 30)]
    assert rows_of_step(data, 17, 7, seed=1) == ahead[16]
    assert rows_of_step(data, 17, 7, seed=2) != ahead[16]


def test_a_step_may_take_more_rows_than_there_are() -> None:
    rows = rows_of_step(DataConfig(path="rows.jsonl", prompts=5), 1, 2, seed=1)
    assert Counter(row for _, row in rows) in (Counter({0: 3, 1: 2}), Counter({0: 2, 1: 3}))
    assert len(set(rows)) == 5, "the same row in two epochs is asked twice"


@pytest.mark.parametrize("play", ["alone", "mixed"])
def test_steps_that_alternate_take_the_rows_of_steps_that_do_not(play: str) -> None:
    every, second = (
        DataConfig(path="rows.jsonl", play=play, prompts=3),
        DataConfig(path="rows.jsonl", play="alternate", prompts=3),
    )
    for step in range(1, 9):
        assert rows_of_step(second, 2 * step, 10, seed=1) == rows_of_step(every, step, 10, seed=1)
        assert rows_of_step(second, 2 * step - 1, 10, seed=1) == []
    assert [second.plays_itself(step) for step in (1, 2, 3)] == [True, False, True]
    assert every.plays_itself(2) == (play == "mixed")
    assert DataConfig().plays_itself(2) and rows_of_step(DataConfig(), 1, 5, seed=1) == []
