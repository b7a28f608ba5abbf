"""The mini with adapters and an engine that never sleeps, playing the kind and reward of the examples beside a broken
plug-in: played and exported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from azr.cli.main import dispatch
from azr.own_data import own_data
from tests.e2e.runs import LIMIT_S, ROOT, metrics
from tests.tables import programs

pytestmark = pytest.mark.long

BROKEN, SHORT_LIMIT = programs(Path(__file__).with_name("programs.txt"), "process").values()
"""The first begins with nonsense, takes too long over the second proposal, and fails over every one after that."""
OPTIONS = [
    *("--train.lora.rank", "8", "--train.policy-lr", "5e-4", "--reward.proposer", "medium", "--eval.every", "0"),
    *("--run.plugins", "examples.expressions", "examples.medium", "broken", "--run.no-stop-when-malformed"),
    *("--selfplay.kinds", "deduction", "expressions", "broken", "--selfplay.seed-tasks", "2"),
    *("--selfplay.proposer-prompts", "4", "--selfplay.solver-prompts", "4", "--cluster.no-colocate"),
    *("--algorithm.estimator.by", "2", "--algorithm.estimator", "counting"),
]


def play(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SHORT_LIMIT, *OPTIONS, "--run.root", str(root), *options], cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    (root / "broken.py").write_text(BROKEN)
    done = play(root, "--run.steps", "2")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "start reference" not in done.stdout, "the reference is the policy without its adapters"
    return root / "azr_14m_mini"


def test_the_examples_kind_and_reward_are_played_beside_a_broken_plugin(run: Path) -> None:
    """The 14M model cannot solve such tasks, so nothing is expected of it but that it is asked and judged."""
    lines = metrics(run)
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["expressions/proposer/funnel/proposed"] == 4 and line["expressions/solver/trajectories"] >= 4
        assert line["deduction/solver/trajectories"] >= 4 and not line["broken/proposer/funnel/valid"]
    tasks = [json.loads(line) for line in (run / "tasks.jsonl").read_text().splitlines()]
    assert any(task["kind"] == "expressions" and task["program"] == "" for task in tasks)
    log = (run / "log.txt").read_text()
    for problem in ("returned 3, which is neither a task nor a RejectReason", "raised RuntimeError: out of ideas"):
        assert log.count(f"broken: kind broken, validate {problem}; such a response is not trained on") == 1
    assert 'raise RuntimeError("out of ideas")' in log, "the traceback"
    assert log.count("broken: kind broken, validate takes over 1 s for one call") == 1


def test_engines_sample_with_what_the_trainer_computes(run: Path) -> None:
    """Engines hold merged weights, the trainer weights and adapters; the KL is that to the model without these."""
    first, second = metrics(run)
    for line in (first, second):
        assert 0 < line["policy/mismatch_mean"] < 0.02 and line["policy/mismatch_frac_outside"] < 0.05
        assert line["policy/grad_norm"] > 0
    assert first["policy/kl_reference"] == pytest.approx(0, abs=1e-3)
    assert second["policy/kl_reference"] > 0


def test_checkpoints_hold_adapters(run: Path) -> None:
    policy = run / "checkpoints" / "step_000002" / "policy"
    assert (policy / "adapter_model.safetensors").is_file() and not (policy / "model.safetensors").exists()
    trained = policy.parent / "trainers" / "policy" / "rank_000.safetensors"
    base = Path(own_data("azr_14m_worked")) / "model.safetensors"
    assert trained.stat().st_size < base.stat().st_size
    with safe_open(trained, framework="numpy") as state:
        assert {name.split(".")[-3] for name in state.keys()} == {"lora_A", "lora_B"}  # noqa: SIM118


def test_its_export_is_a_plain_model_and_it_goes_on_at_another_rate_but_not_another_rank(run, tmp_path, capsys) -> None:
    assert dispatch(["export", str(run), str(tmp_path / "model")]) == 0
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert dispatch(["export", str(run), str(tmp_path / "other"), "--base", own_data("exam")]) == 2
    assert "holds no model (no config.json there)" in capsys.readouterr().err
    done = play(run.parent, "--resume", "--run.steps", "4", "--train.lora.rank", "4")
    assert done.returncode == 2 and "train.lora.rank was 8 when the run was saved" in done.stderr
    done = play(run.parent, "--resume", "--run.steps", "3", "--train.policy-lr", "1e-4")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    *_, line = metrics(run)
    state = json.loads((run / "checkpoints" / "step_000003" / "driver.json").read_text())
    assert state["estimators"] == {"counting": {"count": 6}}, "what a plug-in's estimator counts lasts"
    assert line["step"] == 3 and 0 < line["policy/mismatch_mean"] < 0.02
