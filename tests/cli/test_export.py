"""``azr export``: what comes out of a run loads in transformers and in vLLM, and computes what the trainer computed."""

import json
import random
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import ray
import torch
from huggingface_hub import ModelCard, save_torch_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from azr.cli.main import dispatch
from azr.cluster.weight_sync import WeightSync
from azr.config import Config, LoraConfig, ModelConfig, RolloutConfig
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Stops
from azr.rollout.engine import RolloutEngine
from azr.runs.model_export import last_evaluation
from azr.runs.run_dir import PromptForm, RunDirectory
from azr.tasks.registry import KINDS
from azr.train.learner import score
from azr.train.policy import PolicyWorker
from azr.train.worker_group import WorkerGroup
from tests import chat_tokenizers
from tests.cli.test_main import assert_light
from tests.cluster.receiving_engine import start_receiver
from tests.hub_server import azr, open_hub
from tests.recipes import engine_config
from tests.runs.factory import completion, largest_file
from tests.tiny_models import save_run
from tests.train.conftest import STEP_S, make_config, one_step, rollout_logprobs, update_policy

ROOT = Path(__file__).parents[2]
BASE = ROOT / "data" / "azr_14m_worked"
IDS = torch.arange(200).reshape(2, 100)


def export(*argv: object) -> int:
    return dispatch(["export", *map(str, argv)])


def save(base: Path, folder: Path, shift: float, shard_size: str = "5GB") -> None:
    """What a trainer whose weights have moved by ``shift`` leaves behind."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    weights = {name: (weight + shift).detach() for name, weight in model.named_parameters()}
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    save_torch_state_dict(weights, folder, max_shard_size=shard_size)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, tiny_model_path: Path) -> Path:
    """A run directory with the policies of steps 3 and 10; that of step 10 is in three files."""
    run = save_run(tmp_path_factory.mktemp("saved"), path=str(tiny_model_path))
    save(tiny_model_path, policy(run.path, 3), 0.01)
    save(tiny_model_path, policy(run.path, 10), 0.02, "400KB")
    (run.checkpoints / ".step_000012.draft").mkdir()
    return run.path


@pytest.fixture
def run(tmp_path: Path, saved: Path) -> Path:
    """A copy to do things to."""
    return shutil.copytree(saved, tmp_path / "run")


def policy(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step_{step:06d}" / "policy"


@torch.no_grad()
def logits(folder: Path) -> torch.Tensor:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(IDS).logits


@pytest.mark.parametrize("options, step", [([], 10), (["--step", "3"], 3)])
def test_an_exported_policy_computes_the_same(run: Path, options: list[str], step: int, capsys):
    out = run / "exported" / "here"
    out.parent.mkdir()
    assert export(run, *options, out) == 0
    assert capsys.readouterr().out.startswith(f"step {step} of {run} is now in {out}, ")
    assert torch.equal(logits(out), logits(policy(run, step)))
    assert not torch.equal(logits(policy(run, 3)), logits(policy(run, 10)))
    assert {path.name for path in out.iterdir()} == {path.name for path in policy(run, step).iterdir()} | {"README.md"}
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (out, policy(run, step))]
    assert tokenizers[0]("x = 1").input_ids == tokenizers[1]("x = 1").input_ids
    assert [path.name for path in out.parent.iterdir()] == ["here"]


def test_a_chat_template_and_its_kin_come_along_and_other_weights_do_not(run: Path, tmp_path: Path):
    source = policy(run, 3)
    for name in ("chat_template.jinja", "additional_chat_templates/tools.jinja"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("{{ messages }}")
    for name in ("pytorch_model.bin", "optimizer.pt", ".cache/x.json", "__pycache__/x.pyc"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("not wanted")
    (source / "generation_config.json").unlink()
    (tmp_path / "out").mkdir()
    assert export(run, "--step", 3, tmp_path / "out") == 0
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    wanted = "README.md additional_chat_templates/tools.jinja chat_template.jinja config.json generation_config.json"
    assert found == {*wanted.split(), "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template["default"] == "{{ messages }}"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.generation_config.eos_token_id == model.config.eos_token_id is not None


def run_transformers_code(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> tuple[list[int], str]:
    """Run a card's code for transformers, and compile that for vLLM. Return its prompt's ids and what it prints."""
    first, second = re.findall(r"^```python\n(.*?)^```", (folder / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    compile(second, "vllm", "exec")
    monkeypatch.chdir(folder)
    capsys.readouterr()
    exec(first, names := {})
    return names["inputs"].input_ids[0].tolist(), capsys.readouterr().out


def test_the_prompts_of_the_run_their_ends_and_a_card_come_along(run: Path, tmp_path: Path, monkeypatch, capsys):
    config = Config(model=ModelConfig(path=str(chat_tokenizers.save(chat_tokenizers.chatml(), tmp_path / "tokenizer"))))
    codec = PromptCodec.load(config)
    chat_tokenizers.chatml().save_pretrained(policy(run, 3))
    PromptForm(codec.template, codec.stops).keep(RunDirectory(run).prompt_form)
    lines = [
        {"step": 0, "eval/exam/mean@2": 0.25},
        {"step": 3, "policy/loss": 1.0},
        {"step": 4, "eval/exam/mean@2": 0.5},
    ]
    RunDirectory(run).metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert export(run, "--step", 3, tmp_path / "out") == 0

    kind, reader = KINDS["deduction"], AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = codec.solver_prompt(kind, kind.seed()).tolist()
    question = codec.decode(ids).partition("User: ")[2].removesuffix("\nAssistant: <think>")
    turns = [{"role": "user", "content": question}]
    assert reader.apply_chat_template(turns, add_generation_prompt=True, return_dict=False) == ids
    again = PromptCodec.load(Config(model=ModelConfig(path=str(tmp_path / "out"))))
    assert again.solver_prompt(kind, kind.seed()).tolist() == ids and again.stops == codec.stops
    ends = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert ends["eos_token_id"] == list(codec.stops.token_ids) and ends["stop_strings"] == ["</answer>"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Step 3 of" in card and "model:\n  path: " in card
    assert "| exam/mean@2 | 0.250 |" in card and "0.500" not in card
    ids, _ = run_transformers_code(tmp_path / "out", monkeypatch, capsys)
    assert ids == codec.ask("What is 6 times 7?")


def test_the_cards_front_matter_is_what_the_hub_reads_of_whole_lines(run, tmp_path, tiny_model_path):
    base = shutil.copytree(tiny_model_path, tmp_path / "base")
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    other = save_run(tmp_path / "other", path=str(base))
    shutil.copytree(policy(run, 3), policy(other.path, 3))
    shares = {"mean@2": 0.25, "mean@2_low": 0.125, "mean@2_high": 0.5, "tokens": 9.0}
    line = {"step": 2} | {f"eval/exam/{name}": value for name, value in shares.items()}
    other.metrics.write_text(json.dumps(line) + "\n")
    assert export(other.path, tmp_path / "out") == 0
    card = ModelCard.load(tmp_path / "out" / "README.md")
    stated = card.data.to_dict()
    assert stated["library_name"] == "transformers" and stated["pipeline_tag"] == "text-generation"
    assert stated["license"] == "apache-2.0" and "base_model" not in stated and "self-play" in stated["tags"]
    (result,) = card.data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == ("exam", "mean@2", 0.25)
    assert "| exam/mean@2 | 0.250 [0.125, 0.500] |" in card.text and card.text.count("\n# A policy") == 1
    metrics = tmp_path / "metrics.jsonl"
    assert last_evaluation(metrics, 3) == (0, {})
    metrics.write_text('{"step": 1, "eval/pass": 0.25}\n{"step": 2, "eval/pass": 0.5}\n{"step": 3, "eval/pa')
    assert last_evaluation(metrics, 3) == (2, {"pass": 0.5})
    assert last_evaluation(metrics, 1) == (1, {"pass": 0.25})
    metrics.write_bytes(b'XX"step": 0\n[]\n{}\n\xff\xfe\n' + metrics.read_bytes())
    assert last_evaluation(metrics, 3) == (2, {"pass": 0.5})


def test_an_export_is_pushed_as_it_is(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    with open_hub() as hub:
        done = azr(hub, tmp_path, "export", run, out, "--push-to-hub", "me/model", "--private")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"pushed to {hub.address}/me/model"
    assert hub.files == {path.name: path.read_bytes() for path in out.iterdir()}
    assert "model.safetensors.index.json" in hub.files
    assert hub.created[0]["visibility"] == "private" and set(hub.cards) == {(out / "README.md").read_text()}


def test_a_push_that_is_refused_leaves_the_folder_and_says_why(run: Path, tmp_path: Path):
    out = tmp_path / "out"
    with open_hub() as hub:
        stranger = azr(hub, tmp_path, "export", run, out, "--push-to-hub", "me/model", token="guess")
        assert stranger.returncode == 2 and not out.exists() and stranger.stderr.count("\n") == 1
        assert stranger.stderr.startswith("error: me/model cannot be pushed to (.venv/bin/hf auth login logs in): ")
        hub.refuses = "/api/models/me/model/commit/main"
        refused = azr(hub, tmp_path, "export", run, out, "--push-to-hub", "me/model")
    assert refused.returncode == 2 and (out / "README.md").exists() and not hub.files
    assert f"{out} is complete, but was not pushed; .venv/bin/hf upload me/model {out} tries again: " in refused.stderr
    gone = azr(hub, tmp_path, "export", run, tmp_path / "again", "--push-to-hub", "me/model")
    assert gone.returncode == 2 and "Connection refused" in gone.stderr and not (tmp_path / "again").exists()


def test_a_tokenizer_gets_its_code_back_from_the_model_the_run_began_with_or_its_lack_is_named(
    tmp_path: Path, monkeypatch, capsys
):
    base = shutil.copytree(BASE, tmp_path / "base")
    run = save_run(tmp_path, path=str(base))
    PromptForm(None, Stops((), (1,))).keep(run.prompt_form)
    save(base, policy(run.path, 1), 0.0)
    assert not (policy(run.path, 1) / "compact_tokenizer.py").exists()
    assert export(run.path, tmp_path / "out") == 0
    text = "<|solve|>def f(x):\n    return 'reverse' + str(12345)"
    expected = AutoTokenizer.from_pretrained(BASE)(text).input_ids
    for trust in (False, True):
        assert AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=trust)(text).input_ids == expected
    assert run_transformers_code(tmp_path / "out", monkeypatch, capsys)[1] == "return x + 1\n<|output|>3<|end|>\n"
    (base / "compact_tokenizer.py").unlink()
    capsys.readouterr()
    assert export(run.path, tmp_path / "again") == 2
    assert f"compact_tokenizer.py, which a config names, is not in {policy(run.path, 1)}" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "out", "run"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def overstate(path: Path) -> None:
    """Gives one tensor a row more than there are bytes for."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    name = next(name for name in header if name != "__metadata__")
    header[name]["shape"][0] += 1
    packed = json.dumps(header).encode()
    path.write_bytes(len(packed).to_bytes(8, "little") + packed + content[8 + length :])


SHARD = "model-00002-of-00003.safetensors"


def text(content: bytes):
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize("step, name, harm, said", [
    (3, "model.safetensors", cut, "model.safetensors is damaged"), (3, "model.safetensors", Path.unlink, "no weights"),
    (3, "model.safetensors", overstate, "model.safetensors is damaged"),
    (3, "model.safetensors", text(b""), "model.safetensors is damaged"), (10, SHARD, cut, f"{SHARD} is damaged"),
    (10, SHARD, Path.unlink, f"{SHARD} is damaged"),
    (10, SHARD, lambda path: shutil.copy(path.with_name(SHARD.replace("2", "1", 1)), path), f"{SHARD} lacks "),
    (10, "model.safetensors.index.json", text(b"{}"), "names no tensors"),
    (10, "config.json", Path.unlink, "config.json cannot be read"),
    (10, "config.json", text(b"{}"), "config.json has no model_type"),
    (10, "tokenizer.json", Path.unlink, "has no vocabulary"), (10, "tokenizer.json", cut, "is not a tokenizer"),
    (10, "tokenizer_config.json", Path.unlink, "tokenizer_config.json cannot be read"),
    (10, "tokenizer_config.json", text(b"[]"), "holds no JSON object"),
    (10, "tokenizer_config.json", text(b"\xff"), "holds no JSON object (it is not UTF-8)"),
    (3, "../../../config.yaml", text(b"\xff\xfe"), "config.yaml does not say which model the run began with"),
])  # fmt: skip
def test_a_damaged_policy_or_config_is_refused(run: Path, step: int, name: str, harm, said: str, capsys):
    harm(policy(run, step) / name)
    assert export(run, "--step", step, run.parent / "out") == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert sorted(path.name for path in run.parent.iterdir()) == ["run"]


def test_a_model_of_no_run_can_be_exported_too(tmp_path: Path):
    assert export(BASE, tmp_path / "out") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in BASE.iterdir()}
    assert_light(["export", str(BASE), str(tmp_path / "light")])


def test_a_write_that_fails_leaves_nothing(run: Path, capsys):
    with largest_file(100_000):
        assert export(run, "--step", 3, run.parent / "out") == 2
    assert "out was not written: " in capsys.readouterr().err
    assert sorted(path.name for path in run.parent.iterdir()) == ["run"]


@pytest.fixture(params=[0, 4], ids=["whole", "adapters"])
async def trained(request, ray_cluster: None, tiny_model_path: Path) -> AsyncIterator[WorkerGroup]:
    """A policy in float32 that has taken a step, of all its weights or of adapters."""
    config = make_config(tiny_model_path, lora=LoraConfig(rank=request.param), warmup_steps=0, policy_lr=1e-2)
    group = await WorkerGroup.start("policy", PolicyWorker, [{"num_cpus": 0.2}], config, "cpu")
    dice = random.Random(1)
    ids = [tuple(dice.randrange(256) for _ in range(20)) for _ in range(8)]
    samples = [completion(some, some, logprobs=-5.0) for some in ids]
    generator = torch.Generator().manual_seed(1)
    names = ("advantages", "old_logprobs", "reference_logprobs")
    columns = {name: torch.randn(160, generator=generator) for name in names}
    columns["rollout_logprobs"] = rollout_logprobs(samples)
    await update_policy(group, one_step(samples, group, config), columns, STEP_S)
    yield group
    await group.shutdown()


@pytest.mark.long
async def test_trainer_transformers_and_vllm_agree(trained: WorkerGroup, tmp_path: Path, tiny_model_path: Path):
    config = make_config(tiny_model_path)
    run = save_run(tmp_path, path=str(tiny_model_path))
    await trained.call("save_hf", str(policy(run.path, 1)), timeout_s=STEP_S)
    assert export(run.path, tmp_path / "out") == 0
    assert not list((tmp_path / "out").glob("*adapter*"))

    rollout = RolloutConfig(max_prompt_tokens=32, max_response_tokens=48, max_concurrent=16)
    engine = ray.remote(RolloutEngine).remote(engine_config(tmp_path / "out", rollout, STEP_S), seed=0)
    try:
        await engine.start.remote()
        temperature = config.rollout.temperature
        prompts = [[1, 2, 3], list(b"def f(x):")]
        asked = [engine.generate.remote(p, n=4, max_tokens=48, temperature=temperature, seed=1) for p in prompts]
        samples = [sample for drawn in asked for sample in await drawn]
    finally:
        await engine.shutdown.remote()
        ray.kill(engine)
    sampled = torch.tensor([x for sample in samples for x in sample.logprobs])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    plain = torch.cat([response_logprobs(model, sample, temperature) for sample in samples])
    by_trainer = await score(trained, "logprobs", one_step(samples, trained, config), STEP_S)
    before = AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=torch.float32).eval()
    assert len(plain) > 100
    torch.testing.assert_close(plain, by_trainer, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sampled, plain, atol=1e-3, rtol=0.0)
    # The untrained model is told apart by the same measure.
    untrained = torch.cat([response_logprobs(before, sample, temperature) for sample in samples])
    assert (untrained - plain).abs().max() > 1e-2


@pytest.mark.long
@pytest.mark.parametrize("trained", [4], indirect=True)
async def test_adapters_go_alone_or_into_their_own_base(trained, tmp_path, tiny_model_path, capsys):
    """Merged weights are to the bit what engines are sent; a base with one other weight is refused."""
    run = save_run(tmp_path, path=str(tiny_model_path))
    await trained.call("save_hf", str(policy(run.path, 1)), timeout_s=STEP_S)
    assert export(run.path, tmp_path / "alone", "--adapter") == 0
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=torch.float32)
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(model, tmp_path / "alone").eval()
    assert not (tmp_path / "alone" / "config.json").exists()
    assert export(run.path, tmp_path / "both", "--adapter", "--base", tiny_model_path) == 2
    assert "--base says what adapters are merged into" in capsys.readouterr().err
    assert "library_name: peft" in (tmp_path / "alone" / "README.md").read_text()
    moved = shutil.copytree(tiny_model_path, tmp_path / "moved")
    assert export(run.path, tmp_path / "merged", "--base", moved) == 0
    engine = await start_receiver()
    await WeightSync(trained, [engine], STEP_S).push(1)
    received = await engine.actor.received.remote()
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert received.keys() == merged.keys() and all(torch.equal(received[name], merged[name]) for name in merged)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
        torch.testing.assert_close(plain(ids).logits, adapted(ids).logits, atol=1e-4, rtol=1e-4)
        model.model.norm.weight += 1
    adapted.unload().save_pretrained(moved)
    capsys.readouterr()
    assert export(run.path, tmp_path / "onto_another", "--base", moved) == 2
    said = capsys.readouterr().err
    assert "has adapters of another base model (model.safetensors differs)" in said and said.count("\n") == 1
    assert export(run.path, tmp_path / "onto_another", "--base", tmp_path / "gone") == 2
    assert f"--base '{tmp_path / 'gone'}' holds no model (no config.json there)" in capsys.readouterr().err
    assert not (tmp_path / "onto_another").exists()


@torch.no_grad()
def response_logprobs(model: torch.nn.Module, sample: Completion, temperature: float) -> torch.Tensor:
    ids = torch.tensor([sample.token_ids])
    scores = (model(ids).logits[0, len(sample.prompt_ids) - 1 : -1] / temperature).log_softmax(-1)
    return scores.gather(1, torch.tensor(sample.response_ids)[:, None])[:, 0]
