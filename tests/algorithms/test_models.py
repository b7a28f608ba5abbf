from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch._dynamo.utils import counters
from transformers import Qwen2ForCausalLM

from azr.algorithms.architectures import CHECKED
from azr.algorithms.attention import PADDED
from azr.algorithms.models import CriticModel, PolicyModel, ValueHead
from azr.algorithms.packing import pack
from azr.doctor.model_check import check_gradients
from azr.errors import UserError
from azr.runs.model_folder import check_weights
from tests.conftest import byte_tokenizer
from tests.runs.factory import completion
from tests.tiny_models import save_tiny

from .tiny import completions, score, tiny_config, tiny_policy


@pytest.mark.parametrize("tied", [True, False])
def test_a_dummy_batch_gives_every_parameter_a_zero_gradient(tied: bool) -> None:
    """Ranks that have nothing to do must still take part in every collective of the backward."""
    model = tiny_policy(tied=tied)
    (score(model, pack([]))[0].sum() / 3).backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def names_in(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("family", CHECKED)
def test_the_trainer_names_weights_as_folders_do(family: str, tmp_path: Path) -> None:
    """Engines and checkpoints get the names that are in memory, which transformers may change on loading."""
    check_weights(save_tiny(tmp_path, family, byte_tokenizer()))
    load = {"dtype": torch.float32, "attention": PADDED}
    policy = PolicyModel.from_pretrained(str(tmp_path), logprob_chunk=64, **load)
    constants = {name for name, _ in policy.hf.named_buffers()}
    assert {name for name, _ in policy.named_weights()} == names_in(tmp_path) - constants
    backbone = CriticModel.from_pretrained(str(tmp_path), **load).backbone
    for (name, one), (its_name, two) in zip(
        policy.hf.base_model.named_parameters(), backbone.named_parameters(), strict=True
    ):
        assert name == its_name and torch.equal(one, two), name


@pytest.mark.parametrize("family", CHECKED)
def test_the_trainer_moves_every_parameter_as_eager_training_does(family: str, tmp_path: Path) -> None:
    """With three packed samples, two of one prompt."""
    folder = str(save_tiny(tmp_path, family, byte_tokenizer()))
    trained, faults = check_gradients(folder, dtype="float32", device="cpu", tokens=64)
    assert trained > 10 and faults == []


@pytest.mark.parametrize("family", CHECKED)
def test_a_packed_sample_sees_no_other(family: str, tmp_path: Path) -> None:
    folder = str(save_tiny(tmp_path, family, byte_tokenizer()))
    policy = PolicyModel.from_pretrained(folder, dtype=torch.float32, attention=PADDED, logprob_chunk=64)
    mine, after = completion([20, 21, 22, 23], [5, 6]), completion([42, 43, 44, 45, 46], [40, 41])
    scores = [score(policy, pack([completion([last] * 5, [9, 8, 7]), mine, after]))[0][5:9] for last in (60, 61)]
    assert torch.equal(*scores)


def test_an_output_head_with_a_bias_or_that_is_no_matrix_is_refused() -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(32, 53, bias=False))
    for head, why in ((torch.nn.Linear(32, 53), "bias in its output head"), (plain, "has no linear output head")):
        hf = tiny_policy().hf
        hf.set_output_embeddings(head)
        with pytest.raises(UserError, match=why):
            PolicyModel(hf, logprob_chunk=8)


def test_logits_that_are_changed_after_the_head_are_refused() -> None:
    for field, value in (
        ("logits_soft_cap", 30.0), ("output_logit_soft_cap", 30.0), ("logit_scale", 0.0625),
        ("lm_head_multiplier", 0.5), ("output_multiplier", 0.5), ("dim_model_base", 256),
    ):  # fmt: skip
        config = tiny_config()
        setattr(config, field, value)
        with pytest.raises(UserError, match=f"changes its logits by {field}={value}"):
            PolicyModel(Qwen2ForCausalLM(config), logprob_chunk=8)
    for field, same in (("logits_soft_cap", None), ("logit_scale", 1.0)):
        config = tiny_config()
        setattr(config, field, same)
        PolicyModel(Qwen2ForCausalLM(config), logprob_chunk=8)


def test_the_value_head_computes_in_float32() -> None:
    head = ValueHead(64).bfloat16()
    hidden = torch.randn(5, 64, dtype=torch.bfloat16)
    torch.testing.assert_close(head(hidden), (hidden.float() @ head.weight.float().t() + head.bias.float())[:, 0])


def test_temperature_is_applied_once() -> None:
    model, batch = tiny_policy(), pack(completions(3))
    logprobs, entropy = score(model, batch, temperature=0.5)
    with torch.no_grad():
        model.hf.model.norm.weight.mul_(2.0)  # doubles the last hidden states, hence the logits
    doubled, doubled_entropy = score(model, batch, temperature=1.0)
    torch.testing.assert_close((logprobs, entropy), (doubled, doubled_entropy), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_compiled_layers_give_the_same_values_and_gradients_and_share_graphs(checkpointing, monkeypatch):
    """Traced and differentiated by torch.compile, without its kernels, whose making takes a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    plain, compiled = (
        tiny_policy(gradient_checkpointing=checkpointing, kernels=kernels).train() for kernels in ("plain", "compile")
    )
    graphs = []
    for count in (3, 5, 4):
        batch = pack(completions(count))
        scores = [torch.stack(score(model, batch), -1) for model in (plain, compiled)]
        torch.testing.assert_close(*scores, rtol=1e-10, atol=1e-12)
        for each in scores:
            each.square().sum().backward()
        graphs.append(counters["stats"]["unique_graphs"])
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)
    assert graphs[0] == graphs[2] > 1, "another length, or another layer, is not another graph"
