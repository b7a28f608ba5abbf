"""Rewards, bonuses and estimators of plug-ins: what goes wrong in them costs what it was about, and no more."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from azr import isolated
from azr.algorithms.advantages import OWN_ESTIMATORS
from azr.algorithms.batch import Batch
from azr.config import IntrinsicRewardConfig, RewardConfig
from azr.plugins import load_plugins
from azr.records import Role, Sample
from azr.selfplay.rewards import reward_proposal
from azr.tasks.registry import KINDS

TASK = replace(KINDS["deduction"].seed(), solve_rate=0.75)
BAD = """
def hang(*inputs):
    while True: pass
functions = {
    "raises": lambda *inputs: 1 / 0,
    "nonsense": lambda *inputs: "much",
    "infinite": lambda *inputs: float("nan"),
    "hangs": hang,
}
proposer_rewards = functions
bonuses = {f"bonus_{name}": function for name, function in functions.items()}
bonuses["known"] = lambda inputs: len(inputs.known()) / 10 + len(inputs.references) + len(inputs.known())
def centred(batch):
    return (batch.rewards_N - batch.rewards_N.mean())[batch.seq_index_R]
estimators = {
    "centred": centred,
    "short": lambda inputs: inputs.rewards_N,
    "list": lambda inputs: inputs.rewards,
    "infinite": lambda inputs: centred(inputs) * float("inf"),
    "raises": lambda inputs: 1 / 0,
    "hangs": hang,
}
"""


@pytest.fixture
def bad(plugin: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, processes: None) -> str:
    monkeypatch.setattr(isolated, "TIME_LIMIT_S", 1.5)
    monkeypatch.setattr("azr.plugins.own.ESTIMATE_LIMIT_S", 9.0)  # torch is loaded in it
    load_plugins([name := plugin(BAD), "examples.medium"])
    return name


async def pay(proposer: str = "learnability", *bonuses: str) -> dict[str, float] | None:
    """Return the parts of a proposal's reward; None if it has none."""
    config = RewardConfig(proposer=proposer, intrinsic=IntrinsicRewardConfig(bonuses=bonuses))
    proposal = Sample(role=Role.PROPOSER, kind=TASK.kind, problem_id=TASK.id, group="propose:x")
    await reward_proposal(proposal, TASK, [TASK], lambda: [TASK, TASK], config, 100)
    return proposal.reward_parts if proposal.reward is not None else None


async def test_an_own_reward_is_paid(bad: str) -> None:
    assert await pay("medium") == {"medium": 0.5}
    ours = await pay()
    assert ours is not None and set(ours) == {"learnability"}, "a reward of ours is paid as before"


async def test_an_own_bonus_is_paid_and_sees_what_bonuses_see(bad: str) -> None:
    assert (await pay("learnability", "known:0.1") or {})["known"] == pytest.approx(0.32)
    assert (await pay("learnability", "known:3") or {})["known"] == 0.5, "no bonus is more than 0.5"


@pytest.mark.parametrize(
    "name, said",
    [
        ("raises", "raised ZeroDivisionError: division by zero"),
        ("nonsense", "returned 'much', which is no finite number"),
        ("infinite", "returned nan, which is no finite number"),
        ("hangs", "took over 1.5 s, or ended its process"),
    ],
)
async def test_a_proposal_that_a_reward_or_bonus_fails_over_is_not_paid(bad, name, said, caplog):
    assert await pay(name) is None
    assert f"{bad}: reward {name} {said}; such a proposal is not trained on" in caplog.text
    assert await pay("medium", f"bonus_{name}:0.5") is None
    assert f"{bad}: bonus bonus_{name} {said}; such a proposal is not trained on" in caplog.text
    assert await pay("medium") == {"medium": 0.5}


BATCH = Batch(
    rewards=[1.0, 0.0, -1.0, 0.5],
    response_lengths=[2, 3, 1, 0],
    kind_roles=[("deduction", Role.SOLVER)] * 4,
    groups=["a", "a", "b", "b"],
)


async def test_an_own_estimator_gives_advantages_per_token(bad: str) -> None:
    advantages_R = await OWN_ESTIMATORS["centred"](BATCH)
    centred_N = torch.tensor([0.875, -0.125, -1.125, 0.375])
    assert torch.equal(advantages_R, centred_N[BATCH.seq_index_R])
    assert advantages_R.dtype == torch.float32


async def test_what_an_estimator_fails_over_is_not_learned(bad: str, caplog: pytest.LogCaptureFixture) -> None:
    for name, said in (
        ("short", "returned a tensor of the shape (4,), and there are 6 response tokens"),
        ("list", "returned [1.0, 0.0, -1.0, 0.5], which is no tensor"),
        ("infinite", "returned numbers that are not finite"),
        ("raises", "raised ZeroDivisionError: division by zero"),
        ("hangs", "took over 9 s, or ended its process"),
    ):
        assert await OWN_ESTIMATORS[name](BATCH) is None
        assert f"{bad}: estimator {name} {said}; nothing is learned in such a step" in caplog.text
