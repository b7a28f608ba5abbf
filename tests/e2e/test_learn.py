"""The controls of the proof run, all at once, end to end: nothing may be learned where nothing can be."""

from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from tests.e2e.runs import ROOT, metrics, rollouts, succeed

pytestmark = pytest.mark.long
CONTROLS = [
    *("--train.policy-lr", "0", "--ablation.shuffle-rewards", "--ablation.no-new-tasks", "--run.max-minutes", "0.01"),
    *("--selfplay.proposer-prompts", "6", "--selfplay.group-size", "6", "--selfplay.seed-tasks", "4"),
    *("--eval.limit", "12"),
]


@pytest.fixture(scope="module", params=["azr_14m_mini", "azr_14m_three_kinds"])
def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    root = tmp_path_factory.mktemp("runs")
    succeed(f"playground.{request.param}", "--run.root", root, *CONTROLS)
    return root / str(request.param)


def test_the_time_bound_ends_a_run_whose_learning_rate_of_zero_exports_the_base_bit_by_bit(run: Path) -> None:
    lines = metrics(run)
    assert [line["step"] for line in lines] == [0, 1]
    assert all("eval/exam/mean@4" in line for line in lines)
    assert [folder.name for folder in (run / "checkpoints").iterdir()] == ["step_000001"]
    start = "azr_14m_worked" if run.name == "azr_14m_mini" else "azr_14m_base"
    folders = run / "checkpoints" / "step_000001" / "policy", ROOT / "data" / start
    trained, base = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in folders)
    assert trained.keys() == base.keys() and all(trained[name].equal(base[name]) for name in base)


def test_without_new_tasks_only_seed_tasks_are_solved_and_records_keep_the_true_rewards(run: Path) -> None:
    rows = rollouts(run, 1)
    assert {row["role"] for row in rows} == {"solver"}
    sizes = Counter(row["group"] for row in rows).values()
    assert all(size % 6 == 0 for size in sizes)
    if run.name == "azr_14m_mini":
        assert len(rows) == 6 * 6
    else:
        sampled, derived = 3 * 6, 6 + 6 + 6 * (3 + 3)
        assert 6 * sampled < len(rows) <= 6 * (sampled + derived)
    assert all(row["problem_id"].startswith("seed") for row in rows)
    _, step = metrics(run)
    assert step["deduction/proposer/funnel/proposed"] == 0 and "deduction/proposer/valid_rate" not in step
    assert step["policy/grad_norm"] > 0 and step["policy/lr"] == 0
    assert all((row["reward"] == 1.0) == (row["accuracy"] == 1.0) for row in rows)
