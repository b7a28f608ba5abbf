"""Steps played ahead of learning, and which of their tokens are too old."""

import asyncio
from contextlib import aclosing
from functools import partial

import numpy as np
import pytest

from azr.experiment import drop_stale, play_ahead
from azr.records import Sample
from azr.selfplay.play import StepResult
from tests.runs import factory
from tests.runs.factory import completion


async def play(begun: list[int], step: int) -> StepResult:
    begun.append(step)
    await asyncio.sleep(0)
    if step == 9:
        raise ValueError("step 9")
    return StepResult(samples=[], data={"step": step})


@pytest.mark.parametrize("ahead", [0, 1, 2])
async def test_play_is_ahead_of_learning_by_so_many_steps_and_no_more(ahead: int) -> None:
    begun, permits = list[int](), asyncio.Semaphore(1 + ahead)
    async with aclosing(play_ahead(partial(play, begun), range(4, 9), permits)) as results:
        for step in range(4, 9):
            assert (await anext(results)).data == {"step": step}
            await asyncio.sleep(0.01)  # while this step is learned
            assert begun == list(range(4, min(8, step + ahead) + 1))
            permits.release()


@pytest.mark.parametrize("ahead", [0, 1])
async def test_a_failure_of_play_is_raised_where_its_step_is_awaited(ahead: int) -> None:
    begun, permits = list[int](), asyncio.Semaphore(1 + ahead)
    async with aclosing(play_ahead(partial(play, begun), range(8, 11), permits)) as results:
        assert (await anext(results)).data == {"step": 8}
        await asyncio.sleep(0.01)
        permits.release()
        with pytest.raises(ValueError, match="step 9"):
            await anext(results)
    assert begun == [8, 9], "nothing is played after a failure"


async def test_leaving_ends_what_is_under_way() -> None:
    async def forever(step: int) -> StepResult:
        if step > 1:
            await asyncio.sleep(1000)
        return StepResult(samples=[])

    before = asyncio.all_tasks()
    async with aclosing(play_ahead(forever, range(1, 4), asyncio.Semaphore(2))) as results:
        await anext(results)
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


def sample(*versions: int, trace_tokens: int = 0) -> Sample:
    made = completion(range(len(versions)), versions=np.array(versions, np.int32))
    return factory.sample("solver", completion=made, trace_tokens=trace_tokens)


def kept(samples: list[Sample], version: int, staleness: int) -> list[list[int]]:
    drop_stale(samples, version, staleness)
    return [each.completion.weight_versions.tolist() for each in samples if each.used == "trained"]


def test_samples_with_a_token_that_is_too_old_are_stale_and_tokens_of_a_trace_have_no_age() -> None:
    samples = [sample(5, 5), sample(4, 5), sample(3, 5), sample(4, 4)]
    assert len(kept(samples, 5, 0)) == 4, "without staleness nothing is too old"
    assert kept(samples, 5, 1) == [[5, 5], [4, 5], [4, 4]]
    assert [each.used for each in samples] == ["trained", "trained", "stale", "trained"]
    assert kept([sample(0, 0, trace_tokens=2), sample(4, 5), sample(3, 5)], 5, 1) == [[0, 0], [4, 5]]
