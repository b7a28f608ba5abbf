import asyncio

import pytest

from azr.concurrency import gather, stable_seed


async def value(result: int, after: int) -> int:
    for _ in range(after):
        await asyncio.sleep(0)
    return result


async def test_results_come_in_the_order_of_the_work():
    assert await gather(value(1, after=3), value(2, after=0), value(3, after=1)) == [1, 2, 3]
    assert await gather() == []


async def test_the_first_failure_ends_the_others_and_is_raised_as_itself():
    cancelled = []

    async def fail() -> int:
        await asyncio.sleep(0)
        raise KeyError("first")

    async def wait() -> int:
        try:
            return await value(0, after=10**6)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with pytest.raises(KeyError, match="first"):
        await gather(wait(), fail(), wait())
    assert cancelled == [True, True]


def test_seeds_are_the_same_in_every_process_and_far_apart():
    assert stable_seed(1, "000001", "solve", 3) == 270069199697057
    seeds = {stable_seed(1, name, kind, index) for name in "abc" for kind in "xy" for index in range(500)}
    assert len(seeds) == 3000 and all(0 <= seed < 2**48 for seed in seeds)
