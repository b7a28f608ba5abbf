"""A real pretrained model, SmolLM2-135M-Instruct, through the commands of the README: one step of self-play with rows
of a file, export, chat, and `azr check-model`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from azr.runs.model_folder import read_object
from azr.selfplay.seeds import write_lines
from azr.tasks.registry import KINDS as REGISTRY
from tests.datasets.test_rows import write
from tests.e2e.chat_model import random_task
from tests.real_models import ROOT, SMOLLM2, needs_smollm2

pytestmark = needs_smollm2
KINDS = ("deduction", "abduction", "induction")
SIZES = {
    "run.steps": 1,
    "selfplay.references": 2,
    "selfplay.induction-inputs": 4,
    "selfplay.proposer-prompts": 1,
    "selfplay.solver-prompts": 2,
    "selfplay.group-size": 2,
    "selfplay.seed-tasks": 4,
    "rollout.max-prompt-tokens": 1500,
    "rollout.max-response-tokens": 48,
    "rollout.max-concurrent": 16,
    "executor.workers": 1,
    "eval.every": 0,
    "train.dtype": "bfloat16",
}
ROWS = 2


def run(*command: object, said: str = "") -> str:
    """Return what a command prints; it must succeed. ``said``: on its standard input."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        input=said,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def seeds(folder: Path) -> Path:
    rng = random.Random(1)
    tasks = [random_task(rng, REGISTRY[kind], 4) for kind in KINDS for _ in range(SIZES["selfplay.seed-tasks"])]
    write_lines(folder / "seeds.jsonl", (task.record() for task in tasks))
    return folder / "seeds.jsonl"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one step."""
    root = tmp_path_factory.mktemp("runs")
    ask = {"grader": "math", "source": "sums"}
    rows = write(root / "rows.jsonl", *(ask | {"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(4)))
    sizes = [word for name, value in SIZES.items() for word in (f"--{name}", value)]
    files = ["--selfplay.seeds", seeds(root), "--data.path", rows, "--data.play", "mixed"]
    run("playground.azr_0b5", "--model.path", SMOLLM2, "--run.root", root, *sizes, *files,
        "--data.prompts", ROWS, "--data.samples", 2)  # fmt: skip
    return root / "azr_0b5"


def test_a_step_of_self_play_and_rows_trains(played: Path):
    (step,) = (json.loads(line) for line in (played / "metrics.jsonl").read_text().splitlines())
    assert step["step"] == 1 and step["weights/version"] == 1 and step["policy/grad_norm"] > 0
    assert 0 < step["policy/mismatch_mean"] < 0.05, "the engine samples from the trainer's policy"
    assert step["sums/solver/trajectories"] == 2 * ROWS
    assert all(step[f"{kind}/proposer/funnel/proposed"] == 1 for kind in KINDS)


def test_its_export_keeps_the_rope_theta_of_the_model_and_chats(played: Path, tmp_path: Path):
    run("azr", "export", played, tmp_path / "out")
    config = read_object(tmp_path / "out" / "config.json")
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100_000
    argv = ("--template", "tokenizer", "--temperature", 0, "--max-response-tokens", 40, "--context", 512)
    assert "Paris" in run("azr", "chat", tmp_path / "out", *argv, said="What is the capital of France?\n")


def test_hugging_face_trainer_and_vllm_agree():
    said = run("azr", "check-model", SMOLLM2, "--tokens", 64, "--only", "logprobs")
    assert said.splitlines()[-1].startswith("No difference is above its bound (0.0001 nats, 0.01 ")
