"""`rollout.refill`: a step proposes until enough tasks are learnable, the same ones whatever finishes first."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from azr.config import Config
from azr.prepare import contradictions
from azr.records import Completion, Sample
from azr.selfplay.journal import Journal, write_journal
from azr.selfplay.play import StepResult
from tests.selfplay.test_journal import Executor
from tests.selfplay.test_play import CODEC, CONFIG, completion, proposal, replace_play, seeded, self_play

WANTED, ASKS = 5, 3
REFILL = replace_play(
    replace(CONFIG, rollout=replace(CONFIG.rollout, refill=ASKS)), proposer_prompts=WANTED, solver_prompts=6
)


class Engine:
    """The seed of a request decides whether a proposal is well-formed; a task is solved always, never or sometimes.

    Only the times at which it answers differ from one engine to the next.
    """

    def __init__(self, times: int, valid: float = 0.8) -> None:
        self._times, self._valid, self.asked = random.Random(times), valid, Counter[int]()

    async def generate(self, prompt_ids: list[int], *, n: int, seed: int, **_: object) -> list[Completion]:
        self.asked[seed] += 1
        await asyncio.sleep(self._times.random() ** 4 * 0.02)
        rng, prompt = random.Random(seed), CODEC.decode(prompt_ids)
        if prompt.startswith("<|propose|>"):
            is_valid = rng.random() < self._valid
            return [completion(prompt_ids, proposal(f"a + {seed % 10**9}") if is_valid else "<|program|>no form")]
        chance = random.Random(prompt).choice([0.0, 0.5, 0.5, 1.0])
        texts = ["<|output|>3<|end|>" if rng.random() < chance else "<|output|>4<|end|>" for _ in range(n)]
        return [completion(prompt_ids, text) for text in texts]


def played(config: Config, engine: Engine, number: int = 1, journal: Journal | None = None) -> StepResult:
    journal = journal or Journal(engine)
    return asyncio.run(self_play(config, engine, Executor(), seeded(config), number, journal=journal).play())


def learnable(result: StepResult) -> list[bool]:
    """Whether each proposal became a learnable task, in the order of their indices."""
    proposed = sorted((each for each in result.samples if each.role == "proposer"), key=lambda each: each.problem_id)
    return [each.solve_rate is not None and 0 < each.solve_rate < 1 for each in proposed]


def groups(samples: list[Sample]) -> list[list[Sample]]:
    found = defaultdict[str, list[Sample]](list)
    for sample in samples:
        if sample.phase == "estimate":
            found[sample.group].append(sample)
    return list(found.values())


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("number", range(1, 7))
def test_as_few_are_proposed_as_hold_enough_learnable_tasks_and_the_same_ones_in_any_order(
    number, is_deterministic
) -> None:
    config = replace(REFILL, run=replace(REFILL.run, deterministic=is_deterministic))
    first, *others = (played(config, Engine(times), number) for times in range(3))
    assert all(other == first for other in others)
    taught = learnable(first)
    assert len(taught) == WANTED * ASKS or (sum(taught) == WANTED and taught[-1])
    assert sum(each.phase == "solve" and each.used == "trained" for each in first.samples) == 6
    assert all(each.used == "trained" for each in first.samples if each.role == "proposer")
    for group in groups(first.samples):
        differ = len({each.accuracy for each in group}) > 1
        assert {each.used for each in group} == {"trained" if differ else "unlearnable"}
        assert all(each.reward is not None for each in group)


def test_asking_ends_at_its_bound_and_never_begins_without_refill() -> None:
    assert len(learnable(played(REFILL, Engine(0, valid=0.0)))) == WANTED * ASKS
    once = replace(REFILL, rollout=replace(REFILL.rollout, refill=1))
    result = played(once, Engine(0))
    assert len(learnable(result)) == WANTED and {each.used for each in result.samples} == {"trained"}
    more, fewer = played(REFILL, Engine(0)), {task.id for task in result.stored}
    assert fewer < {each.problem_id for each in more.samples}, "what is asked first does not change"


def test_answers_that_only_estimate_stay_estimates() -> None:
    result = played(replace_play(REFILL, train_on_estimates=False), Engine(0))
    assert sum(learnable(result)) == WANTED
    assert {each.used for group in groups(result.samples) for each in group} == {"estimate"}


@pytest.mark.parametrize("seed", range(6))
def test_a_step_that_is_killed_goes_on_as_if_it_had_not_been(seed: int, tmp_path: Path) -> None:
    """A step that was played ahead is begun again in the same way."""
    straight = played(REFILL, Engine(99), 2)
    rng = random.Random(seed)

    async def run() -> StepResult:
        engine = Engine(seed)
        journal = Journal(engine)
        for _ in range(3):
            step = self_play(REFILL, engine, Executor(), seeded(REFILL), 2, journal=journal)
            playing = asyncio.create_task(step.play())
            await asyncio.sleep(rng.random() * 0.03)
            write_journal(tmp_path, journal.copy(1))
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            await journal.close()
            journal = Journal(engine)
            journal.read(tmp_path, 1)
        known = {number for each in journal._items.values() for number in each.answers}
        engine.asked.clear()
        result = await self_play(REFILL, engine, Executor(), seeded(REFILL), 2, journal=journal).play()
        assert not known & set(engine.asked), "what was answered is not asked again"
        return result

    assert asyncio.run(run()) == straight


def test_what_cannot_be_refilled_is_said() -> None:
    def said(config: Config) -> str:
        return " ".join(contradictions(config))

    assert "rollout.refill" not in said(REFILL)
    assert "selfplay.group_size" in said(replace_play(REFILL, group_size=1))
    assert "ablation.new_tasks" in said(replace_play(REFILL, new_tasks=False))
    alone = replace(REFILL, data=replace(REFILL.data, path="rows.jsonl", samples=1))
    assert "data.samples" in said(alone)
    assert "rollout.refill" not in said(replace(alone, data=replace(alone.data, samples=8)))
    sft = replace(REFILL.algorithm, off_policy=replace(REFILL.algorithm.off_policy, loss="sft"))
    assert "off_policy" in said(replace(alone, algorithm=sft, data=replace(alone.data, samples=8, traces=1)))
