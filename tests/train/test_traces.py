"""Steps with tokens of another model's traces, on real trainers: who learns what from them, however they are packed."""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from azr.config import GAE, GRPO, RLOO, TRRPP, AlgorithmConfig, Config, DrGRPO, OffPolicyConfig
from azr.records import Completion, Sample
from azr.train.learner import Learner
from azr.train.policy import CriticWorker, PolicyWorker
from azr.train.worker_group import WorkerGroup
from tests.train.conftest import StartGroup, make_config, one_and_two, rebuild, with_micro_batches

TRACED = (False, True, True, False, False)
"""Which of every five responses are traces."""


@pytest.fixture
def trajectories(completions: list[Completion]) -> list[Sample]:
    """In groups of five, the last of which is alone."""
    return [made(c, i, TRACED[i % 5]) for i, c in enumerate(completions)]


def made(completion: Completion, index: int, is_trace: bool = True) -> Sample:
    completion = replace(completion, observed=())
    return Sample(
        completion=replace(completion, logprobs=0.0 * completion.logprobs) if is_trace else completion,
        role="solver",
        kind="data",
        problem_id=str(index),
        group=str(index // 5),
        reward=float(index % 3 == 0),
        trace_tokens=is_trace * len(completion.response_ids),
    )


def sft(**others: object) -> AlgorithmConfig:
    return AlgorithmConfig(off_policy=OffPolicyConfig(loss="sft"), **others)


async def learn(
    group: WorkerGroup, config: Config, taught: Sequence[Sample], critic: WorkerGroup | None = None
) -> tuple[dict[str, dict[str, float]], Learner]:
    """One step of models that are made anew."""
    await rebuild(config, *filter(None, (group, critic)))
    learner = Learner(config, group, critic, None, lambda name: nullcontext())
    return await learner.learn(taught, step=1), learner


@pytest.fixture(scope="module")
def base(tiny_model_path: Path) -> Config:
    config = make_config(tiny_model_path, warmup_steps=0, weight_decay=0.0)
    return replace(config, algorithm=AlgorithmConfig(estimator=DrGRPO(), loss_weighting="token"))


@pytest.fixture(scope="module")
def groups(start_group: StartGroup, base: Config) -> dict[int, WorkerGroup]:
    return one_and_two(start_group, PolicyWorker, base)


@pytest.fixture(scope="module")
def plain(tiny_model_path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=torch.float64).eval()


def plain_gradient(model: PreTrainedModel, config: Config, taught: Sequence[Sample]) -> tuple[float, float]:
    """Loss and norm of its gradient in float64, one token after the other, of a first step without reference."""
    model, off = copy.deepcopy(model), config.algorithm.off_policy
    rewards: dict[str, list[float]] = {}
    for t in taught:
        if off.loss != "sft" or t.origin != "trace":
            rewards.setdefault(t.group, []).append(t.reward)
    total: Tensor | float = 0.0
    for t in taught:
        c = t.completion
        logits = model(torch.tensor([c.token_ids])).logits[0, len(c.prompt_ids) - 1 : -1]
        logprobs = torch.log_softmax(logits / config.rollout.temperature, -1)
        advantage = t.reward - sum(rewards[t.group]) / len(rewards[t.group])
        for position, token in enumerate(c.response_ids.tolist()):
            logp = logprobs[position, token]
            if t.origin == "sampled":
                correction = min((logp - float(c.logprobs[position])).exp().item(), 2.0)
                total = total - correction * advantage * (logp - logp.detach()).exp()
            elif off.loss == "sft":
                total = total - off.sft_coef * logp
            else:
                p = logp.exp()
                total = total - advantage * (p / (p + off.gamma) if off.loss == "shaped" else p)
    loss = total / sum(t.completion.num_sampled for t in taught)
    loss.backward()
    squares = sum(p.grad.square().sum().item() for p in model.parameters() if p.grad is not None)
    return loss.item(), squares**0.5


@pytest.mark.parametrize("loss", ["shaped", "plain", "sft"])
async def test_gradients_are_those_written_out_whatever_packing_and_ranks(loss, groups, base, plain, trajectories):
    off_policy = OffPolicyConfig(loss=loss, gamma=0.01, sft_coef=0.3)
    config = replace(base, algorithm=replace(base.algorithm, off_policy=off_policy))
    expected = plain_gradient(plain, config, trajectories)
    # Of one prompt, so that it is packed once for all of them.
    prompt = trajectories[0].completion.prompt_ids
    shared = [replace(t, completion=replace(t.completion, prompt_ids=prompt)) for t in trajectories]
    expected_shared = plain_gradient(plain, config, shared)
    for ranks, tokens, taught, (value, norm) in (
        (1, 1000, trajectories, expected),
        (1, 40, shared[::-1], expected_shared),
        (2, 40, trajectories[::-1], expected),
        (2, 1000, shared, expected_shared),
    ):
        told, _ = await learn(groups[ranks], with_micro_batches(config, tokens), taught)
        assert told["policy"]["loss"] == pytest.approx(value, rel=1e-4, abs=1e-6)
        assert told["policy"]["grad_norm"] == pytest.approx(norm, rel=1e-4)
        assert told["policy"]["trace_tokens"] == sum(t.trace_tokens for t in taught)
        assert [t.mismatch is None for t in taught] == [t.origin == "trace" for t in taught]


@pytest.mark.parametrize("estimator", [TRRPP(), RLOO(), GRPO(), DrGRPO()], ids=lambda options: type(options).__name__)
async def test_imitation_ignores_what_the_trace_earned(estimator, base, groups, trajectories) -> None:
    config = replace(base, algorithm=sft(estimator=estimator, drop_zero_advantage=True))
    told = []
    for reward in (0.0, 100.0):
        changed = [replace(t, reward=reward if t.origin == "trace" else t.reward) for t in trajectories]
        metrics, _ = await learn(groups[1], config, changed)
        told.append((metrics, {t.problem_id: (t.advantage, t.mismatch) for t in changed}))
    assert told[0] == told[1]
    of_sampled = [t for t in trajectories if t.origin == "sampled"]
    assert told[0][0]["policy"]["trace_tokens"] == sum(t.trace_tokens for t in trajectories) and of_sampled
    advantages = {problem: advantage for problem, (advantage, _) in told[0][1].items()}
    assert all(advantages[t.problem_id] == 0 for t in trajectories if t.origin == "trace")
    assert any(advantages[t.problem_id] for t in of_sampled)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_steps_of_nothing_but_traces_make_them_more_probable(dtype, base, groups, completions) -> None:
    config = replace(base, algorithm=sft(policy_mini_batches=2), train=replace(base.train, dtype=dtype))
    taught = [made(c, i) for i, c in enumerate(completions)]
    first, learner = await learn(groups[2], config, taught)
    for _ in range(3):
        last = await learner.learn(taught, step=1)
    assert last["policy"]["trace_prob"] > first["policy"]["trace_prob"]
    assert last["policy"]["loss"] < first["policy"]["loss"] == pytest.approx(first["policy"]["trace_loss"])
    assert first["policy"]["trace_share"] == 1
    absent = {"mismatch_mean", "entropy", "sampled_loss", "clip_fraction", "importance_weight", "approx_kl"}
    assert not absent & first["policy"].keys()


async def test_the_critic_learns_from_what_was_sampled_alone(base, groups, lend_group, trajectories) -> None:
    ppo = replace(base, algorithm=AlgorithmConfig(estimator=GAE()))
    critic = await lend_group("critic", CriticWorker, ppo, 1)
    told = []
    for reward in (0.0, 5.0):
        changed = [replace(t, reward=reward) if t.origin == "trace" else t for t in trajectories]
        told.append((await learn(groups[1], ppo, changed, critic))[0])
    assert told[0]["critic"] == told[1]["critic"] and told[0]["policy"] != told[1]["policy"]
    imitating = replace(ppo, algorithm=sft(estimator=GAE()))
    only = [made(t.completion, i) for i, t in enumerate(trajectories)]
    assert "critic" not in (await learn(groups[1], imitating, only, critic))[0]
