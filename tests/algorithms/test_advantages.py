from __future__ import annotations

import dataclasses
import random
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from azr.algorithms.advantages import ESTIMATORS, Advantages, Graded, discounted_sum, estimate_advantages
from azr.config import AlgorithmConfig, Estimator

STRATUM = ("deduction", "solver")


def run(
    estimator: str,
    rewards: list[float],
    lengths: list[int],
    *,
    strata: list[tuple[str, str]] | None = None,
    groups: list[str] | None = None,
    values: list[float] | None = None,
    kl: list[float] | None = None,
    **config: object,
) -> Advantages:
    graded = Graded(
        rewards=rewards,
        response_lengths=lengths,
        strata=strata or [STRATUM] * len(rewards),
        groups=groups or [f"alone{i}" for i in range(len(rewards))],
        values_R=None if values is None else torch.tensor(values),
        kl_R=None if kl is None else torch.tensor(kl),
    )
    return estimate_advantages(graded, AlgorithmConfig(estimator=estimator, **config))


def near(got: torch.Tensor, expected: list[float], atol: float = 1e-6) -> None:
    torch.testing.assert_close(got.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


def whitened(x: list[float], weights: list[float]) -> list[float]:
    units = sum(weights)
    mean = sum(w * v for w, v in zip(weights, x, strict=True)) / units
    variance = sum(w * (v - mean) ** 2 for w, v in zip(weights, x, strict=True)) / (units - 1)
    return [(v - mean) / (variance + 1e-8) ** 0.5 for v in x]


def test_the_registry_is_what_the_config_offers() -> None:
    assert set(ESTIMATORS) == set(get_args(Estimator))
    with pytest.raises(ValueError, match="Unknown estimator 'ppo'"):
        run("ppo", [1.0], [1])


def test_trrpp_by_hand_token_weighted() -> None:
    got = run("trrpp", [1.0, 0.0], [3, 1])  # tokens 1, 1, 1, 0: mean 3/4, unbiased variance 1/4
    near(got.advantages_R, [0.5, 0.5, 0.5, -1.5])
    near(got.returns_R, [1.0, 1.0, 1.0, 0.0])


def test_trrpp_by_hand_trajectory_weighted() -> None:
    got = run("trrpp", [1.0, 0.0], [3, 1], whitening="trajectory")  # mean 1/2, unbiased variance 1/2
    near(got.advantages_R, [0.5**0.5] * 3 + [-(0.5**0.5)])


def test_weighting_by_trajectory_gives_each_the_same_say() -> None:
    rewards, lengths = [1.0, 0.0, 0.0, 1.0], [6, 1, 0, 2]
    by_token = run("rloo", rewards, lengths, groups=list("gghh"))
    equal = run("rloo", rewards, lengths, groups=list("gghh"), loss_weighting="trajectory")
    shares = [part.sum().item() for part in equal.advantages_R.split(lengths)]
    assert shares == pytest.approx([3.0, -3.0, 0.0, 3.0])  # 9 tokens over 3 trajectories that have any
    near(by_token.advantages_R, [1.0] * 6 + [-1.0] + [1.0] * 2)
    near(equal.returns_R, by_token.returns_R.tolist())


def test_weighting_by_stratum_gives_each_kind_and_role_the_same_say() -> None:
    strata = [("a", "solver")] * 4 + [("a", "proposer")] * 2
    lengths = [6, 1, 0, 3, 4, 4]
    got = run(
        "rloo",
        [1.0, 0.0, 0.0, 1.0, 1.0, 0.0],
        lengths,
        strata=strata,
        groups=list("gghhpq"),
        loss_weighting="kind_role",
    )
    shares = [part.sum().item() for part in got.advantages_R.split(lengths)]
    # 18 tokens: 9 for three solutions that have any, 9 for two proposals
    assert shares == pytest.approx([3.0, -3.0, 0.0, 3.0, 4.5, -4.5])


def test_trrpp_whitens_each_kind_and_role_apart() -> None:
    strata = [("a", "solver"), ("a", "proposer"), ("a", "solver"), ("a", "proposer")]
    got = run("trrpp", [10.0, 0.25, 0.0, 0.75], [1, 1, 1, 1], strata=strata)
    near(got.advantages_R, [0.5**0.5, -(0.5**0.5), -(0.5**0.5), 0.5**0.5])


def test_reinforce_plus_plus_whitens_the_whole_batch() -> None:
    strata = [("a", "solver"), ("b", "solver")]
    near(run("reinforce++", [1.0, 0.0], [1, 1], strata=strata).advantages_R, [0.5**0.5, -(0.5**0.5)])
    near(run("trrpp", [1.0, 0.0], [1, 1], strata=strata).advantages_R, [0.0, 0.0])


def test_rloo_by_hand() -> None:
    got = run("rloo", [1.0, 0.0, 0.5, 3.0, 3.0], [1, 2, 1, 1, 1], groups=["g", "g", "g", "h", "h"])
    near(got.advantages_R, [0.75, -0.75, -0.75, 0.0, 0.0, 0.0])


def test_grpo_by_hand() -> None:
    got = run("grpo", [1.0, 0.0, 0.5, 3.0, 3.0], [1, 2, 1, 1, 1], groups=["g", "g", "g", "h", "h"])
    near(got.advantages_R, [1.0, -1.0, -1.0, 0.0, 0.0, 0.0], atol=1e-5)


def test_dr_grpo_by_hand() -> None:
    got = run("dr_grpo", [1.0, 0.0, 0.5], [1, 2, 1], groups=["g", "g", "g"])
    near(got.advantages_R, [0.5, -0.5, -0.5, 0.0])


@pytest.mark.parametrize(("estimator", "expected"), [("dr_grpo", 0.5), ("rloo", 1.0), ("grpo", 0.5**0.5)])
def test_groups_of_one_are_compared_within_their_kind_and_role(estimator: str, expected: float) -> None:
    strata = [("a", "proposer"), ("b", "proposer"), ("a", "proposer"), ("b", "solver"), ("b", "solver")]
    groups = ["p0", "p1", "p2", "g", "g"]
    got = run(estimator, [1.0, 7.0, 0.0, 2.0, 2.0], [1] * 5, strata=strata, groups=groups)
    near(got.advantages_R, [expected, 0.0, -expected, 0.0, 0.0], atol=1e-5)


@pytest.mark.parametrize("whitening", ["token", "trajectory"])
@pytest.mark.parametrize("estimator", [e for e in ESTIMATORS if e != "gae"])
@pytest.mark.parametrize("reward", [0.1, -0.3, 0.0])
def test_equal_rewards_teach_nothing(estimator: str, reward: float, whitening: str) -> None:
    got = run(estimator, [reward] * 7, [1, 2, 3, 4, 5, 6, 0], groups=list("gggghij"), whitening=whitening)
    assert torch.equal(got.advantages_R, torch.zeros(21))


@pytest.mark.parametrize("estimator", list(ESTIMATORS))
@pytest.mark.parametrize("lengths", [[1], [0, 1], [2, 0], [0, 0]])
def test_lonely_and_silent_trajectories_are_never_nan(estimator: str, lengths: list[int]) -> None:
    for whitening in ("token", "trajectory"):
        values = [0.5 * i for i in range(sum(lengths))]
        got = run(estimator, [1.0] * len(lengths), lengths, values=values, whitening=whitening)
        assert got.advantages_R.shape == (sum(lengths),) and got.advantages_R.isfinite().all()


def test_kl_in_the_reward_is_paid_from_the_token_on() -> None:
    got = run("dr_grpo", [1.0, 0.0], [3, 1], groups=["g", "g"], kl=[1.0, 2.0, 4.0, 8.0], kl_coef=0.1)
    near(got.advantages_R, [0.5 - 0.7, 0.5 - 0.6, 0.5 - 0.4, -0.5 - 0.8])
    near(got.returns_R, [1 - 0.7, 1 - 0.6, 1 - 0.4, -0.8])


def test_gae_with_gamma_and_lambda_one_is_reward_minus_value() -> None:
    values, rewards, lengths = [0.3, -0.2, 0.9, 0.4, 0.1, 0.7], [1.0, -0.5], [2, 4]
    got = run("gae", rewards, lengths, values=values)
    near(got.returns_R, [1.0] * 2 + [-0.5] * 4)
    raw = [r - v for r, v in zip([1.0] * 2 + [-0.5] * 4, values, strict=True)]
    near(got.advantages_R, whitened(raw, [1.0] * 6))
    by_trajectory = run("gae", rewards, lengths, values=values, whitening="trajectory")
    near(by_trajectory.advantages_R, whitened(raw, [0.5] * 2 + [0.25] * 4))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.floats(0.5, 1), st.floats(0, 1), st.integers(0, 99))
def test_gae_equals_its_definition_as_a_double_sum(lengths: list[int], gamma: float, lam: float, seed: int) -> None:
    rng = random.Random(seed)
    rewards = [rng.uniform(-1, 1) for _ in lengths]
    tokens = [[(rng.uniform(-1, 1), rng.uniform(0, 1)) for _ in range(n)] for n in lengths]
    expected = []
    for reward, sample in zip(rewards, tokens, strict=True):
        value = [v for v, _ in sample] + [0.0]
        paid = [-0.1 * kl for _, kl in sample]
        if sample:
            paid[-1] += reward
        delta = [paid[t] + gamma * value[t + 1] - value[t] for t in range(len(sample))]
        for t in range(len(sample)):
            expected.append(sum((gamma * lam) ** (j - t) * delta[j] for j in range(t, len(sample))) + value[t])
    got = run(
        "gae",
        rewards,
        lengths,
        values=[v for sample in tokens for v, _ in sample],
        kl=[k for sample in tokens for _, k in sample],
        gamma=gamma,
        gae_lambda=lam,
        kl_coef=0.1,
    )
    near(got.returns_R, expected, atol=1e-5)


def test_gae_of_a_response_does_not_depend_on_its_neighbours() -> None:
    alone = run("gae", [1.0], [3], values=[0.1, 0.2, 0.3], gamma=0.9, gae_lambda=0.8)
    packed = run("gae", [9.0, 1.0, -9.0], [2, 3, 1], values=[5.0, 6.0, 0.1, 0.2, 0.3, 7.0], gamma=0.9, gae_lambda=0.8)
    assert torch.equal(packed.returns_R[2:5], alone.returns_R)


def test_a_discounted_sum_over_a_long_response() -> None:
    owner = torch.tensor([0]).repeat_interleave(5000)
    x = torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected, total = [], 0.0
    for value in reversed(x.tolist()):
        total = value + 0.999 * total
        expected.append(total)
    near(discounted_sum(x, owner, 0.999), expected[::-1], atol=1e-10)


@pytest.mark.parametrize("estimator", list(ESTIMATORS))
def test_the_order_of_trajectories_does_not_matter(estimator: str) -> None:
    rng = random.Random(0)
    count = 12
    lengths = [rng.randint(1, 6) for _ in range(count)]
    graded = Graded(
        rewards=[rng.choice([0.0, 0.5, 1.0]) for _ in range(count)],
        response_lengths=lengths,
        strata=[rng.choice([("a", "solver"), ("b", "proposer")]) for _ in range(count)],
        groups=[f"g{i // 3}" for i in range(count)],
        values_R=torch.randn(sum(lengths), generator=torch.Generator().manual_seed(0)),
    )
    config = AlgorithmConfig(estimator=estimator)
    order = rng.sample(range(count), count)
    pieces = graded.values_R.split(lengths)
    shuffled = dataclasses.replace(
        graded,
        rewards=[graded.rewards[i] for i in order],
        response_lengths=[lengths[i] for i in order],
        strata=[graded.strata[i] for i in order],
        groups=[graded.groups[i] for i in order],
        values_R=torch.cat([pieces[i] for i in order]),
    )
    straight = estimate_advantages(graded, config).advantages_R.split(lengths)
    got = estimate_advantages(shuffled, config).advantages_R
    torch.testing.assert_close(got, torch.cat([straight[i] for i in order]), rtol=1e-6, atol=1e-7)
