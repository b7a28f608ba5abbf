"""Mistakes are named before anything starts."""

import json
import shlex
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from huggingface_hub.errors import HTTPError
from transformers import AutoConfig

from azr.cli.options import Parser
from azr.config import Config
from azr.config_rules import check
from azr.config_tree import override
from azr.errors import UserError
from azr.launch import resolve
from azr.prepare import Prepared, _prompt_notes, load_codec
from azr.prepare import prepare as prepare_run
from azr.records import Stops
from azr.runs.checkpoint_store import INITIAL, ResumeState
from azr.runs.run_dir import PromptForm, RunDirectory
from azr.train import adapter_files
from tests.conftest import byte_tokenizer
from tests.e2e.three_kinds import config as mini
from tests.mistakes import mistake, sentences
from tests.tables import table
from tests.tiny_models import FAMILIES, save_weights, tiny_config

RESUMED = ResumeState(state=INITIAL, notes=())
RULES = sentences("Options of azr_14m_three_kinds that break a rule between options.")


def prepare(config: Config, resume: ResumeState | None = None, *, fetch: bool = True) -> Prepared:
    return prepare_run(replace(resolve(config), resume=resume), fetch=fetch)


@pytest.fixture
def sound(tmp_path) -> Config:
    byte_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "max_position_embeddings": 4096}))
    save_weights(tmp_path)
    return override(
        mini, {"model.path": str(tmp_path), "run.root": str(tmp_path / "runs"), "rollout.max_prompt_tokens": 3000}
    )


def test_a_sound_config_passes(sound, tmp_path):
    check(sound)
    before = sorted(tmp_path.rglob("*"))
    assert prepare(sound).notes == [] and sorted(tmp_path.rglob("*")) == before, "it leaves nothing behind"
    assert sound.algorithm.kl.coef
    check(override(sound, {"algorithm.drop_zero_advantage": True}))
    with mistake("selfplay.kinds"):
        check(override(sound, {"selfplay.kinds": ()}))


def changed(config: Config, words: str) -> Config:
    """The config with these options of a command line."""
    return override(config, Parser("test", "").parse_with_overrides(shlex.split(words))[1])


@pytest.mark.parametrize("words", RULES)
def test_options_that_contradict_each_other_are_named(sound, words):
    with pytest.raises(UserError) as raised:
        check(changed(sound, words))
    assert str(raised.value) == RULES[words]


@pytest.mark.parametrize("words, options, says", table(__file__, "refused configs"))
@pytest.mark.parametrize("fetch", [True, False])
def test_what_is_not_there_is_named(sound, words, options, says, fetch):
    with mistake(*options.split(), says=says):
        prepare(changed(sound, words), fetch=fetch)


@pytest.mark.parametrize("error", [
    ImportError("Using SOCKS proxy, but"), ValueError("Invalid IPv6 URL"),
    import_module(HTTPError.__module__).InvalidURL("port"),
])  # fmt: skip
@pytest.mark.parametrize("fetch", [True, False])
def test_a_proxy_or_an_address_of_the_hub_that_cannot_be_used_is_named(sound, error, fetch, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with mistake("model.path", says=f"or mend this: {error}"):
        prepare(override(sound, {"model.path": "someone/some-model"}), fetch=fetch)


def test_a_tokenizer_without_an_end_is_refused(sound, tmp_path):
    # Of a known architecture, transformers would take that one's usual end token.
    (tmp_path / "config.json").write_text("{}")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with mistake(says="has no end token; set eos_token"):
        prepare(sound)


@pytest.mark.parametrize("name, text, says", table(__file__, "broken files of a model"))
def test_a_missing_or_broken_file_of_the_model_is_named(sound, tmp_path, name, text, says):
    (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as raised:
        prepare(sound)
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_seeds_must_be_of_kinds_that_are_played_and_enough_for_the_completion_format(sound, tmp_path):
    file = tmp_path / "seeds.jsonl"
    file.write_text(json.dumps({"kind": "error", "program": "def f(a):\n    return a", "inputs": ["1"]}))
    config = override(sound, {"selfplay.seeds": str(file)})
    with mistake("selfplay.seeds", "selfplay.kinds", says="of the kinds error"):
        prepare(config)
    played = override(config, {"selfplay.kinds": ("error",)})
    assert prepare(played).notes == []
    file.unlink()
    with mistake(says="cannot be read"):
        prepare(played, RESUMED)  # nothing was done yet
    later = replace(RESUMED, state=replace(INITIAL, step=1))
    assert prepare(played, later).notes == []
    seeds = [{"kind": "error", "program": f"def f(a):\n    return a * {n}", "inputs": ["1"]} for n in range(3)]
    file.write_text("".join(json.dumps(seed) + "\n" for seed in seeds))
    values = {"model.prompt_format": "completion", "selfplay.kinds": ("error",), "selfplay.seeds": str(file)}
    config = override(sound, {**values, "selfplay.references": 3})
    assert prepare(config).notes == []
    with mistake("selfplay.seeds", "selfplay.references", says="has 3 tasks of the kind error, but a prompt shows 4"):
        prepare(override(config, {"selfplay.references": 4}))
    with mistake("rollout.max_prompt_tokens", says="error proposal prompt with 0 references has"):
        prepare(override(config, {"rollout.max_prompt_tokens": 60}))


@pytest.mark.parametrize("thinking, count", [("open", 1), ("auto", 0), ("none", 0)])
def test_the_choice_of_auto_is_explained_and_thinking_opened_by_an_unknown_tag_is_warned_of(sound, thinking, count):
    config = override(sound, {"model.prompt_format": "chat", "model.thinking": thinking})
    chosen, *warned = _prompt_notes(config, load_codec(config, Path(config.model.path)), "chat")
    assert "auto takes conversation, because the tokenizer has no chat template;" in chosen
    assert len(warned) == count and all("take model.thinking none" in note for note in warned)


def test_a_model_without_a_template_is_asked_by_examples_and_the_run_says_so(sound):
    inputs = {"selfplay.induction_inputs": 4}
    ready = prepare(override(sound, {"model.prompt_format": "auto", **inputs}))
    assert ready.run.config == override(sound, {"model.prompt_format": "completion", **inputs})
    assert "auto takes completion, because the tokenizer has no chat template" in ready.notes[-1]


def test_an_architecture_that_was_never_checked_is_refused_unless_told_otherwise(sound, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "starcoder2"}))
    with mistake("model.path", "--model.unchecked", says="is a 'starcoder2' model"):
        prepare(sound)
    prepare(override(sound, {"model.unchecked": True}))


@pytest.mark.parametrize("family, part", [
    ("lfm2", "Lfm2ShortConv"), ("falcon", "FalconAttention"),
    ("minimax", "MiniMaxLightningAttention"),
])  # fmt: skip
def test_layers_in_which_packed_samples_would_meet_are_refused_in_any_case(sound, tmp_path, family, part):
    config = tiny_config(family) if family in FAMILIES else AutoConfig.for_model(family)
    config.max_position_embeddings = 4096
    config.save_pretrained(tmp_path)
    for unchecked in (False, True):
        with mistake(
            "model.path", says=f"its layers have a {part}, which is neither attention, MLP, norm nor embedding,"
        ):
            prepare(override(sound, {"model.unchecked": unchecked}))


def test_targets_of_adapters_that_the_model_lacks_are_named(sound):
    for targets, says in (
        ("q_proj,k_porj", "has 'k_porj', but the model has no such linear layer; did you mean k_proj? It has"),
        ("lm_head", "has 'lm_head', but the model has no such linear layer; it has q_proj, k_proj"),
        ("", "has ''"), ("all-linear,q_proj", "all-linear stands for all"),
    ):  # fmt: skip
        with mistake("train.lora.targets", says=says):
            prepare(override(sound, {"train.lora.rank": 8, "train.lora.targets": targets.split(",")}))


@pytest.mark.parametrize("package, options", [("peft", {}), ("bitsandbytes", {"train.lora.four_bit": True})])
def test_packages_that_adapters_need_are_named(sound, package, options, monkeypatch):
    def missing(name: str) -> object:
        return None if name == package else find_spec(name)

    monkeypatch.setattr(adapter_files, "find_spec", missing)
    with pytest.raises(UserError, match=rf"package {package}.* is not installed: run pip install -e '\.\[lora\]'"):
        prepare(override(sound, {"train.lora.rank": 8} | options))


@pytest.mark.parametrize("resume", [None, RESUMED])
@pytest.mark.parametrize("root", ["config.json/runs", "/proc/azr/runs"], ids=["below a file", "where nobody writes"])
def test_a_root_that_cannot_be_written_is_named(sound, tmp_path, root, resume):
    with mistake("--run.root", says="Nothing can be written into"):
        prepare(override(sound, {"run.root": str(tmp_path / root)}), resume)


@pytest.mark.parametrize("nested", [False, True])
def test_heads_that_engines_cannot_share_out_are_named(sound, tmp_path, nested):
    shape = {"num_attention_heads": 14}
    tree = {"model_type": "qwen2", **({"text_config": shape} if nested else shape)}
    (tmp_path / "config.json").write_text(json.dumps(tree))
    prepare(override(sound, {"rollout.tensor_parallel": 7}))
    with mistake("rollout.tensor_parallel", says="14 attention heads"):
        prepare(override(sound, {"rollout.tensor_parallel": 4}))


def test_a_run_goes_on_with_the_ends_of_responses_that_it_began_with(sound):
    codec, run = prepare(sound).codec, RunDirectory.of(sound.run).create(sound)
    now = PromptForm(codec.template, codec.stops)
    now.keep(run.prompt_form)
    prepare(sound, RESUMED)
    before = replace(now, stops=Stops((), (1, 2)))
    run.prompt_form.unlink()
    before.keep(run.prompt_form)
    with mistake(says="The list of end tokens of this run has changed"):
        prepare(sound, RESUMED)
    assert PromptForm.read(run.prompt_form) == before, "preparing writes nothing"
