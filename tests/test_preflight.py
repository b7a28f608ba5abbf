"""Mistakes are named before anything starts."""

import json
from dataclasses import replace

import pytest

from azr import preflight
from azr.config import Config
from azr.selfplay.prompt_codec import PromptCodec
from playground.azr_14m_mini import config as mini
from tests.conftest import byte_tokenizer


def changed(config: Config, section: str, **values) -> Config:
    return replace(config, **{section: replace(getattr(config, section), **values)})


@pytest.fixture
def sound(tmp_path) -> Config:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 1024}))
    return changed(changed(mini, "model", path=str(tmp_path)), "run", root=str(tmp_path / "runs"))


def test_a_sound_config_passes(sound):
    preflight.check(sound)
    preflight.check_surroundings(sound)


@pytest.mark.parametrize(
    "section, values, said",
    [
        ("model", {"path": "data/no_such_model"}, "holds no model"),
        ("model", {"path": "/no/such/model"}, "holds no model"),
        ("model", {"critic_path": "./nowhere"}, "model.critic_path './nowhere' holds no model"),
        ("selfplay", {"kinds": ()}, "at least one kind"),
        ("selfplay", {"kinds": ("deduction", "deduction")}, "none twice"),
        ("selfplay", {"proposer_prompts": 7, "solver_prompts": 0}, "algorithm.policy_mini_batches=5 does not divide"),
        ("train", {"data_parallel": 5}, "train.data_parallel=5 does not divide"),
        ("rollout", {"max_response_tokens": 900}, "reads at most 1024 tokens"),
        ("selfplay", {"solver_prompts": 0, "new_tasks": False, "train_on_estimates": False}, "train on anything"),
        ("selfplay", {"derived_tasks": 1, "train_on_estimates": False}, "switch selfplay.train_on_estimates on"),
        ("algorithm", {"drop_zero_advantage": True, "entropy_coef": 0.1}, "drop_zero_advantage would take"),
        ("run", {"steps": 0}, "run.steps is 0; it must be at least 1"),
        ("run", {"max_minutes": 0}, r"run.max_minutes is 0; it must be at least 0\.01"),
        ("rollout", {"temperature": 0.0}, "rollout.temperature is 0.0; it must be at least 0.01"),
        ("executor", {"output_bytes": 10**6}, "executor.output_bytes is 1000000; it must be at most 262144"),
        ("algorithm", {"dual_clip": 0.5}, "algorithm.dual_clip is 0.5; it must be at least 1"),
        ("run", {"name": "a/b"}, "must be the name of one folder"),
        ("train", {"tokens_per_micro_batch": 100}, "cannot hold one trajectory"),
    ],
)
def test_mistakes_are_named_with_their_knob(sound, section, values, said):
    config = changed(sound, section, **values)
    if "policy_mini_batches=5" in said:
        config = changed(config, "algorithm", policy_mini_batches=5)
    with pytest.raises(ValueError, match=said) as raised:
        preflight.check(config)
        preflight.check_surroundings(config)
    assert "\n" not in str(raised.value)


def test_a_taken_run_directory_is_named_with_what_to_do(sound, tmp_path):
    (tmp_path / "runs" / sound.run.name).mkdir(parents=True)
    (tmp_path / "runs" / sound.run.name / "metrics.jsonl").touch()
    with pytest.raises(
        ValueError, match=r"already holds a run: go on with it by --resume, or choose another --run\.name"
    ):
        preflight.check_surroundings(sound)


def test_a_tokenizer_without_an_end_is_refused(tmp_path):
    byte_tokenizer().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="has no end token; set eos_token"):
        PromptCodec.load(replace(mini.model, path=str(tmp_path)))
