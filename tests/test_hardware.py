from pathlib import Path

import pytest
import torch

from azr.hardware import cache_folder, compute_type, cpu_engine_problem, keep_kernels


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
    assert cpu_engine_problem() is None, "the tests run engines on CPUs"
    problem = cpu_engine_problem("libnot_there.so.1")
    assert problem is not None and "needs libnot_there.so.1: install it" in problem
