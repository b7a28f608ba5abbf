from pathlib import Path

import pytest
import torch

from azr import hardware
from azr.cli.run import fit_notes
from azr.config import Config, LoraConfig, ModelConfig, TrainConfig
from azr.doctor import Mark, machine
from azr.doctor.machine import Gpu, Gpus, gpus_section
from azr.errors import UserError
from azr.hardware import cache_folder, compute_type, cpu_engine_problem, gpu_capabilities, keep_kernels


@pytest.mark.parametrize("architecture, instructions, chosen", [
    ("x86_64", ["avx2"], "float32"), ("x86_64", ["avx512_f", "avx512_bf16"], "bfloat16"),
    ("x86_64", ["amx_bf16"], "bfloat16"), ("arm64", ["neon", "bf16"], "bfloat16"), ("arm64", ["neon"], "float32"),
])  # fmt: skip
def test_a_cpu_computes_in_what_it_has_instructions_for(architecture, instructions, chosen, monkeypatch):
    has = {"architecture": architecture, "avx512_bf16": False} | dict.fromkeys(instructions, True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    assert compute_type("auto", "cpu") == chosen


def test_kernels_are_kept_in_one_folder_unless_the_user_says_otherwise(monkeypatch, tmp_path):
    monkeypatch.setenv("AZR_CACHE", str(tmp_path))
    environment = {"TRITON_CACHE_DIR": "/elsewhere"}
    keep_kernels(environment)
    assert environment.pop("TRITON_CACHE_DIR") == "/elsewhere"
    assert environment.pop("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED") == "1"
    assert len(environment) == 6
    assert {Path(folder).parent for folder in environment.values()} == {tmp_path}
    monkeypatch.delenv("AZR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_folder() == Path("/cache/azr")


def test_what_is_asked_for_is_done_and_gpus_compute_in_bfloat16():
    for device in ("cpu", "cuda"):
        assert [compute_type(asked, device) for asked in ("bfloat16", "float32")] == ["bfloat16", "float32"]
    assert compute_type("auto", "cuda") == "bfloat16"


@pytest.mark.parametrize("capabilities, chosen, mark", [
    ("9.0\n9.0", "bfloat16", None), ("8.0\n7.5", "float32", Mark.WARNING), ("7.0", "float32", Mark.MISSING),
    ("[N/A]", "bfloat16", None),
])  # fmt: skip
def test_gpus_without_bfloat16_compute_in_float32_and_are_told_of(capabilities, chosen, mark, tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{capabilities}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(hardware, "gpu_capabilities", gpu_capabilities.__wrapped__)
    monkeypatch.setattr(machine, "gpu_capabilities", gpu_capabilities.__wrapped__)
    assert compute_type("auto", "cuda") == chosen
    cards = Gpus(all=(Gpu(index=0, name="card", total_mib=16384, used_mib=0, driver="580"),))
    assert {each.name: each.mark for each in gpus_section(cards).findings}.get("compute type") is mark
    small = Config(model=ModelConfig(path="Qwen/Qwen2.5-0.5B"), train=TrainConfig(lora=LoraConfig(rank=8)))
    if mark is Mark.MISSING:
        with pytest.raises(UserError, match="7\\.0, and CUDA 13 supports"):
            fit_notes(small, cards)
    else:
        assert any("auto is float32" in note for note in fit_notes(small, cards)) is (mark is Mark.WARNING)


def test_an_engine_on_a_cpu_names_the_library_that_it_lacks():
    assert cpu_engine_problem() is None, "the tests run engines on CPUs"
    problem = cpu_engine_problem("libnot_there.so.1")
    assert problem is not None and "needs libnot_there.so.1: install it" in problem
