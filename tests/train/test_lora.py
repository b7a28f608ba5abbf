"""A policy that trains adapters, on one and on two ranks, against peft and torch alone."""

import json
import shutil
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from azr.algorithms.lora import four_bit_rounded, is_four_bit, peft_config
from azr.cluster.weight_sync import WeightSync
from azr.config import Config, LoraConfig
from azr.errors import UserError
from azr.runs.model_export import Source, export
from azr.train.learner import score, update_critic
from azr.train.policy import CriticWorker, PolicyWorker
from azr.train.worker_group import WorkerGroup
from azr.train.zero3 import whole_shape
from tests.train.conftest import LR, STEP_S, StartGroup, make_config, on_ranks, one_and_two, one_step, update_policy
from tests.train.test_policy import fresh, plain_scores, plain_steps

LORA = LoraConfig(rank=4, alpha=16)


@pytest.fixture(scope="module")
def config(tiny_model_path: Path) -> Config:
    return make_config(tiny_model_path, lora=LORA)


@pytest.fixture(scope="module")
def groups(start_group: StartGroup, config: Config) -> dict[int, WorkerGroup]:
    return one_and_two(start_group, PolicyWorker, config, gradient_checkpointing="none")


def parts(worker: PolicyWorker) -> dict[str, tuple[bool, Tensor]]:
    """This rank's part of each parameter, and whether it is trained."""
    return {name: (p.requires_grad, p.ds_tensor.clone()) for name, p in worker.engine.module.named_parameters()}


def plain_model(path: Path, values: dict[str, Tensor]) -> Any:
    """The base in peft's hands with the given adapters."""
    base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    from peft import get_peft_model

    model = get_peft_model(base, peft_config(LORA))
    with torch.no_grad():
        for name, parameter in model.base_model.model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(values[name].view_as(parameter))
    return model


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_updates_and_pushes_equal_peft(groups, tmp_path_factory, completions, columns, config, engine, ranks):
    """Three optimizer steps, and then the merged weights in an engine; frozen weights keep every bit."""
    base = tmp_path_factory.getbasetemp()
    one = await fresh(groups[1], base / "lora_1")
    (held,) = await on_ranks(one, parts)
    adapters = {name.removeprefix("hf."): value for name, (trained, value) in held.items() if trained}
    model = plain_model(Path(config.model.path), adapters)
    group = await fresh(groups[ranks], base / f"lora_{ranks}")
    before = await on_ranks(group, parts)
    batch = one_step(completions, group, config)
    steps = [await update_policy(group, batch, columns, STEP_S) for _ in range(3)]
    after = await on_ranks(group, parts)
    for old, new in zip(before, after, strict=True):
        for name, (trained, value) in old.items():
            assert trained == ("lora_" in name)
            assert torch.equal(value, new[name][1]) != trained or not value.numel()
    expected, norms = plain_steps(model, completions, columns, config, steps=3)
    assert [step["grad_norm"] for step in steps] == pytest.approx(norms, rel=1e-4)
    named = {name.removeprefix("base_model.model."): value for name, value in expected.items()}
    await WeightSync(group, [engine], STEP_S).push(1)
    received = await engine.actor.received.remote()
    plain = plain_model(Path(config.model.path), {n: v for n, v in named.items() if "lora_" in n})
    trained = {name: p.detach() for name, p in plain.merge_and_unload().named_parameters()}
    assert received.keys() == trained.keys()
    for name, value in trained.items():
        torch.testing.assert_close(received[name], value, atol=LR / 20, rtol=0)


@pytest.mark.long
async def test_the_engine_gets_what_the_trainer_computes_with(groups, completions, columns, config, engine) -> None:
    """A plain model scores with the pushed weights as the trainer, and with the base's as the trainer's reference."""
    group = groups[2]
    batch = one_step(completions, group, config)
    await update_policy(group, batch, columns, STEP_S)
    await WeightSync(group, [engine], STEP_S).push(2)
    received = await engine.actor.received.remote()
    plain = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32).eval()
    with torch.no_grad():
        base, _ = plain_scores(plain, completions, config.rollout.temperature)
        plain.load_state_dict(received, strict=False)
        trained, _ = plain_scores(plain, completions, config.rollout.temperature)
    assert (base - trained).abs().max() > 1e-2
    torch.testing.assert_close(await score(group, "logprobs", batch, STEP_S), trained, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(await score(group, "reference_logprobs", batch, STEP_S), base, atol=1e-5, rtol=1e-5)
    again = await update_policy(group, batch, columns, STEP_S)
    assert again["grad_norm"] > 0, "adapters are trained on after the reference was asked"


@pytest.mark.long
async def test_a_resumed_run_goes_on_with_the_same_bits(groups, lend_group, completions, columns, config, tmp_path):
    """With dropout, whose random state is part of a checkpoint."""
    with_dropout = replace(config, train=replace(config.train, lora=replace(LORA, dropout=0.3)))
    group = await lend_group("policy", PolicyWorker, with_dropout, 1)
    batch = one_step(completions, group, config)
    await update_policy(group, batch, columns, STEP_S)
    (saved,) = await group.call("save_checkpoint", str(tmp_path), timeout_s=STEP_S)
    first = await update_policy(group, batch, columns, STEP_S)
    (expected,) = await on_ranks(group, parts)
    await group.call("load_checkpoint", str(tmp_path), timeout_s=STEP_S)
    assert await update_policy(group, batch, columns, STEP_S) == first
    (got,) = await on_ranks(group, parts)
    assert all(torch.equal(value, got[name][1]) for name, (_, value) in expected.items())
    whole = sum(parameter.numel() for _, (trained, parameter) in expected.items() if trained)
    assert saved.nbytes == pytest.approx(12 * whole, abs=40_000), "adapters, not the base"


async def test_a_checkpoint_is_not_put_onto_another_base(groups, lend_group, config, tmp_path) -> None:
    other, checkpoint = tmp_path / "other", tmp_path / "checkpoint"
    checkpoint.mkdir()
    shutil.copytree(config.model.path, other)
    model = AutoModelForCausalLM.from_pretrained(other)
    with torch.no_grad():
        model.model.norm.weight += 1
    model.save_pretrained(other)
    await groups[2].call("save_checkpoint", str(checkpoint), timeout_s=STEP_S)
    elsewhere = replace(config, model=replace(config.model, path=str(other)))
    group = await lend_group("policy", PolicyWorker, elsewhere, 1)
    with pytest.raises(UserError, match=r"adapters of another base model \(model.safetensors differs\)"):
        await group.call("load_checkpoint", str(checkpoint), timeout_s=STEP_S)


async def test_saved_adapters_are_peft_s(groups: dict[int, WorkerGroup], config: Config, tmp_path: Path) -> None:
    await groups[2].call("save_hf", str(tmp_path), timeout_s=STEP_S)
    base = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    from peft import PeftModel

    loaded = PeftModel.from_pretrained(base, str(tmp_path))
    (low, high) = await on_ranks(groups[2], parts)
    for name, parameter in loaded.base_model.model.named_parameters():
        if "lora_" in name:
            whole = torch.cat([low[f"hf.{name}"][1], high[f"hf.{name}"][1]])[: parameter.numel()]
            assert torch.equal(parameter.detach().reshape(-1), whole)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == config.model.path
    assert not list(tmp_path.glob("model*.safetensors"))


@pytest.mark.long
async def test_a_critic_trains_adapters_and_its_head(lend_group, completions, config) -> None:
    group = await lend_group("critic", CriticWorker, config, 1)
    batch = one_step(completions, group, config)
    values = await score(group, "values", batch, STEP_S)
    columns = {"old_values": values, "returns": values + 1}
    (before,) = await on_ranks(group, parts)
    await update_critic(group, batch, columns, STEP_S)
    (after,) = await on_ranks(group, parts)
    heads = {name for name, (trained, _) in before.items() if trained and "lora_" not in name}
    assert heads == {"head.weight", "head.bias"}
    for name, (trained, value) in before.items():
        assert torch.equal(value, after[name][1]) != trained


def packed_bytes(worker: PolicyWorker) -> tuple[int, int]:
    """Of this rank's part of the linear layers' weights, and how many of these there are in all."""
    packed = [p for p in worker.engine.module.parameters() if is_four_bit(p)]
    return sum(p.ds_tensor.nbytes for p in packed), sum(prod(whole_shape(p)) for p in packed)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
async def test_frozen_weights_may_have_four_bits(ranks, lend_group, completions, columns, config, engine, tmp_path):
    """What is sent is what is computed with, the base as its 4 bits say and the adapters in it."""
    four_bit = replace(config, train=replace(config.train, lora=replace(LORA, four_bit=True)))
    group = await lend_group("policy", PolicyWorker, four_bit, ranks)
    for nbytes, weights in await on_ranks(group, packed_bytes):
        assert nbytes == pytest.approx(weights / 2 / ranks, rel=0.01)
    plain = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32).eval()
    batch, temperature = one_step(completions, group, config), config.rollout.temperature
    with torch.no_grad():
        unrounded, _ = plain_scores(plain, completions, temperature)
        for layer in plain.model.layers.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.weight.copy_(four_bit_rounded(layer.weight))
        base, _ = plain_scores(plain, completions, temperature)
    assert (base - unrounded).abs().max() > 1e-2
    torch.testing.assert_close(await score(group, "logprobs", batch, STEP_S), base, atol=1e-4, rtol=1e-4)
    before = await on_ranks(group, parts)
    await update_policy(group, batch, columns, STEP_S)
    for old, new in zip(before, await on_ranks(group, parts), strict=True):
        for name, (trained, value) in old.items():
            # As bytes: packed bits may spell a NaN, which equals nothing.
            assert torch.equal(value.view(torch.uint8), new[name][1].view(torch.uint8)) != trained
    await WeightSync(group, [engine], STEP_S).push(3)
    received = await engine.actor.received.remote()
    plain.load_state_dict(received, strict=False)
    with torch.no_grad():
        after, _ = plain_scores(plain, completions, temperature)
    torch.testing.assert_close(await score(group, "logprobs", batch, STEP_S), after, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(await score(group, "reference_logprobs", batch, STEP_S), base, atol=1e-4, rtol=1e-4)
    await group.call("save_hf", str(tmp_path / "adapters"), timeout_s=STEP_S)
    source = Source(tmp_path / "adapters", None, Path(config.model.path))
    export(source, tmp_path / "merged")
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert merged.keys() == received.keys() and all(torch.equal(merged[name], received[name]) for name in merged)


def test_linear_layers_of_the_names_alone_have_adapters(tiny_model_path: Path) -> None:
    from azr.algorithms.models import PolicyModel

    options = {"dtype": torch.float32, "attention": "eager", "logprob_chunk": 8}
    lora = LoraConfig(rank=2, targets=("q_proj", "down_proj"))
    model = PolicyModel.from_pretrained(str(tiny_model_path), **options, lora=lora)
    from peft.tuners.lora import LoraLayer

    names = {name.rpartition(".")[2] for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    assert names == {"q_proj", "down_proj"}
