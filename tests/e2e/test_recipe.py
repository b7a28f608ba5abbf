"""GPU recipes as shipped, in chat style with sizes changed, on a cluster that declares eight GPUs; the CPU computes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from transformers import AutoTokenizer

from playground.azr_coder14b_ppo import config as recipe
from tests.datasets.test_rows import write
from tests.e2e import chat_model
from tests.e2e.runs import metrics, run, succeed
from tests.recipes import recipes

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
SIZES = {
    "selfplay.references": 2, "selfplay.induction-inputs": 4, "selfplay.proposer-prompts": 6,
    "selfplay.solver-prompts": 6, "selfplay.group-size": 4, "selfplay.seed-tasks": 4,
    "rollout.max-prompt-tokens": 400, "rollout.max-response-tokens": 48, "rollout.engines": 1,
    "rollout.tensor-parallel": 2, "train.data-parallel": 2, "train.device": "cpu",
}  # fmt: skip
PLAY = ("propose", "validate", "estimate", "solve", "verify")
PHASES = (*PLAY, "critic values", "reference logprobs", "train critic", "train policy", "push")
KINDS = recipe.selfplay.kinds


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands where Qwen2.5-Coder-14B stands: it was taught the form of the recipe's own prompts."""
    return chat_model.teach(recipe, tmp_path_factory.mktemp("chat") / "model", references=2, induction_inputs=4)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "num_gpus": 8, "include_dashboard": False})
    try:
        yield found.address
    finally:
        found.shutdown()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def options(model: Path, root: Path, address: str) -> list[object]:
    sizes = [word for name, value in SIZES.items() for word in (f"--{name}", value)]
    return [*sizes, "--model.path", model, "--run.root", root, "--cluster.address", address]


@pytest.fixture(scope="module")
def shown(model: Path, root: Path, address: str) -> str:
    return succeed("playground.azr_coder14b_ppo", *options(model, root, address), "--run.steps", 2)


def digits(count: int) -> list[dict]:
    """Rows of a data file, each with one answer."""
    ask = {"grader": "math", "source": "digits"}
    return [ask | {"prompt": f"Which digit is {n}?", "answer": str(n)} for n in range(count)]


def steps(root: Path, name: str = "azr_coder14b_ppo") -> list[dict]:
    return metrics(root / name)


def test_two_steps_with_two_ranks_and_an_engine_of_two_parts(shown: str, root: Path) -> None:
    assert [step["step"] for step in steps(root)] == [1, 2]
    for step in steps(root):
        assert all(step[f"seconds/{phase}"] > 0 for phase in PHASES)
        assert step["weights/version"] == step["step"] and step["weights/push_gb_s"] > 0
        assert step["policy/grad_norm"] > 0 and step["critic/grad_norm"] > 0
        assert 0 < step["policy/mismatch_mean"] < 0.02, "an engine in two parts samples from the trainers' policy"
    assert steps(root)[0]["policy/kl_reference"] == pytest.approx(0, abs=1e-3)


def test_a_model_that_reads_its_prompt_earns_from_the_first_step(shown: str, root: Path) -> None:
    assert "ALARM" not in shown
    for step in steps(root):
        assert step["proposer/malformed"] < 0.5 and step["solver/malformed"] < 0.5
        assert sum(step[f"{kind}/proposer/funnel/valid"] for kind in KINDS) > 0
        assert max(step.get(f"{kind}/solver/accuracy", 0) for kind in KINDS) > 0
        assert max(step[f"{kind}/solver/truncated"] for kind in KINDS) < 0.5, "responses stop at the answer's end"


def test_the_export_is_what_was_trained_and_the_run_goes_on(
    shown: str, model: Path, root: Path, address: str, tmp_path: Path
) -> None:
    data = ["--data.path", write(tmp_path / "rows.jsonl", *digits(3)), "--data.play", "mixed"]
    data += ["--data.prompts", 2, "--data.samples", 3, "--run.steps", 3, "--resume"]
    resumed = succeed("playground.azr_coder14b_ppo", *options(model, root, address), *data)
    assert "step 3/3" in resumed and "ALARM" not in resumed and "changed: data.play: alone -> mixed" in resumed
    assert [step["step"] for step in steps(root)] == [1, 2, 3]
    with_rows = steps(root)[-1]
    assert with_rows["digits/solver/trajectories"] == 6
    assert all(with_rows[f"{kind}/proposer/funnel/proposed"] == SIZES["selfplay.proposer-prompts"] for kind in KINDS)

    succeed("azr", "export", root / "azr_coder14b_ppo", tmp_path / "out")
    form = json.loads((root / "azr_coder14b_ppo" / "prompts.json").read_text())
    assert AutoTokenizer.from_pretrained(tmp_path / "out").get_chat_template() == form["template"]
    assert "No difference is above its bound" in succeed("azr", "check-model", tmp_path / "out", "--only", "logprobs")


def test_self_play_learns_from_another_models_traces_beside_it(
    model: Path, root: Path, address: str, tmp_path: Path
) -> None:
    """The model knows the form of self-play's answers alone; a trace earns what its own answers to a row do not."""
    rows = [row | {"traces": [f"It is {n}.</think>\\boxed{{{n}}}"]} for n, row in enumerate(digits(8))]
    data = ["--data.path", write(tmp_path / "rows.jsonl", *rows), "--data.prompts", 4, "--data.samples", 3]
    shown = succeed("playground.azr_7b_traces", *options(model, root, address), *data, "--run.steps", 2)
    assert "step 2/2" in shown and "ALARM" not in shown
    lines = steps(root, "azr_7b_traces")
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["data/rows"] == 4 and line["data/traces"] == 4
        assert line["digits/solver/trajectories"] == 12
        assert line["digits/solver/trace/trajectories"] == 4 and line["digits/solver/trace/accuracy"] == 1
        assert line["policy/grad_norm"] > 0 and line["policy/trace_prob"] > 0
        assert all(line[f"{kind}/proposer/funnel/proposed"] == SIZES["selfplay.proposer-prompts"] for kind in KINDS)


ELSEWHERE = {"azr_coder14b_ppo", "azr_7b_traces", "luffy_7b", "sft"}
"""Recipes with tests of their own, beside those of the 14M model."""


@pytest.mark.parametrize("name", [name for name in recipes() if name not in ELSEWHERE and "_14m_" not in name])
def test_every_other_recipe_takes_a_step(name: str, model: Path, root: Path, address: str, tmp_path: Path) -> None:
    """With its own kinds of play, estimator, losses and adapters, and with as many ranks and parts, up to two."""
    config = recipes()[name]
    parts = ["--train.data-parallel", min(2, config.train.data_parallel)]
    parts += ["--rollout.tensor-parallel", min(2, config.rollout.tensor_parallel)]
    parts += ["--reward.overlong", 8] if config.reward.overlong != "keep" else []
    parts += ["--model.template", "conversation"] if config.model.template == "tokenizer" else []
    data = []
    if config.data.path is not None:
        data = ["--data.path", write(tmp_path / "rows.jsonl", *digits(8)), "--data.prompts", 8, "--data.samples", 4]
    shown = succeed(f"playground.{name}", *options(model, root, address), *parts, *data, "--run.steps", 1)
    assert "step 1/1" in shown
    (line,) = steps(root, name)
    assert line["policy/grad_norm"] > 0 and line["weights/version"] == 1
    assert ("critic/grad_norm" in line) == config.algorithm.needs_critic
    assert ("data/rows" in line) == bool(data) and ("proposer/malformed" in line) == config.data.uses_selfplay(1)


def test_a_wrong_template_is_an_alarm_that_cannot_be_missed(model: Path, root: Path, address: str) -> None:
    """Asked by its tokenizer's template, the model chats instead of answering in the form that is graded."""
    wrong = ["--model.template", "tokenizer", "--run.name", "wrong"]
    done = run("playground.azr_coder14b_ppo", *options(model, root, address), *wrong)
    assert done.returncode == 2 and "ALARM: " in done.stdout
    assert " proposer responses of seeding round 1 were malformed or cut off" in done.stdout
    assert "in 3 rounds in a row, so the run ends here: compare the printed responses" in done.stderr
