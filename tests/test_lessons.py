"""Mistakes of earlier systems that must not come back and have no better place among the tests.

Their neighbours: truncated outputs, evaluated answers, multi-line inputs, leaked pairs and timeouts as error labels in
tests/tasks/test_kinds.py; eviction and duplicates in tests/selfplay/test_buffer.py; same-step solving and
lost executions in tests/selfplay/test_play.py; determinism, isolation and reward forgery in tests/executor.
"""

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from azr.cluster.supervisor import TakesSharedCalls
from azr.config import Config, RolloutConfig
from azr.records import Stops
from azr.rollout.engine_group import EngineGroup, EnginePlacement
from azr.selfplay.journal import Journal, WorkItem

SOURCE = Path(__file__).parent.parent / "azr"


class Engine(TakesSharedCalls):
    """In this process; answers nothing, and knows what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[str, object]] = []

    async def generate(self, prompt_ids, **options):
        self.asked.append(options)
        return []


def group_of(config: Config, engine: Engine) -> EngineGroup:
    group = EngineGroup(config, Stops(), [EnginePlacement()], from_step=0)
    group.slots[0].actor = SimpleNamespace(exchange=SimpleNamespace(remote=engine.exchange))
    return group


async def test_bug_3_every_sample_is_drawn_at_the_rollout_temperature():
    """No caller can ask for another temperature, so estimates are never greedy copies of one sample."""
    engine = Engine()
    config = replace(Config(), rollout=RolloutConfig(temperature=0.7))
    await group_of(config, engine).generate([1], n=8, max_tokens=5)
    assert engine.asked == [{"n": 8, "max_tokens": 5, "temperature": 0.7, "seed": None, "stop_strings": ()}]
    item = WorkItem(step=1, name="000001", kind="deduction", begins="propose")
    with pytest.raises(AssertionError, match="at the rollout temperature"):
        await Journal(engine.generate, 1.0).open(item).generate([1], n=8, max_tokens=5, temperature=0.0, seed=1)
    await group_of(config, engine).generate([1], n=1, max_tokens=5, temperature=0.0)
    assert engine.asked[-1]["temperature"] == 0.0, "as evaluations may"
    assert "temperature" not in (SOURCE / "datasets" / "play.py").read_text(), "nor can rows"


def test_nothing_but_the_registry_knows_kinds_by_name():
    outside = [path for path in SOURCE.rglob("*.py") if not {"tasks", "pretrain"} & set(path.parts)]
    kinds = {"deduction", "abduction", "induction"}
    trees = {path.name: ast.walk(ast.parse(path.read_text())) for path in outside}
    # Examples in docstrings may name one.
    found = {name for name, nodes in trees.items() if any(getattr(node, "value", None) in kinds for node in nodes)}
    # A default, and a converter that knows what records of another system are.
    assert found <= {"config.py", "seeds.py"}
