"""A step of self-play beside plug-ins that are broken: what they fail over is not trained on, and all else is."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
import pytest_asyncio

from azr import isolated
from azr.plugins import load_plugins, loading
from azr.records import Role
from azr.runs.metrics import num_ungraded
from azr.tasks.base import RejectReason
from tests.selfplay.test_play import CONFIG, Script, funnel, half_right, proposal, replace_play, trained, untrained
from tests.selfplay.test_play import play as play

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLUGIN = """
from examples.expressions import Expressions
class Broken(Expressions):
    name = "broken"
    reference_kinds = ("broken",)
    async def validate(self, proposal, limits, run):
        if "7" in proposal.sections[0].text: raise RuntimeError("seven")
        return await super().validate(proposal, limits, run)
    async def grade(self, task, answer, run):
        while answer[0].text == "4 + 4": pass
        return await super().grade(task, answer, run)
kinds = [Broken()]
proposer_rewards = {"picky": lambda rate, knobs: 1 / rate}
"""


@pytest_asyncio.fixture(loop_scope="module")
async def broken(plugin: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(isolated, "TIME_LIMIT_S", 1.0)
    load_plugins([plugin(PLUGIN)])
    yield
    for functions in loading._loaded.values():
        await functions.end()


def expression(text: str) -> str:
    return f"<|output|>{text}<|end|>"


async def test_a_kind_that_raises_and_hangs_costs_those_responses_only(play, broken: None) -> None:
    config = replace_play(CONFIG, kinds=("deduction", "broken"), proposer_prompts=2, solver_prompts=0)

    def solve(prompt: str, attempt: int) -> str:
        return half_right(prompt, attempt) if "<|deduction|>" in prompt else expression("3 + 2" if attempt else "4 + 4")

    proposals = [proposal("a + 1"), proposal("a + 2"), expression("1 * 7"), expression("2 + 3")]
    result, buffer = await play(config, Script(proposals, solve))
    assert funnel(result, "deduction").solve_rates == [0.5, 0.5]
    counts = funnel(result, "broken")
    assert (counts.rejected, counts.solve_rates) == ({RejectReason.LOST: 1}, [1.0])
    graded = Counter(t.role for t in trained(result) if t.kind == "broken")
    assert graded == {Role.PROPOSER: 1, Role.SOLVER: 3}, "of two proposals and four answers"
    outcomes = sorted(t.judgement.verdict for t in untrained(result))
    assert outcomes == ["lost", "ungraded"] and num_ungraded(result.samples) == 2
    assert buffer.sizes()["broken"] == 2


async def test_a_proposal_whose_reward_fails_is_recorded_and_not_trained_on(play, broken: None) -> None:
    config = replace_play(CONFIG, proposer_prompts=2, solver_prompts=0)
    config = replace(config, reward=replace(config.reward, proposer="picky"))
    result, buffer = await play(config, Script([proposal("a + 1"), proposal("a + 5")], half_right))
    assert funnel(result, "deduction").solve_rates == [0.0, 0.5]
    (paid,) = [t for t in trained(result) if t.role is Role.PROPOSER]
    assert (paid.reward, paid.reward_parts) == (2.0, {"picky": 2.0})
    (unpaid,) = untrained(result)
    assert unpaid.role is Role.PROPOSER and unpaid.judgement.verdict == "valid"
    assert buffer.sizes() == {"deduction": 3}, "its task is as good as any"
