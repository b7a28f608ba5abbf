"""``azr plan`` as a user meets it."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from azr.cli import run
from azr.cli.main import dispatch
from azr.config_rules import check
from playground import base, data_base
from tests.e2e.three_kinds import config as mini
from tests.recipes import recipes

FLAGSHIP = ["plan", "azr_coder7b_ppo", "--gpus", "8", "--gpu-memory", "80"]
SHIPPED = {
    "azr_coder3b_ppo": 2, "azr_qwen3_4b_ppo": 2, "azr_7b_ppo": 8, "azr_coder7b_ppo": 8, "azr_llama8b_ppo": 8,
    "azr_olmo3_7b_ppo": 8,
    "azr_14b_ppo": 8, "azr_coder14b_ppo": 8, "azr_coder7b_rloo": 8, "azr_7b_traces": 8, "luffy_7b": 8, "sft": 8,
    "orz_0b5_ppo": 1, "orz_1b5_ppo": 8, "orz_7b_ppo": 8, "orz_32b_ppo": 32,
}  # fmt: skip
CRITIC_FREE = ["--algorithm.estimator", "trrpp", "--algorithm.kl.coef", "0"]


def test_the_table_of_the_flagship(capsys):
    assert dispatch(FLAGSHIP) == 0
    text = capsys.readouterr().out
    header = next(line for line in text.splitlines() if line.startswith("GiB"))
    assert header.split("GPU(s)")[1].split() == [
        *("play", "score", "critic", "score", "reference", "train", "policy", "train", "critic", "push", "resume")
    ]
    rows = ("policy parameters", "critic parameters", "engine weights", "KV cache", "logits", "weight buckets", "total")
    assert all(f"\n{row} " in text for row in rows)
    assert "384 trajectories of up to 14,240 tokens trained on" in text
    totals = next(line for line in text.splitlines() if line.startswith("total")).split()
    assert (totals[1], totals[4]) == ("71.6", "38.3"), "while engines play, and while the policy learns"
    assert "host memory: 320 GiB per node (trainers while engines play 212, processes 108)" in text
    assert "\nat measured rates " in text
    assert "fits on 1 node(s) of 8 GPU(s) with 80 GiB" in text


def test_the_readmes_plans_fit_and_overrides_of_config_and_assumptions_count(capsys):
    lines = [line.partition("#")[0] for line in Path("README.md").read_text().splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith(".venv/bin/azr plan ")]
    assert commands and all(dispatch(command) == 0 for command in commands)
    capsys.readouterr()
    assert dispatch([*FLAGSHIP, "--algorithm.estimator", "trrpp", "--algorithm.kl.coef", "0", "--nodes", "1"]) == 0
    assert "critic" not in capsys.readouterr().out
    assert dispatch([*FLAGSHIP, "--reserved-gib", "40"]) == 1
    assert "does not fit" in capsys.readouterr().out


def test_a_saved_config_and_a_model_of_unknown_shape(tmp_path, capsys):
    config = run.parse(mini, ["--model.path", "someone/new-model"]).config
    (tmp_path / "config.yaml").write_text(run.describe(config))
    text = run.describe(mini)
    assert "# GiB, fullest of 1 GPU(s)" in text and "\n# fits on 1 node(s)" in text
    assert "# no tables of bytes and seconds: The shape of 'someone/new-model'" in run.describe(config)
    argv = ["plan", str(tmp_path / "config.yaml"), "--gpus", "1"]
    assert dispatch(argv) == 2
    assert "give its config.json with --model-config" in capsys.readouterr().err
    assert dispatch([*argv, "--model-config", "data/azr_14m_base/config.json"]) == 0


def test_the_gpu_recipes_share_one_algorithm(capsys):
    found = recipes()
    assert SHIPPED.keys() <= found.keys()
    for name, gpus in SHIPPED.items():
        config = found[name]
        assert config.train.data_parallel == gpus and config.run.name == name
        assert config.rollout.engines * config.rollout.tensor_parallel == gpus
        assert config.train.policy_lr == (5e-5 if name == "sft" else 1e-6)
        shared = data_base if name.startswith("orz") else base
        assert config.algorithm == shared.full.algorithm or not name.endswith("_ppo")


@pytest.mark.parametrize("flags", [[], CRITIC_FREE], ids=["as it is", "critic-free"])
def test_every_recipe_fits_on_the_gpus_it_is_for_and_debug_leaves_one_that_can_run(flags, capsys):
    for name, config in recipes().items():
        nodes, gpus = SHIPPED.get(name, 1) // 8 or 1, str(min(8, SHIPPED.get(name, 1)))
        where = ["--nodes", str(nodes)] if nodes > 1 else []
        assert dispatch(["plan", name, "--gpus", gpus, "--gpu-memory", "80", *where, *flags]) == 0, name
        text = capsys.readouterr().out
        assert f"fits on {nodes} node(s) of {gpus} GPU(s)" in text, name
        assert ("critic" in text) == (config.algorithm.needs_critic and not flags), name
        if name in SHIPPED:  # of a tiny model the line says nothing and is left out
            assert ("reference parameters" in text) == (config.algorithm.needs_reference and not flags), name
            check(run.parse(base.tiny(config), flags).config)


@pytest.mark.parametrize("name", [name for name, gpus in SHIPPED.items() if gpus == 8])
def test_the_docstrings_four_gpus_are_enough(name, capsys):
    module = importlib.import_module(f"playground.{name}")
    for options in re.findall(r"On four: ``(.*)``", module.__doc__):
        assert dispatch(["plan", name, "--gpus", "4", *options.split()]) == 0
    capsys.readouterr()
    assert module.config.rollout.gpu_memory_utilization == 0.85
