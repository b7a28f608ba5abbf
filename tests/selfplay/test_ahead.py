"""Steps played ahead of learning, and which of their tokens are too old."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from azr.records import Completion, FinishReason, Role, Sample
from azr.selfplay.ahead import PlayAhead
from azr.selfplay.in_flight import Origin
from azr.selfplay.pieces import Begun, Carried
from azr.selfplay.play import StepResult
from azr.selfplay.staleness import select_fresh

ORIGIN = Origin(step=1, name="000001", kind="deduction", begins="propose")
NOTHING = StepResult(trajectories=[], proposal_stats={}, stored=[], sampled_tokens={}, ungraded=0, forms={})  # type: ignore[arg-type]


class Recorder:
    def __init__(self) -> None:
        self.begun: list[int] = []
        self.carried: list[int] = []

    async def play(self, step: int, carried: Sequence[Carried]) -> StepResult:
        self.begun.append(step)
        self.carried.append(len(carried))
        await asyncio.sleep(0)
        if step == 9:
            raise ValueError("step 9")
        return replace(NOTHING, ungraded=step)


@pytest.mark.parametrize("ahead", [0, 1, 2])
async def test_play_is_ahead_of_learning_by_so_many_steps_and_no_more(ahead: int) -> None:
    recorder = Recorder()
    async with PlayAhead(recorder.play, 4, 8, ahead) as steps:
        for step in range(4, 9):
            assert (await steps.next()).ungraded == step
            await asyncio.sleep(0.01)  # while this step is learned
            assert recorder.begun == list(range(4, min(8, step + ahead) + 1))
            await steps.learned(step)


@pytest.mark.parametrize("ahead", [0, 1])
async def test_a_failure_of_play_is_raised_where_its_step_is_awaited(ahead: int) -> None:
    async with PlayAhead(Recorder().play, 8, 10, ahead) as steps:
        assert (await steps.next()).ungraded == 8
        await steps.learned(8)
        with pytest.raises(ValueError, match="step 9"):
            await steps.next()


async def test_leaving_ends_what_is_under_way() -> None:
    async def forever(step: int, carried: Sequence[Carried]) -> StepResult:
        if step == 1:
            return replace(NOTHING, carried=[Carried(Begun().start(asyncio.sleep(1000), ORIGIN), ORIGIN)])
        return await carried[0].work  # type: ignore[return-value]

    before = asyncio.all_tasks()
    async with PlayAhead(forever, 1, 3, 1) as steps:
        await steps.next()
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_share_is_waited_for_and_the_rest_goes_on() -> None:
    begun, gate = Begun(), asyncio.Event()

    async def answers(late: bool) -> list:
        if late:
            await gate.wait()
        return []

    for index in range(10):
        begun.start(answers(late=index == 3), ORIGIN)
    await asyncio.wait_for(begun.until(0.9), 1)
    assert len(begun.unfinished) == 1
    gate.set()
    await begun.until(1.0)
    assert not begun.unfinished


async def test_the_first_failure_ends_the_wait() -> None:
    async def fail() -> list:
        raise OSError("lost")

    begun = Begun()
    begun.start(asyncio.sleep(1000), ORIGIN)
    begun.start(fail(), ORIGIN)
    with pytest.raises(OSError, match="lost"):
        await asyncio.wait_for(begun.until(1.0), 1)
    await asyncio.gather(*begun.cancel(), return_exceptions=True)


def trajectory(*versions: int) -> Sample:
    completion = Completion(
        prompt_ids=(1,),
        response_ids=np.zeros(len(versions), np.int32),
        logprobs=np.zeros(len(versions), np.float32),
        finish_reason=FinishReason.STOP,
        weight_versions=np.array(versions, np.int32),
    )
    return Sample(completion=completion, role=Role.SOLVER, kind="deduction", problem_id="a", group="a", reward=0.0)


def test_trajectories_with_a_token_that_is_too_old_are_dropped_and_counted() -> None:
    batch = select_fresh([trajectory(5, 5), trajectory(4, 5), trajectory(3, 5), trajectory(4, 4)], 5, 1)
    assert [t.completion.weight_versions.tolist() for t in batch.trajectories] == [[5, 5], [4, 5], [4, 4]]
    assert batch.metrics == {"dropped": 1.0, "mean": 0.5, "max": 1.0, "mixed": pytest.approx(1 / 3)}


def test_tokens_of_a_trace_have_no_age() -> None:
    whole, prefix = replace(trajectory(0, 0), trace_tokens=2), replace(trajectory(0, 4, 5), trace_tokens=1)
    batch = select_fresh([whole, prefix, replace(trajectory(0, 3, 5), trace_tokens=1)], 5, 1)
    assert batch.trajectories == [whole, prefix]
    assert batch.metrics == {"dropped": 1.0, "mean": 0.5, "max": 1.0, "mixed": 1.0}
    assert select_fresh([whole], 5, 1).metrics == {"dropped": 0.0}


def test_without_staleness_nothing_is_looked_at() -> None:
    batch = select_fresh([trajectory(1)], 5, 0)
    assert len(batch.trajectories) == 1 and not batch.metrics
