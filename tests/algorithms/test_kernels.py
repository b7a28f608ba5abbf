"""Which kernels a model takes and what they replace; on a GPU also how near they are, as `benchmarks.kernels` says."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as turn

from azr.algorithms import attention, kernels
from azr.algorithms.architectures import CHECKED
from azr.algorithms.attention import FLASH, PADDED, VARLEN, choose_attention
from azr.algorithms.kernels import COVERED, apply_liger, choose_kernels, flash_attn_problem
from azr.errors import UserError
from benchmarks.kernels import compare
from tests.tiny_models import tiny_config


def packages(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: "installed" if installed else None)


def test_liger_is_taken_where_it_can_be_had_and_refused_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    packages(monkeypatch, installed=True)
    assert choose_kernels("auto", "cuda", "qwen2")[0] == choose_kernels("liger", "cuda", "qwen2")[0] == "liger"
    assert choose_kernels("auto", "cpu", "qwen2") == ("plain", "they need a GPU")
    assert choose_kernels("auto", "cuda", "gpt2")[0] == choose_kernels("plain", "cuda", "qwen2")[0] == "plain"
    packages(monkeypatch, installed=False)
    assert choose_kernels("auto", "cuda", "qwen2") == ("plain", "the package liger-kernel is not installed")
    for device, family, installed, sentence in (
        ("cpu", "qwen2", True, "they need a GPU: take train.kernels=auto"),
        ("cuda", "qwen2", False, "liger-kernel is not installed: install it with pip install liger-kernel"),
        ("cuda", "gpt2", True, "they do not cover 'gpt2' models"),
    ):
        packages(monkeypatch, installed)
        with pytest.raises(UserError, match=sentence):
            choose_kernels("liger", device, family)


def test_flash_attn_is_taken_where_it_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [None]
    for module in (kernels, attention):
        monkeypatch.setattr(module, "flash_attn_problem", lambda: problems[-1])
    assert choose_attention("cuda", torch.bfloat16, "flash_attn")[0] == FLASH
    for major, wanted, chosen in ((9, "auto", FLASH), (8, "auto", VARLEN), (9, "torch", VARLEN)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, major=major: (major, 0))
        assert choose_attention("cuda", torch.bfloat16, wanted)[0] == chosen
    assert choose_attention("cuda", torch.float32)[0] == choose_attention("cpu", torch.bfloat16, "torch")[0] == PADDED
    with pytest.raises(UserError, match="needs a GPU and"):
        choose_attention("cpu", torch.bfloat16, "flash_attn")
    problems.append("ImportError: undefined symbol")
    with pytest.raises(UserError, match=r"cannot be imported \(ImportError: undefined symbol\): make clean, then make"):
        choose_attention("cuda", torch.bfloat16, "flash_attn")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    name, why = choose_attention("cuda", torch.bfloat16)
    assert (name, why) == (VARLEN, "FlashAttention 4 cannot be imported: ImportError: undefined symbol")


@pytest.mark.parametrize(
    "files, said",
    [
        ({}, "ModuleNotFoundError: No module named 'flash_attn'"),
        ({"flash_attn/__init__.py": ""}, "ModuleNotFoundError: No module named 'flash_attn.cute'"),
        ({"cutlass.py": "raise AttributeError('no cudaLibrary_t')"}, "AttributeError: no cudaLibrary_t"),
        ({"cutlass.py": "import os; os.abort()"}, "exit code -6"),
        ({"cutlass.py": "print('a warning')"}, None),
    ],
)
def test_a_flash_attn_that_cannot_be_imported_is_none(
    files: dict[str, str], said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at once, by an interpreter of its own."""
    monkeypatch.syspath_prepend(tmp_path)
    if "cutlass.py" in files:
        files = files | {"flash_attn/cute/__init__.py": "import cutlass"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    flash_attn_problem.cache_clear()
    assert flash_attn_problem() == said and "flash_attn" not in sys.modules
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert flash_attn_problem() == said
    flash_attn_problem.cache_clear()


def code(function: Callable[..., object]) -> bytes:
    return inspect.unwrap(function).__code__.co_code


@pytest.mark.parametrize("family", sorted(COVERED))
def test_all_norms_activations_and_rotary_positions_are_bound_and_nothing_else(family: str) -> None:
    assert family in CHECKED
    config = tiny_config(family, vocab_size=64, pad_token_id=None)
    model = AutoModelForCausalLM.from_config(config)
    names = list(model.state_dict())
    other = AutoModelForCausalLM.from_config(config)
    apply_liger(model)
    assert list(model.state_dict()) == names
    bound = {type(module).__name__: type(module) for module in model.modules() if "forward" in vars(module)}
    prefix = type(config).__name__.removesuffix("Config").removesuffix("Text")
    assert bound.keys() == {f"{prefix}{part}" for part in ("RMSNorm", "MLP", "Attention")}
    if prefix != "Gemma3":  # what `_norm`, `_swiglu` and `_rotary` compute
        for part, of_llama in (("RMSNorm", LlamaRMSNorm), ("MLP", LlamaMLP)):
            assert code(bound[prefix + part].forward) == code(of_llama.forward)
        assert code(sys.modules[bound[f"{prefix}MLP"].__module__].apply_rotary_pos_emb) == code(turn)
    assert not any("forward" in vars(module) for module in other.modules()), "transformers itself stays as it is"


@pytest.mark.long
@pytest.mark.skipif(
    not (find_spec("triton") and find_spec("liger_kernel")) or torch.cuda.is_available(),
    reason="needs triton and liger-kernel, which come with a CUDA torch and the GPU lock, and no GPU",
)
def test_the_kernels_agree_with_the_plain_path_in_the_interpreter() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.kernels"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_fused_kernels_are_as_near_to_float32_as_the_plain_path() -> None:
    gaps = list(compare("cuda"))
    assert len(gaps) > 200
    assert [gap for gap in gaps if not gap.passes] == []
