import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from azr.algorithms.advantages import estimate_advantages, loss_weights
from azr.algorithms.batch import Batch
from azr.config import ESTIMATOR_TYPES, GAE, RAE, TRRPP, AlgorithmConfig, DrGRPO, KLConfig

KIND_ROLE = ("deduction", "solver")


def make_batch(rewards: list[float], lengths: list[int], values: list[float] | None = None, **given: list) -> Batch:
    """`given`: kinds and roles, else all alike, and groups, else each alone."""
    given.setdefault("kind_roles", [KIND_ROLE] * len(rewards))
    given.setdefault("groups", [f"alone{i}" for i in range(len(rewards))])
    values_R = None if values is None else torch.tensor(values)
    return Batch(rewards=rewards, response_lengths=lengths, values_R=values_R, **given)


def run(estimator: str, rewards: list[float], lengths: list[int], *, lambda_: float = 1.0, **inputs: object) -> Batch:
    """The batch with advantages, and with a critic returns, filled in."""
    options = GAE(lambda_=lambda_) if estimator == "gae" else ESTIMATOR_TYPES[estimator]()
    batch = make_batch(rewards, lengths, **inputs)
    batch.advantages_R, batch.returns_R = estimate_advantages(batch, options)
    return batch


def weights_of(
    batch: Batch,
    weighting: Any,
    mini_batches: list[list[int]] | None = None,
    kept: list[list[int]] | None = None,
    max_tokens: int = 20,
    **options: Any,
) -> torch.Tensor | None:
    """Loss weights; by default in one mini-batch of which all is kept."""
    mini_batches = mini_batches or [list(range(len(batch.rewards)))]
    algorithm = AlgorithmConfig(loss_weighting=weighting, **options)
    return loss_weights(batch, algorithm, mini_batches, kept or mini_batches, max_tokens)


def near(got: torch.Tensor, expected: list[float], atol: float = 1e-6) -> None:
    torch.testing.assert_close(got.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


def test_whitening_by_hand() -> None:
    got = run("trrpp", [1.0, 0.0], [3, 1])  # tokens 1, 1, 1, 0: mean 3/4, unbiased variance 1/4
    near(got.advantages_R, [0.5, 0.5, 0.5, -1.5])
    both = [("a", "solver"), ("a", "proposer"), ("a", "solver"), ("a", "proposer")]
    got = run("trrpp", [10.0, 0.25, 0.0, 0.75], [1, 1, 1, 1], kind_roles=both)
    near(got.advantages_R, [0.5**0.5, -(0.5**0.5), -(0.5**0.5), 0.5**0.5])
    kinds = [("a", "solver"), ("b", "solver")]
    near(run("reinforce++", [1.0, 0.0], [1, 1], kind_roles=kinds).advantages_R, [0.5**0.5, -(0.5**0.5)])
    near(run("trrpp", [1.0, 0.0], [1, 1], kind_roles=kinds).advantages_R, [0.0, 0.0])


def test_weights_by_trajectory_give_each_the_same_say() -> None:
    lengths = [6, 1, 0, 2]
    batch = make_batch([0.0] * 4, lengths)
    assert weights_of(batch, "token") is None
    weights = weights_of(batch, "trajectory")
    assert weights is not None and weights.dtype == torch.float32
    assert [part.sum().item() for part in weights.split(lengths)] == pytest.approx([3.0, 3.0, 0.0, 3.0])
    near(weights, [0.5] * 6 + [3.0] + [1.5] * 2)


def test_the_loss_is_averaged_by_token_but_with_dr_grpo():
    batch = make_batch([0.0] * 2, [4, 1])
    decided = {name: weights_of(batch, "auto", estimator=options()) for name, options in ESTIMATOR_TYPES.items()}
    assert torch.equal(decided.pop("dr_grpo"), weights_of(batch, "constant")) and set(decided.values()) == {None}
    by_trajectory = weights_of(batch, "trajectory", estimator=DrGRPO())
    assert by_trajectory.tolist() == weights_of(batch, "trajectory").tolist()


def test_constant_weights_count_tokens_alike_whatever_else_is_in_the_batch():
    batch = make_batch([0.0] * 5, [4, 1, 0, 10, 5])
    everything = [[0, 1, 2], [3, 4]]
    weights = weights_of(batch, "constant", everything)
    # Divided by a mini-batch's tokens, 5 and 15, that is 1 / (20 * 3) and 1 / (20 * 2) for each token.
    torch.testing.assert_close(weights, torch.tensor([5 / 60] * 5 + [15 / 40] * 15))
    dropped = weights_of(batch, "constant", everything, [[0], [3, 4]])
    torch.testing.assert_close(dropped, torch.tensor([4 / 60] * 4 + [0.0] + [15 / 40] * 15))


@pytest.mark.parametrize("share, solutions, proposals", [(0.5, 3, 4.5), (0.25, 4.5, 2.25), (0, 6, 0), (1, 0, 9)])
def test_proposers_have_the_share_that_is_stated(share: float, solutions: float, proposals: float) -> None:
    kind_roles = [("a", "solver")] * 4 + [("a", "proposer")] * 2
    lengths = [6, 1, 0, 3, 4, 4]
    batch = make_batch([0.0] * 6, lengths, kind_roles=kind_roles)
    weights = weights_of(batch, "kind_role", proposer_share=share)
    parts = [part.sum().item() for part in weights.split(lengths)]
    assert parts == pytest.approx([solutions, solutions, 0.0, solutions, proposals, proposals])
    alone = make_batch([0.0] * 2, [3, 4], kind_roles=kind_roles[4:])
    weights = weights_of(alone, "kind_role", proposer_share=share)
    assert weights.sum().item() == pytest.approx(7.0 if share else 0.0), "a step of proposals alone"


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(sorted(ESTIMATOR_TYPES)), st.integers(0, 10**6))
def test_a_capped_proposal_is_never_reinforced_whatever_the_rewards_around_it(name: str, seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 12)
    rewards = [rng.choice([-1.0, -0.75, -0.5, 0.0, rng.uniform(-2, 1)]) for _ in range(count)]
    lengths = [rng.randint(0, 3) for _ in range(count)]
    kind_roles = [("a", rng.choice(["proposer", "solver"])) for _ in range(count)]
    groups = [f"{role}{rng.randrange(3)}" for _, role in kind_roles]
    values = [rng.uniform(-1, 1) for _ in range(sum(lengths))]
    inputs = {"kind_roles": kind_roles, "groups": groups, "values": values}
    capped = [rng.random() < 0.5 for _ in range(count)]
    free_R = run(name, rewards, lengths, **inputs).advantages_R
    capped_R = run(name, rewards, lengths, **inputs, capped=capped).advantages_R
    for is_capped, before, after in zip(capped, free_R.split(lengths), capped_R.split(lengths), strict=True):
        assert not is_capped or bool((after <= 0).all())
        assert torch.equal(after, before.clamp(max=0) if is_capped else before), "nothing else changes"


@pytest.mark.parametrize("dropped", [10, 100, 1000, 8000])
def test_the_lengths_of_dropped_samples_say_nothing(dropped: int) -> None:
    batch = make_batch([0.0] * 4, [100, 100, dropped, dropped])
    for weighting, share in (("trajectory", 0.25), ("kind_role", 0.25), ("constant", 0.025)):
        weights = weights_of(batch, weighting, [[0, 1, 2, 3]], [[0, 1]], max_tokens=1000)
        kept = weights.split([100, 100, 2 * dropped])[:2]
        assert [each.sum().item() / 200 for each in kept] == pytest.approx([share, share])


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 30), min_size=2, max_size=12), st.integers(1, 3), st.integers(0, 999))
def test_what_a_sample_weighs_depends_on_the_others_of_its_mini_batch_alone(lengths, count, seed) -> None:
    rng = random.Random(seed)
    kind_roles = [rng.choice([("a", "solver"), ("a", "proposer"), ("b", "solver")]) for _ in lengths]
    batch = make_batch([0.0] * len(lengths), lengths, kind_roles=kind_roles)
    mini_batches = [list(range(len(lengths)))[start::count] for start in range(min(count, len(lengths)))]
    kept = [[i for i in members if rng.random() < 0.5] or members for members in mini_batches]
    for weighting in ("trajectory", "kind_role", "constant"):
        whole = weights_of(batch, weighting, mini_batches)
        left = weights_of(batch, weighting, mini_batches, kept)
        for members, remaining in zip(mini_batches, kept, strict=True):
            tokens, left_tokens = (sum(lengths[i] for i in some) for some in (members, remaining))
            of_whole, of_left = whole.split(lengths), left.split(lengths)
            if weighting != "constant" and tokens:
                mean = sum(of_whole[i].sum().item() for i in members) / tokens
                assert mean == pytest.approx(1.0, rel=1e-5), "1 on average where nothing is left out"
            for i in remaining:
                near(of_left[i] / max(left_tokens, 1), (of_whole[i] / max(tokens, 1)).tolist())


@pytest.mark.parametrize(
    ("estimator", "in_group", "alone"), [("rloo", 0.75, 1.0), ("grpo", 1.0, 0.5**0.5), ("dr_grpo", 0.5, 0.5)]
)
def test_a_group_is_compared_with_itself_and_lonely_proposals_within_their_kind(estimator, in_group, alone):
    got = run(estimator, [1.0, 0.0, 0.5, 3.0, 3.0], [1, 2, 1, 1, 1], groups=["g", "g", "g", "h", "h"])
    near(got.advantages_R, [in_group, -in_group, -in_group, 0.0, 0.0, 0.0], atol=1e-5)
    kind_roles = [("a", "proposer"), ("b", "proposer"), ("a", "proposer"), ("b", "solver"), ("b", "solver")]
    groups = ["p0", "p1", "p2", "g", "g"]
    got = run(estimator, [1.0, 7.0, 0.0, 2.0, 2.0], [1] * 5, kind_roles=kind_roles, groups=groups)
    near(got.advantages_R, [alone, 0.0, -alone, 0.0, 0.0], atol=1e-5)
    got = run(estimator, [1.0, 0.0, 0.5, 1.0, 0.0], [1, 2, 1, 1, 1], groups=["g", "g", "g", "left", "over"])
    near(got.advantages_R, [in_group, -in_group, -in_group, 0.0, 0.0, 0.0], atol=1e-5)


@pytest.mark.parametrize("estimator", list(ESTIMATOR_TYPES))
@pytest.mark.parametrize("reward", [0.1, -0.3, 0.0])
def test_equal_rewards_teach_nothing(estimator: str, reward: float) -> None:
    values = [0.01 * i for i in range(21)]
    got = run(estimator, [reward] * 7, [1, 2, 3, 4, 5, 6, 0], groups=list("gggghij"), values=values)
    assert torch.equal(got.advantages_R, torch.zeros(21))


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(list(ESTIMATOR_TYPES)), st.integers(1, 6), st.integers(0, 999))
def test_a_kind_and_role_of_equal_rewards_gets_and_changes_nothing(estimator: str, more: int, seed: int) -> None:
    """Except for reinforce++, whose one baseline is the mean over all kinds and roles."""
    rng = random.Random(seed)
    lengths = [rng.randint(1, 5) for _ in range(8 + more)]
    values = [rng.uniform(-1, 1) for _ in range(sum(lengths))]
    rewards = [rng.uniform(-1, 1) for _ in range(8)]
    kind_roles = [rng.choice([("a", "solver"), ("b", "solver")]) for _ in range(8)]
    few = run(estimator, rewards, lengths[:8], kind_roles=kind_roles, values=values[: sum(lengths[:8])])
    rewards, kind_roles = rewards + [-1.0] * more, kind_roles + [("hopeless", "proposer")] * more
    all_ = run(estimator, rewards, lengths, kind_roles=kind_roles, values=values)
    if estimator != "reinforce++":
        near(all_.advantages_R[: sum(lengths[:8])], few.advantages_R.tolist())
        assert not all_.advantages_R[sum(lengths[:8]) :].any()


def test_gae_divides_all_kinds_and_roles_by_one_deviation() -> None:
    """By an independent reference; the third (kind, role) earned the same throughout."""
    kind_roles = [("a", "solver"), ("b", "solver"), ("c", "solver"), ("a", "solver"), ("b", "solver"), ("c", "solver")]
    rewards, lengths = [1.0, 0.2, -1.0, 0.0, 0.1, -1.0], [3, 2, 4, 1, 5, 2]
    values = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(3)).tolist()
    got = run("gae", rewards, lengths, kind_roles=kind_roles, values=values)
    owners = [i for i, length in enumerate(lengths) for _ in range(length)]
    raw: dict[str, list[float]] = {"a": [], "b": []}
    for owner, value in zip(owners, values, strict=True):
        raw.get(kind_roles[owner][0], []).append(rewards[owner] - value)
    centred = {kind: [x - sum(xs) / len(xs) for x in xs] for kind, xs in raw.items()}
    flat = centred["a"] + centred["b"]
    deviation = (sum(x * x for x in flat) / (len(flat) - 2) + 1e-8) ** 0.5
    expected = []
    for owner in owners:
        kind = kind_roles[owner][0]
        expected.append(centred[kind].pop(0) / deviation if kind in centred else 0.0)
    near(got.advantages_R, expected)


@pytest.mark.parametrize("estimator", list(ESTIMATOR_TYPES))
@pytest.mark.parametrize("lengths", [[1], [0, 1], [2, 0], [0, 0]])
def test_lonely_and_silent_trajectories_are_never_nan(estimator: str, lengths: list[int]) -> None:
    got = run(estimator, [1.0] * len(lengths), lengths, values=[0.5 * i for i in range(sum(lengths))])
    assert got.advantages_R.shape == (sum(lengths),) and got.advantages_R.isfinite().all()
    for weighting in ("trajectory", "kind_role"):
        weights = weights_of(make_batch([1.0] * len(lengths), lengths), weighting)
        assert weights is not None and weights.shape == (sum(lengths),) and weights.isfinite().all()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.floats(0, 1), st.integers(0, 99))
def test_gae_equals_its_definition_as_a_double_sum(lengths: list[int], lam: float, seed: int) -> None:
    rng = random.Random(seed)
    rewards = [rng.uniform(-1, 1) for _ in lengths]
    values = [[rng.uniform(-1, 1) for _ in range(n)] for n in lengths]
    expected = []
    for reward, sample in zip(rewards, values, strict=True):
        value, paid = [*sample, 0.0], [0.0] * len(sample)
        if sample:
            paid[-1] += reward
        delta = [paid[t] + value[t + 1] - value[t] for t in range(len(sample))]
        for t in range(len(sample)):
            expected.append(sum(lam ** (j - t) * delta[j] for j in range(t, len(sample))) + value[t])
    got = run("gae", rewards, lengths, values=[v for sample in values for v in sample], lambda_=lam)
    near(got.returns_R, expected, atol=1e-5)


def test_a_discounted_sum_over_a_long_response() -> None:
    batch = Batch(rewards=[0.0], response_lengths=[5000], kind_roles=[("deduction", "solver")], groups=["a"])
    x = torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected, total = [], 0.0
    for value in reversed(x.tolist()):
        total = value + 0.999 * total
        expected.append(total)
    near(batch.discounted(x, 0.999), expected[::-1], atol=1e-10)


@pytest.mark.parametrize("estimator", list(ESTIMATOR_TYPES.values()))
def test_the_order_of_trajectories_does_not_matter(estimator: type) -> None:
    rng = random.Random(0)
    lengths = [rng.randint(1, 6) for _ in range(12)]
    rewards = [rng.choice([0.0, 0.5, 1.0]) for _ in lengths]
    kind_roles = [rng.choice([("a", "solver"), ("b", "proposer")]) for _ in lengths]
    values = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(0)).split(lengths)
    order = rng.sample(range(12), 12)

    def advantages(order: Iterable[int]) -> torch.Tensor:
        columns = [[column[i] for i in order] for column in (rewards, lengths, kind_roles)]
        groups, values_R = [f"g{i // 3}" for i in order], torch.cat([values[i] for i in order])
        batch = make_batch(columns[0], columns[1], kind_roles=columns[2], groups=groups, values=values_R.tolist())
        return estimate_advantages(batch, estimator())[0]

    straight, got = advantages(range(12)).split(lengths), advantages(order)
    torch.testing.assert_close(got, torch.cat([straight[i] for i in order]), rtol=1e-6, atol=1e-7)


def test_a_kl_in_the_reward_is_charged_where_it_arises() -> None:
    """By token with a critic, which predicts it; with each response as a whole, and last, without one."""
    batch = make_batch([1.0, 0.0], [3, 2], values=[0.0] * 5)
    batch.rollout_logprobs_R = torch.tensor([-1.0, -2.0, -1.0, -1.0, -3.0])
    batch.reference_logprobs_R = torch.tensor([-1.5, -2.0, -0.5, -2.0, -3.5])  # d = 0.5, 0, -0.5, 1, 0.5
    batch.charge_kl(KLConfig(coef=0.1, estimator="k1", where="reward"))
    near(estimate_advantages(batch, GAE())[1], [1.0, 1.05, 1.05, -0.15, -0.05])
    batch.values_R, free = None, replace(batch, penalties_R=None, values_R=None)
    apart = estimate_advantages(batch, TRRPP())[0] - estimate_advantages(free, TRRPP())[0]
    near(apart, [0.0] * 3 + [-0.15] * 2)
    batch = replace(batch, is_trace=[True, False])  # which is charged nothing
    batch.charge_kl(KLConfig(coef=0.1, estimator="k1", where="reward"))
    near(batch.penalties_R, [0.0, 0.0, 0.0, 0.1, 0.05])
    assert batch.sampled_part().penalties_R.tolist() == pytest.approx([0.1, 0.05])


def test_rae_compares_with_what_a_kind_and_role_earned_in_earlier_steps() -> None:
    """Over three steps; a role that has no sample in a step keeps its baseline."""
    estimator, other = RAE(decay=0.75), ("deduction", "proposer")
    steps = [
        (["s", "s", "p"], [1.0, 0.0, 0.25], {"s": 0.5, "p": 0.25}), (["s"], [1.0], {"s": 0.625}),
        (["p", "s", "s"], [1.25, 0.0, 0.25], {"s": 0.5, "p": 0.5}),
    ]  # fmt: skip
    for roles, rewards, baselines in steps:
        kind_roles = [KIND_ROLE if role == "s" else other for role in roles]
        got, _ = estimate_advantages(make_batch(rewards, [2] * len(roles), kind_roles=kind_roles), estimator)
        near(got, [reward - baselines[role] for role, reward in zip(roles, rewards, strict=True) for _ in range(2)])
    assert estimator.state == {"deduction/solver": 0.5, "deduction/proposer": 0.5} and RAE(decay=0.75).state == {}


@pytest.mark.parametrize("coef", [1e-6, 0.01, 10.0])
@pytest.mark.parametrize("estimator", list(ESTIMATOR_TYPES))
def test_a_kl_in_the_reward_scales_no_group_of_equal_rewards(estimator: str, coef: float) -> None:
    """Their advantages are the KL alone, or nothing with a critic; and only the others have a gradient to keep."""
    generator = torch.Generator().manual_seed(7)
    lengths = [3] * 24
    batch = make_batch([1.0] * 8 + [0.0] * 8 + [0.0, 1.0] * 4, lengths, groups=[f"g{i // 8}" for i in range(24)])
    batch.kind_roles = [("equal" if i < 16 else "mixed", "solver" if i < 8 else "proposer") for i in range(24)]
    batch.values_R = torch.randn(72, generator=generator) if estimator == "gae" else None
    batch.penalties_R = coef * torch.rand(72, generator=generator, dtype=torch.float64)
    free = replace(batch, penalties_R=None)
    charged_R, free_R = (estimate_advantages(each, ESTIMATOR_TYPES[estimator]())[0] for each in (batch, free))
    if estimator == "gae":
        assert not charged_R[:48].any() and (charged_R[48:] != free_R[48:]).any()
    else:
        kl_R = batch.penalties_R.reshape(24, 3).sum(1).repeat_interleave(3)
        torch.testing.assert_close(charged_R, (free_R.double() - kl_R).float())
    batch.capped = free.capped = [i == 23 for i in range(24)]
    for each in (batch, free):
        each.advantages_R = estimate_advantages(each, ESTIMATOR_TYPES[estimator]())[0]
        teaches = each.has_gradient(AlgorithmConfig())
        assert estimator in ("gae", "reinforce++") or teaches == [False] * 16 + [True] * 7 + [False]
    assert estimator != "gae" or teaches[:16] == [False] * 16
