"""Mistakes are named before anything starts."""

import json
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from azr.cli.options import Parser
from azr.config import Config
from azr.config_tree import override
from azr.errors import UserError
from azr.prepare import _prompt_notes, check, load_codec, prepare
from azr.prompts.codec import PromptCodec
from azr.records import Stops
from azr.runs.checkpoint_store import INITIAL, ResumeState
from azr.runs.run_dir import PromptForm, RunDirectory
from azr.train import adapter_files
from tests.conftest import byte_tokenizer
from tests.e2e.three_kinds import config as mini

RESUMED = ResumeState(state=INITIAL, notes=())
COMPLETION, CHAT = "--model.prompt-format completion", "--model.prompt-format chat"
PARTIAL = "--rollout.staleness 1 --rollout.partial"
WARMUP = "--algorithm.estimator gae --algorithm.estimator.critic-warmup-steps 2"
SEVEN = "--selfplay.proposer-prompts 7 --selfplay.solver-prompts 0"


@pytest.fixture
def sound(tmp_path) -> Config:
    byte_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "max_position_embeddings": 4096}))
    return override(
        mini, {"model.path": str(tmp_path), "run.root": str(tmp_path / "runs"), "rollout.max_prompt_tokens": 3000}
    )


def test_a_sound_config_passes(sound):
    check(sound)
    assert prepare(sound).notes == []
    assert sound.algorithm.kl.coef
    check(override(sound, {"algorithm.drop_zero_advantage": True}))
    with pytest.raises(UserError, match="at least one kind"):
        check(override(sound, {"selfplay.kinds": ()}))


def changed(config: Config, words: str) -> Config:
    """The config with these options of a command line."""
    return override(config, Parser("test", "").parse_with_knobs(shlex.split(words))[1])


@pytest.mark.parametrize(
    "words, said",
    [
        ("--model.thinking open", "model.thinking is open, but only chat prompts can open the thinking"),
        (f"{COMPLETION} --data.path rows.jsonl", "the completion format continues examples: set"),
        (
            f"{COMPLETION} --selfplay.kinds induction --selfplay.induction-inputs 11",
            "worked examples of the completion format have 10 inputs: lower it",
        ),
        ("--model.template conversation", "the compact format has no chat template: leave it at auto"),
        (
            f"{CHAT} --model.template convesation",
            r"neither auto, conversation, tokenizer nor a file; did you mean conversation\?",
        ),
        (f"{CHAT} --model.template no.jinja", "is 'no.jinja', which is neither"),
        ("--selfplay.kinds deduction,magic", "There is no task kind 'magic'. selfplay.kinds may hold"),
        ("--selfplay.kinds deduction,deduction", "at least one kind, and none twice"),
        (f"{SEVEN} --algorithm.policy-mini-batches 5", "algorithm.policy_mini_batches=5 does not divide"),
        ("--algorithm.estimator.critic-mini-batches 5", "algorithm.estimator.critic_mini_batches=5 does not divide"),
        ("--train.data-parallel 5", "train.data_parallel=5 does not divide"),
        (
            "--selfplay.solver-prompts 0 --ablation.no-new-tasks --selfplay.no-train-on-estimates",
            "No step would train on anything",
        ),
        ("--selfplay.derived-tasks 1 --selfplay.no-train-on-estimates", "switch selfplay.train_on_estimates on"),
        ("--selfplay.repeated-tasks 1 --selfplay.no-train-on-estimates", "are played only to be trained on"),
        ("--algorithm.drop-zero-advantage --algorithm.entropy-coef 0.1", "drop_zero_advantage would take"),
        ("--data.path rows.jsonl --data.samples 0", "data.samples and data.traces are both 0"),
        ("--rollout.partial", "set rollout.staleness to 1 or more, or leave partial out"),
        ("--train.lora.rank 4 --train.lora.dropout 0.1", "differ from 1 at random: take 0, or learn from traces"),
        ("--train.lora.four-bit", "which cannot be trained themselves: set train.lora.rank"),
        ("--rollout.staleness 1", "give engines their own with --cluster.no-colocate, or set rollout.partial"),
        (f"{PARTIAL} --algorithm.importance none", "nothing corrects for it while algorithm.importance is none"),
        (f"{PARTIAL} --run.deterministic", "cannot be deterministic: leave one of them out"),
        ("--train.tokens-per-micro-batch 100", "cannot hold one trajectory"),
        ("--cluster.push ipc --cluster.no-colocate", "for engines on the trainers' GPUs: leave it"),
        ("--cluster.push ipc --train.device cpu", "cluster.push=ipc is for GPUs, and this run is on CPUs"),
        ("--cluster.push ipc --rollout.engines 2", "ipc needs the policy on 1 more of the engines' GPUs"),
        ("--cluster.push nccl --train.device cpu", "cluster.push=nccl is for GPUs, and this run is on CPUs"),
        ("--cluster.push nccl", "nccl takes no two processes on one GPU"),
        ("--reward.proposer learnibility", "There is no reward 'learnibility'; did you mean learnability?"),
        ("--reward.intrinsic.bonuses haltsead:1", "There is no bonus 'haltsead'; did you mean halstead?"),
        ("--reward.intrinsic.bonuses halstead", "'halstead'; it must be a name and a number above 0"),
        ("--reward.intrinsic.bonuses halstead:nan", "'halstead:nan'; it must be a name and a number above 0"),
        ("--reward.intrinsic.bonuses halstead:0.5,halstead:1", "names 'halstead' twice"),
        ("--reward.intrinsic.bonuses halstead:2e6", "a number above 0 and up to 1e6"),
        ("--reward.overlong 192", "reward.overlong=192 .* lower it"),
        ("--train.device cpu --train.kernels liger", "train.kernels is liger, but they need a GPU: take"),
        ("--train.device cpu --train.attention flash_attn", "train.attention is flash_attn, which needs a GPU"),
        ("--train.dtype float32 --train.attention flash_attn", "needs a GPU and train.dtype=bfloat16: take auto"),
        ("--selfplay.chained-tasks 4 --selfplay.kinds error", "chained_tasks needs deduction, abduction or induction"),
        ("--selfplay.chained-tasks 4 --selfplay.no-train-on-estimates", "switch selfplay.train_on_estimates on, or"),
        (
            "--executor.backend bubblewrap --executor.docker-runtime runsc",
            "executor.docker_runtime=runsc is for containers, and executor.backend=bubblewrap has none",
        ),
        ("--train.profile-step 25", "profile_step is 25, but the policy is updated in steps 1 to 24: take one"),
        (f"{WARMUP} --train.profile-step 2", "profile_step is 2, but the policy is updated in steps 3 to 24"),
    ],
)
def test_knobs_that_contradict_each_other_are_named(sound, words, said):
    with pytest.raises(UserError, match=said) as raised:
        check(changed(sound, words))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "words, said",
    [
        ("--model.path data/no_such_model", "holds no model"),
        ("--model.path /no/such/model", "holds no model"),
        ("--model.path ./nowhere", "model.path './nowhere' holds no model"),
        ("--model.path 'two words/and more'", "the hub has no such model"),
        ("--rollout.max-response-tokens 1097", "reads at most 4096 tokens"),
        ("--run.name a/b", "must be the name of one folder"),
        ("--eval.path playground", "There is no exam in playground"),
        ("--eval.path none", "give the folder of an exam"),
        ("--selfplay.seeds no_such.jsonl", "no_such.jsonl cannot be read"),
        ("--selfplay.seeds README.md", "README.md holds no task"),
        ("--rollout.max-prompt-tokens 100", "rollout.max_prompt_tokens is 100: raise it, omit the suite"),
        ("--eval.suites exam cruxeval-u", "did you mean cruxeval-"),
        ("--eval.data no_such", "There is no folder no_such"),
        ("--eval.data data --eval.suites mbpp+", "data has no MbppPlus.jsonl"),
        ("--eval.suites exam,exam", "named twice"),
    ],
)
@pytest.mark.parametrize("fetch", [True, False])
def test_what_is_not_there_is_named(sound, words, said, fetch):
    with pytest.raises(UserError, match=said) as raised:
        prepare(changed(sound, words), fetch=fetch)
    assert "\n" not in str(raised.value)


def test_a_tokenizer_without_an_end_is_refused(sound, tmp_path):
    # Of a known architecture, transformers would take that one's usual end token.
    (tmp_path / "config.json").write_text("{}")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="has no end token; set eos_token"):
        PromptCodec.load(replace(mini, model=replace(mini.model, path=str(tmp_path))))
    with pytest.raises(UserError, match="has no end token; set eos_token"):
        prepare(sound)


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("tokenizer_config.json", "[]", "tokenizer_config.json holds no JSON object: take a fresh copy"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is not JSON .*: take a fresh copy"),
        ("tokenizer_config.json", "\x00", "tokenizer_config.json is not JSON .*: take a fresh copy"),
        ("tokenizer.json", "{", "holds no tokenizer that can be loaded"),
        ("tokenizer.json", None, r"holds no tokenizer \(none of tokenizer\.json, "),
        ("config.json", "{", "is not JSON"),
        ("config.json", "[]", "holds no JSON object"),
    ],
)
def test_a_missing_or_broken_file_of_the_model_is_named(sound, tmp_path, name, text, said):
    (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said) as raised:
        prepare(sound)
    assert "\n" not in str(raised.value)


def test_seeds_of_other_kinds_than_are_played_are_named_and_a_run_after_its_first_step_needs_no_file(sound, tmp_path):
    file = tmp_path / "seeds.jsonl"
    file.write_text(json.dumps({"kind": "error", "program": "def f(a):\n    return a", "inputs": ["1"]}))
    config = override(sound, {"selfplay.seeds": str(file)})
    with pytest.raises(UserError, match=r"of the kinds error, and selfplay\.kinds plays none"):
        prepare(config)
    played = override(config, {"selfplay.kinds": ("error",)})
    assert prepare(played).notes == []
    file.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        prepare(played, RESUMED)  # nothing was done yet
    later = replace(RESUMED, state=replace(INITIAL, step=1))
    assert prepare(played, later).notes == []


def test_the_completion_format_needs_enough_seeds_and_room(sound, tmp_path):
    file = tmp_path / "seeds.jsonl"
    seeds = [{"kind": "error", "program": f"def f(a):\n    return a * {n}", "inputs": ["1"]} for n in range(3)]
    file.write_text("".join(json.dumps(seed) + "\n" for seed in seeds))
    values = {"model.prompt_format": "completion", "selfplay.kinds": ("error",), "selfplay.seeds": str(file)}
    config = override(sound, {**values, "selfplay.references": 3})
    assert prepare(config).notes == []
    with pytest.raises(UserError, match=r"has 3 tasks of the kind error, .* shows 4: add seeds, or lower"):
        prepare(override(config, {"selfplay.references": 4}))
    with pytest.raises(UserError, match=r"error proposal prompt with 0 references has \d+ tokens, but rollout.max_pr"):
        prepare(override(config, {"rollout.max_prompt_tokens": 60}))


@pytest.mark.parametrize("thinking, count", [("open", 1), ("auto", 0), ("none", 0)])
def test_the_choice_of_auto_is_explained_and_thinking_opened_by_an_unknown_tag_is_warned_of(sound, thinking, count):
    config = override(sound, {"model.prompt_format": "chat", "model.thinking": thinking})
    chosen, *warned = _prompt_notes(config, load_codec(config, Path(config.model.path)))
    assert "auto takes conversation, because the tokenizer has no chat template;" in chosen
    assert len(warned) == count and all("take model.thinking none" in note for note in warned)


def test_an_architecture_that_was_never_checked_is_refused_unless_told_otherwise(sound, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    with pytest.raises(UserError, match=r"is a 'nonesuch' model, .*run azr check-model .* set --model\.unchecked"):
        prepare(sound)
    prepare(override(sound, {"model.unchecked": True}))


@pytest.mark.parametrize(
    "targets, said",
    [
        (("q_proj", "k_porj"), r"has 'k_porj', but the model has no such linear layer; did you mean k_proj\? It has"),
        (("lm_head",), "has 'lm_head', but the model has no such linear layer; it has q_proj, k_proj"),
        ((), "has ''"),
        (("all-linear", "q_proj"), "all-linear stands for all"),
    ],
)
def test_targets_of_adapters_that_the_model_lacks_are_named(sound, targets, said):
    config = override(sound, {"train.lora.rank": 8, "train.lora.targets": targets})
    with pytest.raises(UserError, match=said):
        prepare(config)


@pytest.mark.parametrize("package, knobs", [("peft", {}), ("bitsandbytes", {"train.lora.four_bit": True})])
def test_packages_that_adapters_need_are_named(sound, package, knobs, monkeypatch):
    def missing(name: str) -> object:
        return None if name == package else find_spec(name)

    monkeypatch.setattr(adapter_files, "find_spec", missing)
    with pytest.raises(UserError, match=rf"package {package}.* is not installed: run pip install -e '\.\[lora\]'"):
        prepare(override(sound, {"train.lora.rank": 8} | knobs))


@pytest.mark.parametrize("resume", [None, RESUMED])
@pytest.mark.parametrize("root", ["config.json/runs", "/proc/azr/runs"], ids=["below a file", "where nobody writes"])
def test_a_root_that_cannot_be_written_is_named(sound, tmp_path, root, resume):
    with pytest.raises(UserError, match=r"Nothing can be written into .*/runs.* choose another --run\.root") as raised:
        prepare(override(sound, {"run.root": str(tmp_path / root)}), resume)
    assert "\n" not in str(raised.value)


def test_looking_for_a_place_leaves_nothing_behind(sound, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    prepare(sound)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("nested", [False, True])
def test_heads_that_engines_cannot_share_out_are_named(sound, tmp_path, nested):
    shape = {"num_attention_heads": 14}
    tree = {"model_type": "qwen2", **({"text_config": shape} if nested else shape)}
    (tmp_path / "config.json").write_text(json.dumps(tree))
    prepare(override(sound, {"rollout.tensor_parallel": 7}))
    with pytest.raises(UserError, match=r"tensor_parallel is 4, which does not divide the 14 attention heads"):
        prepare(override(sound, {"rollout.tensor_parallel": 4}))


def test_a_run_goes_on_with_the_ends_of_responses_that_it_began_with(sound):
    codec, run = prepare(sound).codec, RunDirectory.create(sound)
    now = PromptForm(codec.template, codec.stops)
    now.write(run.prompt_form)
    prepare(sound, RESUMED)
    before = replace(now, stops=Stops((), (1, 2)))
    before.write(run.prompt_form)
    with pytest.raises(UserError, match="The list of end tokens of this run has changed"):
        prepare(sound, RESUMED)
    assert PromptForm.read(run.prompt_form) == before, "preparing writes nothing"
