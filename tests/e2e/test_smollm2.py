"""A real pretrained model, SmolLM2-135M-Instruct, through the commands of the README: one step of self-play with rows
of a file, export, chat, and `azr check-model`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from azr.cli.main import dispatch
from azr.runs.model_folder import read_object
from azr.selfplay.seeds import write_lines
from azr.tasks.registry import KINDS as REGISTRY
from tests.datasets.test_rows import write
from tests.e2e.chat_model import random_task
from tests.e2e.runs import metrics, succeed
from tests.real_models import SMOLLM2, needs_smollm2

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
    succeed("playground.azr_0b5", "--model.path", SMOLLM2, "--run.root", root, *sizes, *files,
        "--data.prompts", ROWS, "--data.samples", 2)  # fmt: skip
    return root / "azr_0b5"


def test_a_step_of_self_play_and_rows_trains(played: Path):
    (step,) = metrics(played)
    assert step["step"] == 1 and step["weights/version"] == 1 and step["policy/grad_norm"] > 0
    assert 0 < step["policy/mismatch_mean"] < 0.05, "the engine samples from the trainer's policy"
    assert step["sums/solver/trajectories"] == 2 * ROWS
    assert all(step[f"{kind}/proposer/funnel/proposed"] == 1 for kind in KINDS)


@pytest.fixture(scope="module")
def exported(played: Path) -> Path:
    folder = played.parent / "out"
    assert dispatch(["export", str(played), str(folder)]) == 0
    return folder


def test_its_export_keeps_the_rope_theta_of_the_model(exported: Path):
    config = read_object(exported / "config.json")
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100_000


@pytest.mark.long
def test_its_export_chats(exported: Path):
    argv = ("--template", "tokenizer", "--temperature", 0, "--max-response-tokens", 40, "--context", 512)
    assert "Paris" in succeed("azr", "chat", exported, *argv, said="What is the capital of France?\n")


@pytest.mark.long
def test_hugging_face_trainer_and_vllm_agree():
    said = succeed("azr", "check-model", SMOLLM2, "--tokens", 64, "--only", "logprobs")
    assert said.splitlines()[-1].startswith("No difference is above its bound (0.0001 nats, 0.01 ")
