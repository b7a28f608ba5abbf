"""Hugging Face, the trainer and a real vLLM agree about tiny random models of every family that may be trained."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from azr.algorithms.architectures import CHECKED
from azr.doctor import model_check
from azr.doctor.model_check import BOUNDS, PERTURBED, Gap, ModelCheck, Row, check_gradients, check_model
from tests.conftest import byte_tokenizer
from tests.tiny_models import VARIANTS, save_tiny

pytestmark = pytest.mark.long

# vLLM's code of the delta rule imports torchvision, which the lock of CPUs leaves out.
MODELS = {family: (family, {}) for family, checked in CHECKED.items() if not checked.recurrent} | VARIANTS
BY_COMMAND = ("qwen2", "gemma3_text")


@pytest.mark.parametrize(("family", "options", "code", "end"), [
    ("qwen2", (), 0, "No difference is above its bound (0.0001 nats, 0.001 "),
    ("gemma3_text", ("--bound", "1e-9"), 1, "A difference is above its bound (1e-09 nats"),
])  # fmt: skip
def test_a_model_passes_on_the_command_line_unless_it_is_beyond_the_bound(tmp_path, family, options, code, end):
    """Gemma 3 has two rotary bases."""
    command = [sys.executable, "-m", "azr", "check-model", str(save_tiny(tmp_path, family, byte_tokenizer())), *options]
    done = subprocess.run([*command, "--only", "logprobs"], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    lines = [line.split()[-7:] for line in done.stdout.splitlines() if line.startswith(("as loaded", "perturbed,"))]
    # Tokens, then mean and largest difference of each pair.
    rows = [[float(word) for word in line] for line in lines]
    assert len(rows) == 3 and all(tokens > 100 and max(gaps) <= 1e-4 for tokens, *gaps in rows)
    assert done.stdout.splitlines()[-1].startswith(end)


def test_a_push_that_forgets_one_tensor_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The tensor of least effect: an attention bias, which moves the log-probabilities by 0.02 nats at most."""
    path = str(save_tiny(tmp_path, "qwen2", byte_tokenizer()))
    forgotten, push = "model.layers.1.self_attn.q_proj.bias", model_check._push

    async def push_without(engine, writer, policy, version):
        weight = dict(policy.named_weights())[forgotten]
        kept = weight.detach().clone()
        weight.data.copy_(load_file(tmp_path / "model.safetensors")[forgotten])
        await push(engine, writer, policy, version)
        weight.data.copy_(kept)

    monkeypatch.setattr(model_check, "_push", push_without)
    found = asyncio.run(check_model(path, dtype="float32", device="cpu", tokens=64))
    assert not found.passes(BOUNDS["float32"]), found.table()
    loaded, perturbed, again = (row.gaps[2].largest for row in found.rows)
    assert max(loaded, again) < BOUNDS["float32"] and perturbed > 5 * found.perturbed_bound(BOUNDS["float32"])


@pytest.mark.parametrize("name", [name for name in MODELS if name not in BY_COMMAND])
def test_every_checked_family_is_exact(name: str, tmp_path: Path):
    family, differences = MODELS[name]
    folder = save_tiny(tmp_path, family, byte_tokenizer(), **differences)
    found = asyncio.run(check_model(str(folder), dtype="float32", device="cpu", tokens=512))
    assert found.passes(BOUNDS["float32"]), found.table()


def test_a_parameter_that_the_trainer_leaves_as_it_is_or_moves_otherwise_is_named(tmp_path: Path, monkeypatch):
    load = model_check._load

    def spoiled(*args):
        eager, policy = load(*args)
        parameters = dict(policy.named_weights())
        still, turned = [name for name in parameters if "down_proj" in name or "up_proj" in name][:2]
        parameters[still].register_hook(torch.zeros_like)
        parameters[turned].register_hook(torch.neg)
        names.extend((still, turned))
        return eager, policy

    names: list[str] = []
    monkeypatch.setattr(model_check, "_load", spoiled)
    folder = str(save_tiny(tmp_path, "qwen2", byte_tokenizer()))
    _, faults = check_gradients(folder, dtype="float32", device="cpu", tokens=64)
    assert sorted(fault.split()[0] for fault in faults) == sorted(names)
    assert any("has no gradient" in fault for fault in faults) and any("cosine -1.0" in fault for fault in faults)


def made(*largest: float, moved: float = 1.0, weights: str = "as loaded") -> ModelCheck:
    trainer_eager, vllm_eager, vllm_trainer = (Gap(0.0, value) for value in largest)
    return ModelCheck((Row(weights, 10, (trainer_eager, vllm_eager, vllm_trainer)),), moved, 1e-3)


def test_one_difference_beyond_the_bound_fails_which_grows_with_what_moved_the_weights():
    assert made(0.1, 0.1, 0.1).passes(0.1)
    for place in range(3):
        for beyond in (0.2, float("nan")):
            assert not made(*(beyond if i == place else 0.0 for i in range(3))).passes(0.1)
    assert not made(0.0, 0.0, 0.0, moved=0.05).passes(0.1)
    far, beyond = 0.009, 0.011
    assert made(far, far, far, moved=10.0, weights=PERTURBED).passes(1e-4)
    assert not made(far, far, far, moved=10.0).passes(1e-4)
    for place in range(3):
        gaps = (beyond if i == place else 0.0 for i in range(3))
        assert not made(*gaps, moved=10.0, weights=PERTURBED).passes(1e-4)
    assert made(0.1, 0.1, 0.1, moved=10.0, weights=PERTURBED).passes(0.1)
