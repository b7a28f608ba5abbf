from dataclasses import replace

import pytest

from azr.config import IntrinsicRewardConfig, RewardConfig
from azr.records import Judgement, Task
from azr.selfplay.rewards import (
    BONUSES,
    bonus_coefficients,
    check_names,
    combine,
    intrinsic_bonuses,
    length_penalty,
    reward_answer,
    reward_proposal,
    solver_reward,
)
from azr.tasks.base import RejectReason, Verdict
from azr.tasks.registry import KINDS
from tests.runs.factory import sample

PAPER = RewardConfig()
SEED = KINDS["deduction"].seed()


RATES = (0.0, 0.125, 0.25, 0.5, 0.875, 1.0)


@pytest.mark.parametrize("name, pays", [
    ("learnability", [-9.0, 0.875, 0.75, 0.5, 0.125, -9.0]), ("inverse", [1.0, 0.875, 0.75, 0.5, 0.125, -9.0]),
    ("variance", [-9.0, 0.4375, 0.75, 1.0, 0.4375, -9.0]), ("band", [-9.0, 0.0, 1.0, 1.0, 0.0, -9.0]),
])  # fmt: skip
def test_what_a_solve_rate_pays_is_chosen_by_name(name, pays):
    config = RewardConfig(proposer=name, unlearnable=-9.0)
    check_names(config)
    paid = [rewarded(replace(SEED, solve_rate=rate), config) for rate in RATES]
    assert paid == [(reward, {name: reward}) for reward in pays]


def rewarded(
    outcome: Task | RejectReason, config: RewardConfig, times_seen: int = 0
) -> tuple[float | None, dict[str, float]]:
    proposal = sample("proposer", reward=None)
    reward_proposal(proposal, outcome, (), lambda: (), times_seen, config, max_tokens=100)
    return proposal.reward, proposal.reward_parts


@pytest.mark.parametrize("repeat", [None, -1.0, 0.25])
def test_a_repeat_has_a_price_of_its_own_and_so_has_what_is_held_out(repeat):
    config = RewardConfig(repeat=repeat)
    paid = {reason: rewarded(reason, config)[0] for reason in RejectReason if reason is not RejectReason.LOST}
    assert paid.pop(RejectReason.DUPLICATE) == (-0.5 if repeat is None else repeat)
    assert paid.pop(RejectReason.IN_BENCHMARK) == repeat
    assert set(paid.values()) == {-1.0}


def test_a_shape_that_is_stored_often_pays_less():
    config = RewardConfig(novelty=1.0)
    task = replace(SEED, solve_rate=0.5)
    assert rewarded(task, config, 3) == (0.25, {"learnability": 0.5, "novelty": -0.25})
    assert rewarded(task, config, 0) == (0.5, {"learnability": 0.5, "novelty": 0.0})
    paid = [rewarded(task, RewardConfig(novelty=0.5), count)[0] for count in range(20)]
    assert paid == sorted(paid, reverse=True) and paid[3] == 0.375
    useless = RewardConfig(novelty=1.0, unlearnable=-0.75)
    assert rewarded(replace(task, solve_rate=1.0), useless, 9) == (-0.75, {"learnability": -0.75})


def test_a_registered_bonus_needs_no_option_of_its_own(monkeypatch):
    monkeypatch.setitem(BONUSES, "many_lines", lambda task, references, known: task.program.count("\n") / 10)
    config = IntrinsicRewardConfig(bonuses=("halstead:1", "many_lines:2.5", "complexity:0.15"))
    assert bonus_coefficients(config) == {"halstead": 1.0, "many_lines": 2.5, "complexity": 0.15}
    bonuses = intrinsic_bonuses(SEED, [], lambda: [], config)
    assert bonuses == {"halstead": pytest.approx(0.03), "many_lines": 0.25, "complexity": pytest.approx(0.01)}


def test_rewards_of_verdicts_and_reasons_and_their_combinations_with_bonuses():
    assert [solver_reward(v, PAPER) for v in (Verdict.RIGHT, Verdict.WRONG, Verdict.MALFORMED)] == [1.0, -0.5, -1.0]
    with pytest.raises(AssertionError):
        solver_reward(Verdict.UNGRADED, PAPER)
    rewards = {reason: rewarded(reason, PAPER) for reason in RejectReason}
    assert rewards.pop(RejectReason.DUPLICATE) == (-0.5, {"duplicate": -0.5})
    assert rewards.pop(RejectReason.IN_BENCHMARK) == (None, {}), "not trained on"
    assert rewards == {reason: (-1.0, {str(reason): -1.0}) for reason in rewards}
    for how, result in {"sum": 1.0, "multiply": 0.03, "sum_multiply": 0.56, "multiply_sum": 0.25}.items():
        assert combine(0.5, [0.2, 0.3], how) == pytest.approx(result) and combine(0.5, [], how) == 0.5


def test_bonuses_are_capped_named_not_computed_where_off_and_know_every_kind():
    def forbidden():
        raise AssertionError("computed a bonus that is off")

    seed = KINDS["deduction"].seed()
    assert intrinsic_bonuses(seed, [], forbidden, IntrinsicRewardConfig()) == {}
    config = IntrinsicRewardConfig(bonuses=("complexity:15", "edit_distance:1", "halstead:1", "answer_diversity:0.25"))
    bonuses = intrinsic_bonuses(seed, [seed], lambda: [seed], config)
    assert bonuses.pop("halstead") == pytest.approx(0.03)
    assert bonuses == {"complexity": 0.5, "edit_distance": 0.0, "answer_diversity": 0.0}
    # The error kind too: its answer is an exception's name, and its diversity counts like any other.
    config = IntrinsicRewardConfig(bonuses=("answer_diversity:0.5",))
    for kind in KINDS.values():
        assert intrinsic_bonuses(kind.seed(), [], lambda: [], config) == {"answer_diversity": 0.5}


@pytest.mark.parametrize("length, penalty", [(1, 0.0), (60, 0.0), (70, -0.25), (99, -0.975), (100, -1.0)])
def test_length_costs_linearly_before_the_limit(length, penalty):
    assert length_penalty(length, max_tokens=100, buffer=40) == pytest.approx(penalty)


@pytest.mark.parametrize("overlong, reward", [("keep", 1.0), ("mask", 1.0), (4, 0.25)])
def test_length_costs_a_right_answer_only_where_asked(overlong, reward):
    right = sample("solver", length=9)
    right.judgement, right.accuracy = Judgement(verdict=Verdict.RIGHT), 1.0
    reward_answer(right, RewardConfig(overlong=overlong), max_tokens=10)
    assert right.reward == reward == sum(right.reward_parts.values()) and right.used == "trained"
    assert list(right.reward_parts) == ["right", "overlong"][: 1 + (overlong == 4)]
