"""In a deterministic run a step's outcome does not depend on who finished first."""

import asyncio
import random
from dataclasses import replace

import pytest

from azr.config import Config, IntrinsicRewardConfig, RewardConfig, RunConfig
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.records import Completion, Role
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.play import StepResult, sort_samples
from azr.tasks.base import RejectReason
from azr.tasks.registry import KINDS
from tests.selfplay.test_play import CODEC, CONFIG, completion, funnel, proposal, replace_play, self_play, trained

PLAY = replace_play(
    replace(
        CONFIG,
        run=RunConfig(deterministic=True),
        reward=RewardConfig(intrinsic=IntrinsicRewardConfig(bonuses=("answer_diversity:0.5",))),
    ),
    kinds=("deduction", "abduction"),
    proposer_prompts=12,
    solver_prompts=5,
)
"""More proposals than solves and few distinct programs, for a buffer that overflows: all that order can touch."""
CAPACITY = 6


class Delays:
    """Model and executor: requests decide the answers, and dice how long they take."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    async def _wait(self) -> None:
        for _ in range(self._dice.randrange(12)):
            await asyncio.sleep(0)

    async def generate(self, prompt_ids: list[int], *, n: int, seed: int, **_: object) -> list[Completion]:
        await self._wait()
        dice = random.Random(f"{seed}/{prompt_ids}")
        if CODEC.decode(prompt_ids).startswith("<|propose|>"):
            spaces = " " * dice.randint(1, 3)
            return [completion(prompt_ids, proposal(f"a +{spaces}{dice.randint(1, 8)}", str(dice.randint(1, 2))))]
        tag = "output" if "<|deduction|>" in CODEC.decode(prompt_ids) else "input"
        return [completion(prompt_ids, f"<|{tag}|>{dice.randint(2, 4)}<|end|>") for _ in range(n)]

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        await self._wait()
        space: dict = {}
        exec(request.program, space)  # only programs from above come here
        values = [str(space["f"](int(text))) for text in request.inputs]
        calls = tuple(CallResult(status=CallStatus.OK, value=value) for value in values)
        return ExecutionResult(outputs=calls, deterministic=True)


async def play(config: Config, world: Delays) -> tuple[StepResult, dict]:
    """A seeding and two steps; the result of the last."""
    buffer = TaskBuffer(config.selfplay.kinds, CAPACITY)
    for kind in config.selfplay.kinds:
        buffer.add(KINDS[kind].seed())
    await self_play(config, world, world, buffer, 0, "seed0").seed(config.selfplay.kinds)
    await self_play(config, world, world, buffer, 1).play()
    result = await self_play(config, world, world, buffer, 2).play()
    return result, {kind: buffer.tasks(kind) for kind in config.selfplay.kinds}


@pytest.mark.parametrize("play_options", [{}, {"new_tasks": False}, {"proposer_prompts": 3, "solver_prompts": 9}])
async def test_steps_are_equal_whatever_the_order_in_which_things_finish(play_options):
    config = replace_play(PLAY, **play_options)
    first = await play(config, Delays(0))
    assert trained(first[0]) and all(len(tasks) > 2 for tasks in first[1].values())
    for seed in range(1, 15):
        assert await play(config, Delays(seed)) == first


async def test_the_orders_that_are_tried_matter():
    """Otherwise the test above would say nothing."""
    loose = replace(PLAY, run=RunConfig(deterministic=False))
    first, _ = await play(loose, Delays(0))
    assert funnel(first, "deduction").rejected[RejectReason.DUPLICATE] > 0
    results = [await play(loose, Delays(seed)) for seed in range(1, 15)]
    assert any(trained(result) != trained(first) for result, _ in results)


async def test_other_seeds_give_other_steps():
    first, _ = await play(PLAY, Delays(0))
    other, _ = await play(replace(PLAY, run=RunConfig(deterministic=True, seed=2)), Delays(0))
    assert trained(first) != trained(other)


async def test_trajectories_of_one_group_are_sorted_too():
    result, _ = await play(PLAY, Delays(0))
    shuffled = random.Random(0).sample(result.samples, len(result.samples))
    assert sort_samples(shuffled) == result.samples
    assert {t.role for t in trained(result)} == {Role.PROPOSER, Role.SOLVER}
