"""``azr plan`` as a user meets it."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from azr import preflight
from azr.cli import run
from azr.cli.main import dispatch
from azr.config import Config
from playground import base
from playground.azr_14m_mini import config as mini
from tests.recipes import recipes

FLAGSHIP = ["plan", "azr_coder7b_ppo", "--gpus", "8", "--gpu-memory", "80"]
SHIPPED = {
    "azr_coder3b_ppo": 2, "azr_qwen3_4b_ppo": 2, "azr_7b_ppo": 8, "azr_coder7b_ppo": 8, "azr_llama8b_ppo": 8,
    "azr_14b_ppo": 8, "azr_coder14b_ppo": 8, "azr_coder7b_rloo": 8,
}  # fmt: skip


def test_the_table_of_the_flagship(capsys):
    assert dispatch(FLAGSHIP) == 0
    text = capsys.readouterr().out
    header = next(line for line in text.splitlines() if line.startswith("GiB"))
    assert header.split("GPU(s)")[1].split() == ["rollout", "score", "train", "policy", "train", "critic", "push"]
    rows = ("policy parameters", "critic parameters", "engine weights", "KV cache", "logits", "weight bucket", "total")
    assert all(f"\n{row} " in text for row in rows)
    assert "384 trajectories of up to 14,240 tokens trained on" in text
    assert "fits on 1 node(s) of 8 GPU(s) with 80 GiB" in text


def test_the_readmes_plans_fit(capsys):
    lines = [line.partition("#")[0] for line in Path("README.md").read_text().splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith(".venv/bin/azr plan ")]
    assert commands and all(dispatch(command) == 0 for command in commands)


def test_overrides_of_the_config_and_of_the_assumptions(capsys):
    assert dispatch([*FLAGSHIP, "--algorithm.estimator", "trrpp", "--algorithm.kl-coef", "0", "--nodes", "1"]) == 0
    assert "critic" not in capsys.readouterr().out
    assert dispatch([*FLAGSHIP, "--reserved-gib", "40"]) == 1
    assert "does not fit" in capsys.readouterr().out


def test_small_gpus_do_not_fit_and_a_knob_is_named(capsys):
    assert dispatch([*FLAGSHIP, "--train.no-offload-optimizer", "--train.no-gradient-checkpointing"]) == 1
    text = capsys.readouterr().out
    assert "what to change, in this order:\n  --train.offload-optimizer" in text


def test_a_saved_config_and_a_model_of_unknown_shape(tmp_path, capsys):
    config = run.parse(mini, ["--model.path", "someone/new-model"]).config
    (tmp_path / "config.yaml").write_text(run.describe(config))
    assert "# no tables of bytes and seconds: The shape of 'someone/new-model'" in run.describe(config)
    argv = ["plan", str(tmp_path / "config.yaml"), "--gpus", "1"]
    assert dispatch(argv) == 2
    assert "give its config.json with --model-config" in capsys.readouterr().err
    assert dispatch([*argv, "--model-config", "data/azr_14m_base/config.json"]) == 0


@pytest.mark.parametrize(
    "argv, said",
    [
        ([], "azr plan needs a recipe first"),
        (["--gpus", "8"], "azr plan needs a recipe first"),
        (["azr_coder7b"], "There is no recipe 'azr_coder7b'; did you mean azr_coder7b_ppo?"),
        (["base"], "playground/base.py holds no config of a run"),
        (["nowhere.yaml"], "nowhere.yaml is no config of a run"),
        (["azr_7b_ppo", "--gpu", "8"], "There is no option --gpu; did you mean --gpus?"),
        (["azr_7b_ppo", "--gpus", "none"], "argument --gpus: must be a whole number"),
        (["azr_7b_ppo", "--gpu-memory", "-1"], "argument --gpu-memory: must be a number above 1"),
        (["azr_7b_ppo", "--train.rank", "8"], "There is no option --train.rank"),
        (["azr_7b_ppo", "--train.data-parallel", "5"], "A step has 384 trajectories, which train.data_parallel=5"),
        (["azr_7b_ppo", "--model-config", "README.md"], "README.md is no model's config.json"),
        (["azr_7b_ppo", "--model.path", "Qwen/Qwen2.5-7"], "The shape of 'Qwen/Qwen2.5-7' is not known here"),
    ],
)
def test_a_mistake_is_one_sentence(argv, said, capsys):
    assert dispatch(["plan", *argv]) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1


def test_other_architectures_are_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mixtral"}))
    assert dispatch(["plan", "azr_7b_ppo", "--model.path", str(tmp_path)]) == 2
    assert "describes a 'mixtral' model" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    assert dispatch(["plan", "azr_7b_ppo", "--model.path", str(tmp_path)]) == 2
    assert "lacks 'num_attention_heads'" in capsys.readouterr().err


def test_the_gpu_recipes_share_one_algorithm(capsys):
    found = recipes()
    assert SHIPPED.keys() <= found.keys()
    for name, gpus in SHIPPED.items():
        config = found[name]
        assert config.train.data_parallel == gpus and config.run.name == name
        assert config.rollout.engines * config.rollout.tensor_parallel == gpus
        assert config.train.policy_lr == 1e-6
        assert config.algorithm == base.full.algorithm or not name.endswith("_ppo")


def test_the_recipe_on_the_estimates_samples_and_keeps_nothing_that_it_does_not_train_on():
    config = recipes()["azr_coder7b_rloo"]
    assert config.selfplay.train_on_estimates and not config.selfplay.solver_prompts
    assert not config.algorithm.needs_critic and not config.algorithm.needs_reference


CRITIC_FREE = ["--algorithm.estimator", "trrpp", "--algorithm.kl-coef", "0"]


@pytest.mark.parametrize("flags", [[], CRITIC_FREE], ids=["as it is", "critic-free"])
@pytest.mark.parametrize("name", recipes())
def test_every_recipe_fits_on_the_gpus_it_is_for(name, flags, capsys):
    gpus = str(SHIPPED.get(name, 1))
    assert dispatch(["plan", name, "--gpus", gpus, "--gpu-memory", "80", *flags]) == 0
    text = capsys.readouterr().out
    assert f"fits on 1 node(s) of {gpus} GPU(s)" in text
    assert ("critic" in text) == (recipes()[name].algorithm.needs_critic and not flags)
    if name in SHIPPED:  # of a tiny model the line says nothing and is left out
        assert ("reference parameters" in text) == (recipes()[name].algorithm.needs_reference and not flags)


@pytest.mark.parametrize("name", SHIPPED)
def test_debug_leaves_a_recipe_that_can_run_critic_free_too(name):
    for flags in ([], CRITIC_FREE):
        preflight.check(run.parse(base.tiny(recipes()[name]), flags).config)


def test_debug_shrinks_the_batch_and_keeps_the_rest():
    config = base.tiny(recipes()["azr_coder14b_ppo"])
    preflight.check(config)
    assert config.min_trajectories == 48
    assert config.train == recipes()["azr_coder14b_ppo"].train


def test_a_dry_run_ends_with_the_plan(capsys):
    config: Config = replace(mini, run=replace(mini.run, steps=7))
    text = run.describe(config)
    assert yaml.safe_load(text)["run"]["steps"] == 7
    assert "# GiB, fullest of 1 GPU(s)" in text and "\n# fits on 1 node(s)" in text
