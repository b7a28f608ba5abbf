"""A step of self-play with scripted responses and the real executor, and in whatever order things finish."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import pytest_asyncio

from azr.config import Config, ExecutorConfig, RewardConfig, RolloutConfig, RunConfig, SelfPlayConfig
from azr.config_tree import override
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.executor.pool import SandboxPool
from azr.prompts.codec import PromptCodec
from azr.records import REPEATS, VALID, Completion, Judgement, Sample
from azr.runs.metrics import step_metrics
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.chaining import is_chained
from azr.selfplay.journal import Journal
from azr.selfplay.play import SelfPlayStep, StepResult, sort_samples
from azr.tasks.base import RejectReason
from azr.tasks.normalize import fingerprint
from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import KINDS
from tests.conftest import byte_tokenizer
from tests.runs import factory

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = Config(
    selfplay=SelfPlayConfig(
        kinds=("deduction",), proposer_prompts=4, solver_prompts=3, references=1, group_size=4, train_on_estimates=True
    ),
    rollout=RolloutConfig(max_prompt_tokens=400, max_response_tokens=200),
    executor=ExecutorConfig(workers=2, wall_s=5.0),
)
CODEC = PromptCodec(byte_tokenizer(), CompactFormat())


class Script:
    """Stands where the engine stands: answers proposal prompts from one list, solver prompts by a function."""

    def __init__(self, proposals: list[str], solve: Callable[[str, int], str]) -> None:
        self._proposals = iter(proposals)
        self._solve = solve
        self._solved: Counter[str] = Counter()

    async def generate(self, prompt_ids: list[int], *, n: int, **_: object) -> list[Completion]:
        prompt = CODEC.decode(prompt_ids)
        if prompt.startswith("<|propose|>"):
            return [completion(prompt_ids, next(self._proposals)) for _ in range(n)]
        texts = []
        for _ in range(n):
            texts.append(self._solve(prompt, self._solved[prompt]))
            self._solved[prompt] += 1
        return [completion(prompt_ids, text) for text in texts]


def completion(prompt_ids: list[int], text: str) -> Completion:
    finish = "stop" if text.endswith("<|end|>") else "length"
    return factory.completion(CODEC.encode(text), tuple(prompt_ids), finish=finish)


def proposal(body: str, given: str = "2") -> str:
    return f"<|program|>def f(a):\n    return {body}<|input|>{given}<|end|>"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def play():
    """Plays one step with scripted responses, and with a real executor unless given another."""
    async with SandboxPool(CONFIG.executor) as pool:

        async def play_step(
            config: Config, script: Script, executor=None, buffer=None, name: str = "000001"
        ) -> tuple[StepResult, TaskBuffer]:
            buffer = buffer or seeded(config)
            return await self_play(config, script, executor or pool, buffer, name=name).play(), buffer

        yield play_step


def self_play(
    config: Config, sampler, executor, buffer: TaskBuffer, step: int = 1, name: str = "", journal: Journal | None = None
) -> SelfPlayStep:
    journal = journal or Journal(sampler.generate, 1.0)
    parts = {"buffer": buffer, "codec": CODEC, "execute": executor.execute, "journal": journal}
    name = name or f"{step:06d}"
    return SelfPlayStep(config=config, step=step, name=name, phase=lambda name: nullcontext(), **parts)


def trained(result: StepResult) -> list[Sample]:
    return [sample for sample in result.samples if sample.used == "trained"]


def untrained(result: StepResult) -> list[Sample]:
    return [sample for sample in result.samples if sample.used != "trained"]


def funnel(result: StepResult, kind: str) -> SimpleNamespace:
    """How far the proposals of a kind got."""
    proposals = [each for each in result.samples if each.role == "proposer" and each.kind == kind]
    return SimpleNamespace(
        proposed=len(proposals),
        rejected=Counter(each.verdict for each in proposals if each.verdict != VALID),
        solve_rates=sorted(each.solve_rate for each in proposals if each.solve_rate is not None),
    )


def seeded(config: Config) -> TaskBuffer:
    buffer = TaskBuffer(config.selfplay.kinds)
    for kind in config.selfplay.kinds:
        buffer.add(KINDS[kind].seed())
    return buffer


def half_right(prompt: str, attempt: int) -> str:
    """Every second attempt at ``a + 1`` is right."""
    return "<|output|>3<|end|>" if attempt % 2 == 0 else "<|output|>4<|end|>"


async def test_the_funnel_counts_every_proposal_and_pays_it(play):
    script = Script([proposal("a + 1"), proposal("a +"), proposal("1 // 0"), "<|program|>never ends"], half_right)
    result, buffer = await play(CONFIG, script)
    counts = funnel(result, "deduction")
    assert counts.proposed == 4
    assert counts.rejected == {RejectReason.MALFORMED: 2, RejectReason.FAILED: 1}
    assert counts.solve_rates == [0.5]
    rewards = {t.reward_parts.popitem()[0]: t.reward for t in trained(result) if t.role == "proposer"}
    assert rewards == {"learnability": 0.5, "malformed": -1.0, "failed": -1.0}
    assert buffer.sizes() == {"deduction": 2}


async def test_proposals_of_one_prompt_form_a_group_unless_their_baseline_is_their_kinds(play):
    proposals = [proposal(f"a + {i}") for i in range(5)]
    for per_prompt, sizes in ((1, [1] * 5), (2, [1, 2, 2]), (5, [5])):
        sizes_of = {"proposer_prompts": 5, "proposals_per_prompt": per_prompt, "solver_prompts": 0, "references": 2}
        config = replace_play(CONFIG, **sizes_of)
        result, _ = await play(config, Script(proposals, half_right))
        proposed = [each for each in result.samples if each.role == "proposer"]
        assert sorted(Counter(each.group for each in proposed).values()) == sizes
        prompts = {(each.group, tuple(each.completion.prompt_ids)) for each in proposed}
        assert len(prompts) == len(sizes), "a group has one prompt"
    result, _ = await play(replace_play(config, proposer_baseline="kind"), Script(proposals, half_right))
    proposed = [each for each in result.samples if each.role == "proposer"]
    assert len({each.group for each in proposed}) == 5, "groups of one have their kind's baseline"
    assert len({tuple(each.completion.prompt_ids) for each in proposed}) == 1


async def test_with_a_price_of_repeats_what_is_held_out_costs_as_much_and_still_is_not_stored(play):
    config = replace_play(replace(CONFIG, reward=RewardConfig(repeat=-1.0, novelty=0.5)), proposer_prompts=4)
    buffer = seeded(config)
    buffer._benchmark = {fingerprint("def f(other):\n    return other + 1"): "question 7 of mbpp+"}
    script = Script([proposal("a + 1"), proposal("a", "1"), proposal("a * 7"), proposal("a - (-1)")], half_right)
    result, buffer = await play(config, script, buffer=buffer)
    rewards = Counter((each.verdict, each.reward) for each in trained(result) if each.role == "proposer")
    assert rewards == {("in_benchmark", -1.0): 1, ("duplicate", -1.0): 1, ("valid", 0.0): 1, ("valid", 0.5): 1}
    assert len(buffer.tasks("deduction")) == 3


async def test_a_program_of_the_benchmark_is_counted_but_neither_stored_nor_estimated_and_estimates_are_groups(play):
    config = replace_play(CONFIG, proposer_prompts=2, solver_prompts=0)
    buffer = TaskBuffer(("deduction",), 10, {fingerprint("def f(other):\n    return other + 1"): "question 7 of mbpp+"})
    script = Script([proposal("a + 1"), proposal("a + 2")], half_right)
    result, buffer = await play(config, script, buffer=buffer)
    assert funnel(result, "deduction").rejected == {RejectReason.IN_BENCHMARK: 1}
    assert [task.program for task in buffer.tasks("deduction")] == ["def f(a):\n    return a + 2"]
    texts = [CODEC.decode(t.completion.token_ids) for t in trained(result)]
    assert len(texts) == 5 and not any("a + 1" in text for text in texts)
    (refused,) = untrained(result)
    assert refused.judgement.detail.startswith("the program is that of question 7 of mbpp+, which is held out, or the")
    config = replace_play(CONFIG, proposer_prompts=1, solver_prompts=0)
    result, _ = await play(config, Script([proposal("a + 1")], half_right))
    estimates = [t for t in trained(result) if t.role == "solver"]
    assert len(estimates) == 4 and len({t.group for t in estimates}) == 1
    assert sorted(t.reward for t in estimates) == [-0.5, -0.5, 1.0, 1.0]
    thrown = replace_play(config, train_on_estimates=False)
    result, _ = await play(thrown, Script([proposal("a + 1")], half_right))
    assert [t.role for t in trained(result)] == ["proposer"]
    kept = Counter((t.accuracy, t.phase, t.used) for t in untrained(result))
    assert kept == {(1.0, "estimate", "estimate"): 2, (0.0, "estimate", "estimate"): 2}


async def test_tasks_solved_sometimes_are_answered_again_in_groups(play):
    config = replace_play(CONFIG, proposer_prompts=2, solver_prompts=0, repeated_tasks=3)
    script = Script([proposal("a + 1"), proposal("a - 9"), *["<|output|>"] * 2], half_right)
    first, buffer = await play(config, script)
    assert funnel(first, "deduction").solve_rates == [0.0, 0.5]
    again, _ = await play(config, script, buffer=buffer, name="000002")
    answers = [t for t in trained(again) if t.role == "solver"]
    assert [t.problem_id for t in answers] == ["000001-deduction-0000"] * 4 and len({t.group for t in answers}) == 1
    assert again.stored == [] and funnel(again, "deduction").solve_rates == []
    # With rollout.partial both can end in one step: older answers must not be the baseline of newer ones.
    assert answers[0].group not in {t.group for t in trained(first)}


@pytest.mark.parametrize("replay", ["learnability", "easy_to_hard"])
async def test_a_step_replays_what_earlier_ones_could_teach_seeds_included_and_keeps_their_rates(replay, play):
    config = replace_play(CONFIG, proposer_prompts=2, solver_prompts=0, repeated_tasks=9, references=3, replay=replay)
    script = Script([proposal("a + 1"), proposal("a - 9"), *["<|output|>"] * 4], half_right)
    _, buffer = await play(config, script)
    # Of the identity program, every answer to it was wrong, as to a - 9.
    rates = [buffer.rate(task.id, 1) for task in buffer.tasks("deduction")]
    assert rates == [1 / 6, 3 / 6, 1 / 6]
    again, _ = await play(config, script, buffer=buffer, name="000002")
    repeated = Counter(t.problem_id for t in trained(again) if t.role == "solver")
    assert repeated == dict.fromkeys(["seed-deduction", "000001-deduction-0000", "000001-deduction-0001"], 4)
    prompts = [CODEC.decode(t.completion.prompt_ids) for t in again.samples if t.role == "proposer"]
    bodies = [re.findall("return (.*?)<", prompt) for prompt in prompts]
    assert all(sorted(each) == ["a", "a + 1", "a - 9"] for each in bodies)
    assert replay == "learnability" or {each[0] for each in bodies} == {"a + 1"}, "the easiest comes first"


async def test_a_duplicate_says_what_it_repeats(play):
    config = replace_play(CONFIG, proposer_prompts=4, solver_prompts=0)
    identity, new = proposal("a", "1"), proposal("a + 1")
    first, buffer = await play(config, Script([identity, new, new, "<|output|>"], half_right))
    unseen = replace_play(config, references=0)
    second, _ = await play(unseen, Script([identity, new] * 2, half_right), buffer=buffer, name="000002")
    for result, expected in ((first, {"reference": 1, "step": 1}), (second, {"seed": 2, "buffer": 2})):
        metrics = step_metrics(result.samples, ("deduction",), 4, {})
        found = {what: metrics[f"deduction/proposer/repeats/{what}"] for what in REPEATS}
        assert found == dict.fromkeys(REPEATS, 0) | expected


async def test_derived_tasks_are_played_in_groups_but_neither_stored_nor_paid_for(play):
    config = replace_play(
        CONFIG, kinds=("deduction", "abduction"), proposer_prompts=1, solver_prompts=0, derived_tasks=1
    )

    def solve(prompt: str, attempt: int) -> str:
        return half_right(prompt, attempt) if "<|deduction|>" in prompt else "<|input|>2<|end|>"

    result, buffer = await play(config, Script([proposal("a + 1"), proposal("a + 1")], solve))
    groups = Counter((t.kind, t.group) for t in trained(result) if t.role == "solver")
    assert sorted(kind for kind, _ in groups) == ["abduction", "abduction", "deduction", "deduction"]
    assert set(groups.values()) == {4} and len(groups) == 4
    assert buffer.sizes() == {"deduction": 2, "abduction": 2}
    assert [each.solve_rates for each in (funnel(result, kind) for kind in config.selfplay.kinds)] == [[0.5], [1.0]]


async def test_solvers_play_this_steps_tasks_first_and_the_buffer_after(play):
    bodies = [proposal(f"a + {n}") for n in range(4)]
    config = replace_play(CONFIG, train_on_estimates=False, references=6)
    result, _ = await play(config, Script(bodies, half_right))
    assert {task.parents for task in result.stored} == {("seed-deduction",)}, "drawn before the step adds any"
    solved = [t.problem_id for t in trained(result) if t.role == "solver"]
    assert len(solved) == 3 and all(id.startswith("000001-") for id in solved)
    result, _ = await play(config, Script([bodies[0], *["<|output|>"] * 3], half_right))
    solved = [t.problem_id for t in trained(result) if t.role == "solver"]
    assert sorted(solved) == ["000001-deduction-0000", "seed-deduction", "seed-deduction"]


async def lost_verifying(request):
    """Validate proposals, and fail whenever an abduction is graded."""
    status, value = (CallStatus.OK, "3") if not request.admitted else (CallStatus.LOST, None)
    return ExecutionResult(outputs=(CallResult(status=status, value=value),), deterministic=True)


async def test_a_proposal_that_was_lost_after_it_was_reserved_may_come_again(play):
    config = replace_play(CONFIG, kinds=("abduction",), proposer_prompts=1, solver_prompts=0)
    attempt = Script([proposal("a + 1")] * 2, lambda prompt, attempt: "<|input|>2<|end|>")
    lost, buffer = await play(config, attempt, SimpleNamespace(execute=lost_verifying))
    assert funnel(lost, "abduction").rejected == {RejectReason.LOST: 1}
    assert len(lost.samples) == 5 and not trained(lost) and buffer.sizes() == {"abduction": 1}
    again, buffer = await play(config, attempt, buffer=buffer, name="000002")
    assert not funnel(again, "abduction").rejected and funnel(again, "abduction").solve_rates == [1.0]
    assert buffer.sizes() == {"abduction": 2}


async def test_solver_only_training_still_proposes_and_length_may_cost_both_roles(play):
    config = replace_play(CONFIG, train_proposer=False, proposer_prompts=1)
    result, buffer = await play(config, Script([proposal("a + 1")], half_right))
    assert {t.role for t in trained(result)} == {"solver"}
    assert buffer.sizes() == {"deduction": 2}
    metrics = step_metrics(result.samples, config.selfplay.kinds, config.selfplay.group_size, {})
    assert "deduction/solver/reward" in metrics and "deduction/proposer/reward" not in metrics
    assert metrics["deduction/proposer/funnel/proposed"] == 1
    reward = replace(CONFIG.reward, overlong=199)
    config = replace_play(replace(CONFIG, reward=reward), proposer_prompts=1, solver_prompts=0)
    result, _ = await play(config, Script([proposal("a + 1")], half_right))
    assert funnel(result, "deduction").solve_rates == [0.5]
    for each in trained(result):
        cost = (1 - len(each.completion.response_ids)) / 199
        assert each.reward_parts["overlong"] == pytest.approx(cost)
        base = {"learnability": 0.5, "right": 1.0, "wrong": -0.5}[next(iter(each.reward_parts))]
        assert each.reward == pytest.approx(base + cost)


async def test_chained_tasks_are_estimated_trained_on_stored_and_chained_again(play):
    config = replace_play(CONFIG, proposer_prompts=2, solver_prompts=0)
    script = Script([proposal("a + 1"), proposal("a * 5", "4"), *[proposal("a", "1")] * 4], half_right)
    _, buffer = await play(config, script)
    stored = [task.id for task in buffer.tasks("deduction")[1:]]
    right = Judgement(verdict="right")
    answers = [
        Sample(role="solver", kind="deduction", problem_id=id, group="", accuracy=1.0 - index % 5 // 4, judgement=right)
        for id in stored
        for index in range(40)
    ]
    buffer.note(1, answers)
    config = replace_play(config, chained_tasks=2)
    result, _ = await play(config, script, buffer=buffer, name="000002")
    first, second = result.stored
    chains = {f"def f(a):\n    a = {one}\n    return {two}" for one, two in (("a + 1", "a * 5"), ("a * 5", "a + 1"))}
    assert {first.program, second.program} == chains
    assert [task.id for task in result.stored] == ["000002-deduction-chain-0000", "000002-deduction-chain-0001"]
    assert set(first.parents) == set(second.parents) == set(stored) and first.parents != second.parents
    assert {task.outputs for task in result.stored} == {("15",), ("21",)}
    # None of the answers, 3 and 4, is right.
    assert [task.solve_rate for task in result.stored] == [0.0, 0.0]
    groups = Counter(t.problem_id for t in trained(result) if t.role == "solver")
    assert groups == {first.id: 4, second.id: 4} and buffer.is_answered(first.id)
    metrics = step_metrics(result.samples, ("deduction",), 4, {"chains": result.chains})
    assert metrics["deduction/solver/chained/groups"] == metrics["chains/deduction/made"] == 2
    assert metrics["chains/deduction/predicted"] == pytest.approx((9 / 12) ** 2, abs=0.1)


def replace_play(config: Config, **values) -> Config:
    """The config with other options of `selfplay`, or of `ablation`."""
    ablation = {option: values.pop(option) for option in ("new_tasks", "train_proposer") if option in values}
    return replace(config, selfplay=replace(config.selfplay, **values), ablation=replace(config.ablation, **ablation))


async def test_without_new_tasks_stored_ones_are_sampled_as_groups_and_nothing_is_proposed(play):
    config = replace_play(CONFIG, new_tasks=False, proposer_prompts=2, solver_prompts=0)
    buffer = seeded(config)
    first, _ = await play(replace_play(CONFIG, proposer_prompts=1, solver_prompts=0),
                          Script([proposal("a + 1")], half_right), buffer=buffer)  # fmt: skip
    result, _ = await play(config, Script([], half_right), buffer=buffer)
    assert len(first.stored) == 1 and not result.stored and buffer.sizes() == {"deduction": 2}
    assert {t.role for t in trained(result)} == {"solver"}
    assert Counter(t.group for t in trained(result)) == {
        "estimate:000001:seed-deduction": 4, "estimate:000001:000001-deduction-0000": 4,
    }  # fmt: skip
    metrics = step_metrics(result.samples, config.selfplay.kinds, config.selfplay.group_size, {})
    assert metrics["deduction/proposer/funnel/proposed"] == 0 and "deduction/proposer/valid_rate" not in metrics
    assert "deduction/solver/accuracy" in metrics


PLAY = override(CONFIG, {"run.deterministic": True, "reward.intrinsic.bonuses": ["answer_diversity:0.5"]})
PLAY = replace_play(PLAY, kinds=("deduction", "abduction"), proposer_prompts=12, solver_prompts=5)
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


async def play_steps(config: Config, world: Delays) -> tuple[StepResult, dict]:
    """A seeding and two steps; the result of the last."""
    buffer = TaskBuffer(config.selfplay.kinds, CAPACITY)
    for kind in config.selfplay.kinds:
        buffer.add(KINDS[kind].seed())
    await self_play(config, world, world, buffer, 0, "seed0").seed(config.selfplay.kinds)
    await self_play(config, world, world, buffer, 1).play()
    result = await self_play(config, world, world, buffer, 2).play()
    return result, {kind: buffer.tasks(kind) for kind in config.selfplay.kinds}


CHAINED = {"chained_tasks": 4, "repeated_tasks": 3, "replay": "learnability"}


@pytest.mark.parametrize(
    "play_options", [{}, {"new_tasks": False}, {"proposer_prompts": 3, "solver_prompts": 9}, CHAINED]
)
async def test_steps_are_equal_whatever_the_order_in_which_things_finish(play_options, monkeypatch):
    monkeypatch.setattr("azr.selfplay.chaining.BAND", (0.0, 1.0))  # few answers are right
    config = replace_play(PLAY, **play_options)
    first = await play_steps(config, Delays(0))
    assert trained(first[0]) and all(len(tasks) > 2 for tasks in first[1].values())
    assert ("chained_tasks" in play_options) == any(map(is_chained, first[0].stored))
    for seed in range(1, 15):
        assert await play_steps(config, Delays(seed)) == first


async def test_the_orders_that_are_tried_matter():
    """Otherwise the test above would say nothing."""
    loose = replace(PLAY, run=RunConfig(deterministic=False))
    first, _ = await play_steps(loose, Delays(0))
    assert funnel(first, "deduction").rejected[RejectReason.DUPLICATE] > 0
    results = [await play_steps(loose, Delays(seed)) for seed in range(1, 15)]
    assert any(trained(result) != trained(first) for result, _ in results)


async def test_other_seeds_give_other_steps_and_trajectories_of_one_group_are_sorted_too():
    result, _ = await play_steps(PLAY, Delays(0))
    other, _ = await play_steps(replace(PLAY, run=RunConfig(deterministic=True, seed=2)), Delays(0))
    assert trained(result) != trained(other)
    shuffled = random.Random(0).sample(result.samples, len(result.samples))
    assert sort_samples(shuffled) == result.samples
    assert {t.role for t in trained(result)} == {"proposer", "solver"}
