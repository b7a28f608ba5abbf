"""Plug-ins: what they add is played and paid, and what cannot be used is one sentence."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from azr import plugins
from azr.cli.main import dispatch
from azr.config import RewardConfig
from azr.errors import UserError
from azr.plugins import load_plugins
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.rewards.pay import proposer_reward
from azr.selfplay.rewards.registry import BONUSES, SOLVE_RATE_REWARDS
from azr.tasks.base import Proposal, ProposalLimits, RejectReason, Verdict
from azr.tasks.prompts import Section
from azr.tasks.registry import KINDS, derived_tasks

ROOT = Path(__file__).parents[1]
LIMITS = ProposalLimits(source_bytes=1000, induction_inputs=3, repeats=2)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """As they were, after the test."""
    before = [(each, dict(each)) for each in (KINDS, SOLVE_RATE_REWARDS, BONUSES)]
    loaded = set(plugins._loaded)
    yield
    for registry, content in before:
        registry.clear()
        registry.update(content)
    plugins._loaded.clear()
    plugins._loaded.update(loaded)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def plugin(here: Path, text: str) -> str:
    name = f"plugin_{len(list(here.glob('plugin_*')))}_{abs(hash(str(here)))}"
    (here / f"{name}.py").write_text(text)
    return name


async def run_nothing(request: object) -> None:
    raise AssertionError("a kind without programs runs none")


async def test_the_example_kind_is_validated_graded_and_stored() -> None:
    load_plugins(["examples.expressions"])
    load_plugins(["examples.expressions"])
    kind = KINDS["expressions"]

    async def proposed(text: str) -> object:
        return await kind.validate(Proposal(id="p1", sections=[Section("output", text)]), LIMITS, run_nothing)

    task = await proposed("3 * (17 - 2) + 8")
    assert (task.inputs, task.outputs, task.program) == (("2, 3, 8, 17",), ("53",), "")
    for refused in ("3 ** 9", "f(3) + 1", "7", "1 + 100", "1 + 2" * 50, "(1 + ", "__import__('os')"):
        assert await proposed(refused) is RejectReason.MALFORMED, refused
    verdicts = {
        "8 + 3 * (17 - 2)": "right",
        "17 * 3 + 2": "wrong",
        "51 + 2": "wrong",
        "53": "malformed",
        "": "malformed",
    }
    for text, verdict in verdicts.items():
        assert await kind.grade(task, (Section("output", text),), run_nothing) is Verdict(verdict)
    assert await kind.grade(task, (Section("program", "1"),), run_nothing) is Verdict.MALFORMED

    buffer = TaskBuffer(["expressions", "deduction"])
    buffer.add(task)
    twin = await proposed("8 + (17 - 2) * 3")
    assert buffer.reject_reason(replace(twin, id="p2")) is RejectReason.DUPLICATE
    assert derived_tasks(task, ["deduction", "abduction"], 5, random.Random(0)) == [], (
        "there is no program to derive from"
    )


def test_an_own_reward_is_paid_and_what_it_does_wrong_counts_as_0(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_plugins(["examples.medium"])
    assert [SOLVE_RATE_REWARDS["medium"](rate, RewardConfig()) for rate in (0.0, 0.5, 0.75)] == [0.0, 1.0, 0.5]
    bad = plugin(
        here,
        "def raises(s, knobs): return 1 / 0\ndef nonsense(s, knobs): return 'much'\n"
        "proposer_rewards = {'raises': raises, 'nonsense': nonsense, 'infinite': lambda s, k: float('nan')}",
    )
    load_plugins([bad])
    task = replace(KINDS["deduction"].seed(), solve_rate=0.5)
    with caplog.at_level(logging.WARNING):
        for name in ("raises", "nonsense", "infinite"):
            assert proposer_reward(task, {}, RewardConfig(proposer=name)) == (0.0, {name: 0.0})
            assert f"{bad}:{name} " in caplog.records[-1].getMessage()


KIND = """
from examples.expressions import Expressions
class Mine(Expressions):
    name = "mine"
    reference_kinds = ("mine",)
    {body}
kinds = [Mine()]
"""


@pytest.mark.parametrize(
    "text, said",
    [
        ("import no_such_module_anywhere", r"cannot be imported: ModuleNotFoundError: No module named 'no_such"),
        ("x = 1", r"states neither kinds nor proposer_rewards nor bonuses"),
        ("kinds = [3]", r"has 3 among its kinds: give it objects of azr\.tasks\.base\.TaskKind\.$"),
        (KIND.format(body='name = "deduction"'), r"calls a kind 'deduction', and there is one of this name"),
        (KIND.format(body='name = "My kind"'), r"calls a kind 'My kind'; a name is small letters"),
        (KIND.format(body='name = "output"'), r"calls a kind 'output', which prompts call a part of a task"),
        (KIND.format(body='reference_kinds = ("yours",)'), r"has references of 'yours', no kind"),
        (KIND.format(body="def seed(self): return 1 / 0"), r"cannot be played: ZeroDivisionError: division by zero"),
        (KIND.format(body="def seed(self): return None"), r"cannot be played: seed\(\) gives no task of it"),
        (KIND.format(body="def solution(self, task): return ()"), r"its proposal or solution is not read back"),
        ("proposer_rewards = {'variance': print}", r"calls a reward 'variance', and there is one of this name"),
        ("bonuses = {'short': 3}", r"The bonus short of the plug-in \S+ is no function"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_leaves_nothing(here: Path, text: str, said: str) -> None:
    before = dict(KINDS), dict(SOLVE_RATE_REWARDS), dict(BONUSES)
    with pytest.raises(UserError, match=said) as caught:
        load_plugins([plugin(here, text)])
    assert "\n" not in str(caught.value) and before == (KINDS, SOLVE_RATE_REWARDS, BONUSES)


def test_commands_take_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    knobs = ["--run.plugins", "examples.expressions", "--selfplay.kinds", "expressions"]
    assert dispatch(["prompts", "azr_14m_mini", *knobs]) == 0
    assert "<|solve|><|expressions|><|input|>numbers 1, 2; target 3<|answer|>" in capsys.readouterr().out
    assert dispatch(["plan", "azr_14m_mini", "--run.plugins", "no.such.plugin"]) == 2
    assert "error: The plug-in no.such.plugin cannot be imported: " in capsys.readouterr().err


def test_the_example_kind_and_reward_play_the_mini(tmp_path: Path) -> None:
    """The 14M model cannot solve such tasks, so nothing is expected of it but that it is asked and judged."""
    knobs = ["--run.plugins", "examples.expressions", "examples.medium", "--selfplay.kinds", "deduction", "expressions"]
    knobs += ["--reward.proposer", "medium", "--run.steps", "2", "--run.no-stop-when-malformed", "--eval.every", "0"]
    knobs += ["--selfplay.seed-tasks", "2", "--selfplay.proposer-prompts", "4", "--selfplay.solver-prompts", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "playground.azr_14m_mini", *knobs, "--run.root", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "azr_14m_mini" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["expressions/proposer/funnel/proposed"] == 4 and line["expressions/solver/trajectories"] >= 4
    tasks = [json.loads(line) for line in (tmp_path / "azr_14m_mini" / "tasks.jsonl").read_text().splitlines()]
    assert any(task["kind"] == "expressions" and task["program"] == "" for task in tasks)
