"""Every row comes once an epoch, whatever changes between a checkpoint and the resume from it."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from azr.config import DataConfig
from azr.datasets.rows import RowOrder, epoch_order
from azr.records import NO_ROWS_TAKEN, RowsLeft
from azr.runs.checkpoint_store import INITIAL, RunState

FILE_DIGEST = "digest"
Taken = list[tuple[int, int]]


def ids_of(count: int) -> list[str]:
    return [f"row {index}" for index in range(count)]


def order_of(count: int, seed: int = 1, left: RowsLeft = NO_ROWS_TAKEN) -> RowOrder:
    return RowOrder(ids_of(count), FILE_DIGEST, seed, left)


def take(order: RowOrder, steps: Iterable[int], count: int) -> Taken:
    return [row for step in steps for row in order.take(step, count)]


def test_every_epoch_has_every_row_once_in_an_order_of_its_own() -> None:
    taken = take(order_of(10, seed=3), range(1, 16), 4)
    assert [epoch for epoch, _ in taken] == [index // 10 for index in range(60)]
    epochs = [[row for epoch, row in taken if epoch == each] for each in range(6)]
    assert all(sorted(rows) == list(range(10)) for rows in epochs)
    assert len(set(map(tuple, epochs))) == 6
    assert epochs == [epoch_order(epoch, 10, 3) for epoch in range(6)]
    assert take(order_of(10, seed=4), range(1, 16), 4) != taken
    # A step may take more rows than there are.
    rows = order_of(2).take(1, 5)
    assert Counter(row for _, row in rows) in (Counter({0: 3, 1: 2}), Counter({0: 2, 1: 3}))
    assert len(set(rows)) == 5, "the same row in two epochs is asked twice"


@pytest.mark.parametrize("play", ["alone", "mixed", "alternate"])
def test_steps_that_take_rows(play: str) -> None:
    data = DataConfig(path="rows.jsonl", play=play, prompts=3)
    steps = [step for step in range(1, 9) if data.uses_data(step)]
    assert steps == ([2, 4, 6, 8] if play == "alternate" else list(range(1, 9)))
    assert [data.uses_selfplay(step) for step in (1, 2, 3)] == [play != "alone", play == "mixed", play != "alone"]
    assert DataConfig().uses_selfplay(2) and not DataConfig().uses_data(2)


@pytest.mark.parametrize("done", range(13))
def test_a_resume_takes_the_rows_that_the_run_would_have_taken(done: int) -> None:
    """Also amid a step of two epochs, at their border, and where later steps were played ahead and thrown away."""
    through, ahead = order_of(10), order_of(10)
    expected = take(through, range(1, 31), 3)
    take(ahead, range(1, done + 4), 3)
    resumed = order_of(10, left=ahead.left_after(done))
    assert resumed.left_after(done) == ahead.left_after(done)
    assert take(resumed, range(done + 1, 31), 3) == expected[3 * done :]
    assert resumed.left_after(20) == through.left_after(20), "a resume of a resume"


COUNT = 57_000


@pytest.fixture(scope="module")
def first() -> tuple[set[int], RowsLeft]:
    """Rows of 200 steps of 128, and what they leave of the epoch."""
    order = order_of(COUNT)
    seen = {row for _, row in take(order, range(1, 201), 128)}
    assert len(seen) == 200 * 128
    return seen, order.left_after(200)


@pytest.mark.parametrize(
    "prompts, count, seed",
    [(128, COUNT, 1), (64, COUNT, 1), (256, COUNT, 1), (128, COUNT + 10, 1), (128, COUNT - 10, 1), (128, COUNT, 2)],
    ids=["same", "fewer a step", "more a step", "ten rows more fit", "ten rows fewer fit", "another seed"],
)
def test_no_row_is_repeated_or_skipped_when_options_change(first, prompts, count, seed):
    seen, left = first
    order = order_of(count, seed, left)
    rest = [int(id.split()[1]) for id in left.ids if int(id.split()[1]) < count]
    steps = -(-len(rest) // prompts)
    taken = take(order, range(201, 201 + steps), prompts)
    assert [row for epoch, row in taken if epoch == 0] == rest, "the same rows follow in the same order"
    assert not seen & set(rest) and seen | set(rest) >= set(range(min(count, COUNT)))
    following = [row for epoch, row in taken if epoch == 1]
    assert following == epoch_order(1, count, seed)[: len(following)], "all rows that fit now are in the next epoch"


def test_a_row_is_known_by_its_id_wherever_it_stands_and_rows_of_another_file_begin_an_epoch() -> None:
    order = RowOrder(["a", "b", "c", "d"], FILE_DIGEST, 1)
    seen = ["abcd"[row] for _, row in order.take(1, 2)]
    names = ["d", "new", "c", "b", "a"]
    later = RowOrder(names, FILE_DIGEST, 1, order.left_after(1))
    assert [names[row] for _, row in later.take(2, 2)] == list(order.left_after(1).ids)
    assert set(seen).isdisjoint(order.left_after(1).ids)
    assert sorted(names[row] for _, row in later.take(3, 5)) == sorted(names)
    order = order_of(10)
    order.take(1, 4)
    other = RowOrder(ids_of(6), "another digest", 1, order.left_after(1))
    assert other.take(2, 6) == [(1, row) for row in epoch_order(1, 6, 1)]
    assert other.left_after(1).file == other.left_after(2).file == "another digest"
    first = RowOrder(ids_of(6), FILE_DIGEST, 1, NO_ROWS_TAKEN)
    assert first.take(31, 1) == [(0, epoch_order(0, 6, 1)[0])], "rows that join a run later begin with their first"
    # A run of which no row is left continues with the next epoch.
    for left in ((), ("gone",)):
        order = order_of(3, left=RowsLeft(epoch=4, ids=left, file=FILE_DIGEST))
        assert order.take(9, 3) == [(5, row) for row in epoch_order(5, 3, 1)]


def test_a_step_without_rows_leaves_what_the_one_before_has_left_which_is_in_the_runs_state(tmp_path: Path) -> None:
    order = order_of(10)
    order.take(2, 3)
    order.take(4, 3)
    assert order.left_after(0) == order.left_after(1) != order.left_after(2) == order.left_after(3)
    assert [len(order.left_after(step).ids) for step in (1, 2, 3, 4, 99)] == [10, 7, 7, 4, 4]
    order = order_of(10)
    order.take(1, 4)
    state = RunState(step=1, elapsed_s=2.5, offsets=INITIAL.offsets, rows=order.left_after(1))
    state.write(tmp_path)
    assert RunState.read(tmp_path)[0] == state and INITIAL.rows == NO_ROWS_TAKEN
