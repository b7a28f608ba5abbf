"""A whole learning step on real roles: every path through scoring, advantages and updates."""

import asyncio
import copy
import gzip
import json
from collections import Counter, defaultdict
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from azr.algorithms.batch import Batch
from azr.cluster.gpu_turns import leave_gpu
from azr.config import GAE, RLOO, TRRPP, AblationConfig, AlgorithmConfig, Config, DrGRPO, Estimator, KLConfig
from azr.records import Completion, Judgement, Sample
from azr.train.learner import Learner
from azr.train.model_worker import ModelWorker
from azr.train.policy import CriticWorker, PolicyWorker
from azr.train.worker_group import WorkerGroup
from azr.train.zero3 import parameter_parts
from benchmarks.update import operations
from tests.train.conftest import (
    LR,
    STEP_S,
    StartGroup,
    make_config,
    on_ranks,
    rebuild,
    rollout_logprobs,
    with_micro_batches,
)

PAPER = AlgorithmConfig(estimator=TRRPP())
PPO = AlgorithmConfig(
    estimator=GAE(lambda_=0.95, critic_mini_batches=3), loss_weighting="kind_role", policy_mini_batches=2,
    kl=KLConfig(coef=0.1), entropy_coef=0.01,
)  # fmt: skip


Models = tuple[Config, list[WorkerGroup]]
"""The config that the actors were started with, whose loss they use, and policy, critic and reference."""


async def start(start_group: StartGroup, config: Config, ranks: int = 1, **workers: type[ModelWorker]) -> Models:
    groups = await asyncio.gather(*(start_group(name, worker, config, ranks) for name, worker in workers.items()))
    return config, list(groups)


@pytest.fixture(scope="module")
def ppo(start_group: StartGroup, tiny_model_path: Path) -> Models:
    config = replace(make_config(tiny_model_path), algorithm=PPO)
    workers = {"policy": PolicyWorker, "critic": CriticWorker, "reference": PolicyWorker}
    return asyncio.run(start(start_group, config, **workers))


@pytest.fixture(scope="module")
def paper(start_group: StartGroup, tiny_model_path: Path) -> Models:
    config = replace(make_config(tiny_model_path), algorithm=PAPER)
    return asyncio.run(start(start_group, config, policy=PolicyWorker))


@pytest.fixture
def trajectories(completions: list[Completion]) -> list[Sample]:
    made = []
    for index, each in enumerate(completions):
        role, kind = "proposer" if index % 3 == 0 else "solver", "deduction" if index % 2 else "abduction"
        named = {"completion": each, "problem_id": str(index), "group": str(index // 2)}
        made.append(Sample(role=role, kind=kind, reward=float(index % 4 == 1) - 0.5, **named))
    return made


def outcomes(samples: list[Sample]) -> list[tuple[str, float | None, float | None]]:
    return [(each.used, each.advantage, each.mismatch) for each in samples]


def phases(seen: Counter[str]):
    def phase(name: str):
        seen[name] += 1
        return nullcontext()

    return phase


async def learn(config: Config, policy: WorkerGroup, taught: list[Sample]) -> dict[str, float]:
    """Metrics of a first step of a policy alone."""
    return (await Learner(config, policy, None, None, phases(Counter())).learn(taught, step=1))["policy"]


async def test_ppo_with_critic_reference_and_several_mini_batches(ppo: Models, trajectories: list[Sample]) -> None:
    config, groups = ppo
    seen: Counter[str] = Counter()
    learner = Learner(config, *groups, phases(seen))
    learned = await learner.learn(trajectories, step=1)
    assert set(seen) == {*("critic values", "reference logprobs", "policy logprobs"), "train critic", "train policy"}
    assert learned["policy"]["grad_norm"] > 0 and learned["critic"]["grad_norm"] > 0
    assert learned["policy"]["mismatch_mean"] > 0 and learned["policy"]["entropy_kept"] > 0
    sampled = -rollout_logprobs([each.completion for each in trajectories]).mean().item()
    assert learned["policy"]["entropy"] == pytest.approx(sampled, rel=1e-6)
    assert set(learned["computed_tokens"]) == set(seen) and len({*learned["computed_tokens"].values()}) <= 2
    apart = [each.mismatch for each in trajectories]
    lengths = [each.completion.num_sampled for each in trajectories]
    assert np.average(apart, weights=lengths) == pytest.approx(learned["policy"]["mismatch_mean"], rel=1e-4)
    assert any(each.advantage for each in trajectories) and {each.used for each in trajectories} == {"trained"}
    steps = [(await on_ranks(group, lambda worker: worker.engine.global_steps))[0] for group in groups[:2]]
    assert steps == [2, 3]
    again = [replace(each, used="recorded", advantage=None, mismatch=None) for each in trajectories]
    told = await learner.learn(again, step=2, critic_only=True)
    assert set(told) == {"critic", "computed_tokens"} and outcomes(again) == [("trained", None, None)] * len(again)
    steps = [(await on_ranks(group, lambda worker: worker.engine.global_steps))[0] for group in groups[:2]]
    assert steps == [2, 6], "the policy stays as it is"


async def test_a_kl_in_the_reward_is_scored_before_the_estimate(ppo: Models, trajectories: list[Sample]) -> None:
    config, groups = ppo
    kl = replace(PPO.kl, coef=50.0, where="reward")
    charged = replace(config, algorithm=replace(PPO, kl=kl, estimator=replace(PPO.estimator, lambda_=1.0)))
    earned = {}
    for each, where in (
        (charged, "reward"),
        (replace(config, algorithm=replace(charged.algorithm, kl=PPO.kl)), "loss"),
    ):
        again, seen = [replace(sample, used="recorded") for sample in trajectories], Counter[str]()
        learned = await Learner(each, *groups, phases(seen)).learn(again, step=1, critic_only=True)
        earned[where], scored = learned["critic"]["returns"], list(seen)
        assert ("reference logprobs" in scored) == (where == "reward")
    assert earned["reward"] < earned["loss"] - 1e-3, "engine and reference are apart in the tests"


async def test_the_rates_of_policy_and_critic_fall_alike_however_many_steps_they_take(ppo, trajectories) -> None:
    config, groups = ppo
    decaying = replace(config, train=replace(config.train, warmup_steps=0, decay_steps=4))

    await rebuild(decaying, *groups)
    learner = Learner(decaying, *groups, phases(Counter()))
    for step in range(1, 6):
        learned = await learner.learn(trajectories, step=step)
        for model, group, mini_batches in (("policy", groups[0], 2), ("critic", groups[1], 3)):
            (rate,) = await on_ranks(group, lambda worker: worker.engine.get_lr()[0])
            assert rate == pytest.approx(LR * max(0, 1 - step / 4))
            during = np.mean([max(0, 1 - (step - 1 + i / mini_batches) / 4) for i in range(mini_batches)])
            assert learned[model]["lr"] == pytest.approx(LR * during)
    await rebuild(config, *groups)


async def test_models_that_visit_the_gpu_one_after_the_other_learn_the_same(ppo, trajectories, tmp_path) -> None:
    config, groups = ppo
    learned = []
    for name, visiting in (("staying", False), ("visiting", True)):
        seen: Counter[str] = Counter()
        await asyncio.gather(*(group.call("build", timeout_s=STEP_S) for group in groups))
        models = [replace(group, visits_gpu=visiting) for group in groups]
        if visiting:
            await asyncio.gather(*(leave_gpu(model, STEP_S) for model in models))
        metrics = await Learner(config, *models, phases(seen)).learn(trajectories, step=1)
        assert (seen["reload"], seen["offload"]) == ((5, 4) if visiting else (0, 0))
        away = [(await on_ranks(model, is_away))[0] for model in models]
        assert away == ([False, True, True] if visiting else [False] * 3), "the policy's weights are pushed next"
        (tmp_path / name).mkdir()
        files = [await model.call("save_checkpoint", str(tmp_path / name), timeout_s=STEP_S) for model in models[:2]]
        learned.append((metrics, [file.digest for written in files for file in written]))
        await asyncio.gather(*(model.call("reload", timeout_s=STEP_S) for model in models))
    assert learned[0] == learned[1]


def is_away(worker: ModelWorker) -> bool:
    return all(worker._away.is_away(part) for part in parameter_parts(worker.engine))


async def test_the_papers_algorithm_needs_the_policy_alone(paper: Models, trajectories: list[Sample]) -> None:
    config, [policy] = paper
    seen: Counter[str] = Counter()
    learner = Learner(config, policy, None, None, phases(seen))
    learned = await learner.learn(trajectories, step=1)
    assert set(seen) == {"train policy"} and set(learned) == {"policy", "computed_tokens"}


@pytest.mark.long
async def test_one_update_is_profiled(paper, trajectories, tmp_path, caplog) -> None:
    config, [policy] = paper
    named = replace(config.run, root=str(tmp_path), name="profiled")
    config = replace(config, run=named, train=replace(config.train, profile_step=2))
    learner = Learner(config, policy, None, None, phases(Counter()))
    with caplog.at_level("INFO", logger="azr.train.learner"):
        for step in range(1, 4):
            again = [replace(each, used="recorded", advantage=None, mismatch=None) for each in trajectories]
            assert (await learner.learn(again, step=step))["policy"]["skipped_steps"] == 0
    assert [file.name for file in (tmp_path / "profiled").iterdir()] == ["profile_2.json.gz"]
    trace = gzip.decompress((tmp_path / "profiled" / "profile_2.json.gz").read_bytes())
    assert any(event.get("name") == "aten::mm" for event in json.loads(trace)["traceEvents"])
    (message,) = [record.getMessage() for record in caplog.records if "profile of" in record.getMessage()]
    assert "aten::mm" in message and "Self CPU" in message


def test_an_annotation_is_not_counted_beside_its_kernels() -> None:
    names = ("multi_tensor_apply_kernel", "Optimizer.step#AdamW.step")
    events = [
        FunctionEvent(i, name, 0, 0, 400, device_type=DeviceType.CUDA, is_user_annotation=i > 0, use_device="cuda")
        for i, name in enumerate(names)
    ]
    assert [name for name, *_ in operations(events, True)] == [names[0]]


class Same(RLOO):
    name = "same"


class Fails(Estimator):
    """As a plug-in's that fails."""

    name = "fails"

    def score(self, batch: Batch) -> None:
        return None


async def test_a_plugins_estimator_teaches_as_one_of_ours_and_nothing_where_it_fails(paper, trajectories):
    config, [policy] = paper
    told = []
    for estimator in (RLOO(), Same(), Fails()):
        await policy.call("build", timeout_s=STEP_S)
        taught = copy.deepcopy(trajectories)
        changed = replace(config, algorithm=AlgorithmConfig(estimator=estimator))
        told.append((await learn(changed, policy, taught), outcomes(taught)))
    assert told[0] == told[1] and told[0][0]["grad_norm"] > 0
    assert told[2] == ({}, [("recorded", None, None)] * len(trajectories))


async def test_a_kl_loss_covers_what_is_left(ppo: Models, trajectories: list[Sample], tmp_path: Path) -> None:
    config, [policy, _, reference] = ppo

    async def learn(skip: bool, taught: list[Sample]) -> dict[str, float]:
        algorithm = replace(PPO, estimator=RLOO(), loss_weighting="token", policy_mini_batches=1)
        algorithm = replace(algorithm, drop_zero_advantage=skip)
        learner = Learner(replace(config, algorithm=algorithm), policy, None, reference, phases(Counter()))
        return (await learner.learn(taught, step=1))["policy"]

    everything = await learn(False, trajectories)  # away from the reference
    await policy.call("save_checkpoint", str(tmp_path), timeout_s=60)
    rewards = defaultdict(set)
    for each in trajectories:
        rewards[each.group].add(each.reward)
    left = [each for each in trajectories if len(rewards[each.group]) > 1]
    assert 0 < len(left) < len(trajectories)
    told = []
    for skip, taught in ((True, trajectories), (False, left)):
        await policy.call("load_checkpoint", str(tmp_path), timeout_s=60)
        told.append(await learn(skip, taught))
    assert told[0]["kl_reference"] > 0 and told[0]["entropy"] == everything["entropy"] != told[1]["entropy"]
    for name in ("kl_reference", "loss", "grad_norm", "entropy_kept"):
        assert told[0][name] == pytest.approx(told[1][name], rel=1e-3), name


async def test_dr_grpo_divides_by_a_constant_however_it_is_cut(start_group, tiny_model_path, trajectories, tmp_path):
    start_config = replace(make_config(tiny_model_path), algorithm=PAPER)
    groups = {ranks: (await start(start_group, start_config, ranks, policy=PolicyWorker))[1][0] for ranks in (1, 2)}
    for ranks, group in groups.items():
        (tmp_path / str(ranks)).mkdir()
        await group.call("save_checkpoint", str(tmp_path / str(ranks)), timeout_s=60)

    async def anew(ranks: int = 1, tokens: int = 1000, **algorithm: object) -> dict[str, float]:
        await groups[ranks].call("load_checkpoint", str(tmp_path / str(ranks)), timeout_s=60)
        config = replace(start_config, algorithm=AlgorithmConfig(estimator=DrGRPO(), **algorithm))
        return await learn(with_micro_batches(config, tokens), groups[ranks], trajectories)

    whole, by_token = await anew(), await anew(loss_weighting="token")
    lengths = [t.completion.num_sampled for t in trajectories]
    factor = sum(lengths) / (len(lengths) * start_config.rollout.max_response_tokens)
    assert whole["grad_norm"] == pytest.approx(factor * by_token["grad_norm"], rel=1e-5)
    assert whole["loss"] == pytest.approx(factor * by_token["loss"], rel=1e-5)
    for cut in ({"tokens": 40}, {"ranks": 2}, {"ranks": 2, "tokens": 40}, {"drop_zero_advantage": True}):
        assert (await anew(**cut))["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-4), cut
    for weighting in ("trajectory", "kind_role"):
        whole, dropped = [await anew(loss_weighting=weighting, drop_zero_advantage=drop) for drop in (False, True)]
        assert whole["grad_norm"] == pytest.approx(dropped["grad_norm"], rel=1e-4), weighting


async def test_masked_trajectories_teach_as_if_they_had_not_been_sampled(paper, trajectories, tmp_path) -> None:
    config, [policy] = paper
    await policy.call("save_checkpoint", str(tmp_path), timeout_s=60)

    async def anew(overlong: str, taught: list[Sample]) -> dict[str, float]:
        await policy.call("load_checkpoint", str(tmp_path), timeout_s=60)
        return await learn(replace(config, reward=replace(config.reward, overlong=overlong)), policy, taught)

    cut = [
        replace(t, completion=replace(t.completion, finish_reason="length"), reward=-9.0) if i % 4 == 0 else t
        for i, t in enumerate(trajectories)
    ]
    finished = [t for i, t in enumerate(trajectories) if i % 4]
    masked, without = await anew("mask", cut), await anew("keep", alone := copy.deepcopy(finished))
    assert [each.used for each in cut] == ["trained" if i % 4 else "cut off" for i in range(len(cut))]
    assert outcomes([t for i, t in enumerate(cut) if i % 4]) == outcomes(alone)
    assert all(each.advantage is None and each.mismatch is None for each in cut[::4])
    assert masked == without | {"masked": len(trajectories) - len(finished)}
    assert await anew("mask", finished) == without | {"masked": 0}
    assert (await anew("keep", cut))["grad_norm"] != without["grad_norm"]
    assert await anew("mask", cut[:1]) == {"masked": 1}, "nothing is left to learn from"
    assert cut[0].used == "cut off"


async def test_a_step_with_fewer_trajectories_than_updates_teaches_nothing_and_says_so(paper, trajectories, caplog):
    """Most may have been ungraded, and that is no reason to end a run."""
    config, [policy] = paper
    many = replace(config, algorithm=replace(PAPER, policy_mini_batches=50))
    learner = Learner(many, policy, None, None, phases(Counter()))
    assert await learner.learn(trajectories, step=1) == {"policy": {}, "computed_tokens": {}}
    assert outcomes(trajectories) == [("recorded", None, None)] * len(trajectories)
    assert f"nothing is learned in this step, which has only {len(trajectories)} traj" in caplog.text
    assert await learner.learn([], step=1) == {"policy": {}, "computed_tokens": {}}


async def test_with_a_price_of_repeats_no_proposal_that_teaches_nothing_is_reinforced(paper, trajectories) -> None:
    config, [policy] = paper
    proposals = [each for each in trajectories if each.role == "proposer"]
    repeat, flat, *others = sorted(proposals, key=lambda each: each.reward, reverse=True)
    repeat.judgement, flat.solve_rate = Judgement(verdict="duplicate"), 1.0
    for each in others:
        each.reward, each.solve_rate = -1.0, 0.5
    repeat.reward = flat.reward = 0.0
    for price, signs in ((None, {True}), (-1.0, {False})):
        priced = replace(
            config, reward=replace(config.reward, repeat=price), algorithm=AlgorithmConfig(estimator=RLOO())
        )
        for each in proposals:
            each.group = "propose"
        await Learner(priced, policy, None, None, phases(Counter())).learn(trajectories, 1)
        assert {each.advantage > 0 for each in (repeat, flat)} == signs


async def test_training_sees_shuffled_rewards_only_where_asked(paper, trajectories, monkeypatch) -> None:
    config, [policy] = paper
    kept = [t.reward for t in trajectories]
    seen: dict[bool, list[list[float]]] = {False: [], True: []}
    for shuffle in (False, True):

        def look(self: Fails, batch: Batch, seen: list[list[float]] = seen[shuffle]) -> None:
            seen.append(list(batch.rewards))

        monkeypatch.setattr(Fails, "score", look)
        algorithm = AlgorithmConfig(estimator=Fails())
        changed = replace(config, algorithm=algorithm, ablation=AblationConfig(shuffle_rewards=shuffle))
        learner = Learner(changed, policy, None, None, phases(Counter()))
        for seed in (1, 2):
            await learner.learn(trajectories, seed)
    assert seen[False] == [kept, kept] and seen[True][0] != seen[True][1]
    assert sorted(seen[True][0]) == sorted(kept)
    assert [t.reward for t in trajectories] == kept
