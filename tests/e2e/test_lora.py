"""The mini as it is, but for its sizes and the adapters that it trains: played, resumed, exported."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from azr.cli.main import dispatch
from azr.own_data import own_data
from tests.e2e.test_mini import mini


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for steps, *more in ((2,), (3, "--resume", "--train.policy-lr", "5e-4")):
        done = mini(root, "--eval.every", "0", "--train.lora.rank", "8", "--run.steps", str(steps), *more)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "start reference" not in done.stdout, "the reference is the policy without its adapters"
    return root / "three_kinds"


def test_engines_sample_with_what_the_trainer_computes(run):
    """Engines hold merged weights, the trainer weights and adapters; the KL is that to the model without these."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["step"]]
    assert [line["step"] for line in steps] == [1, 2, 3]
    for line in steps:
        assert 0 < line["policy/mismatch_mean"] < 0.02 and line["policy/mismatch_frac_outside"] < 0.05
        assert line["policy/grad_norm"] > 0 and line["critic/grad_norm"] > 0
    assert steps[0]["policy/kl_reference"] == pytest.approx(0, abs=1e-3)
    assert steps[2]["policy/kl_reference"] > 0


def test_checkpoints_hold_adapters(run):
    policy = run / "checkpoints" / "step_000003" / "policy"
    assert (policy / "adapter_model.safetensors").is_file() and not (policy / "model.safetensors").exists()
    trained = policy.parent / "trainers" / "policy" / "rank_000.safetensors"
    base = Path(own_data("azr_14m_base")) / "model.safetensors"
    assert trained.stat().st_size < base.stat().st_size
    with safe_open(trained, framework="numpy") as state:
        assert {name.split(".")[-3] for name in state.keys()} == {"lora_A", "lora_B"}  # noqa: SIM118


def test_its_export_is_a_plain_model(run, tmp_path, capsys):
    assert dispatch(["export", str(run), str(tmp_path / "model")]) == 0
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert dispatch(["export", str(run), str(tmp_path / "other"), "--base", own_data("exam")]) == 2
    assert "holds no model (no config.json there)" in capsys.readouterr().err


def test_another_rank_cannot_take_over(run):
    done = mini(run.parent, "--resume", "--run.steps", "4", "--train.lora.rank", "4")
    assert done.returncode == 2 and "train.lora.rank was 8 when the run was saved" in done.stderr
