from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from azr.algorithms.architectures import CHECKED, REFUSED, check_architecture
from azr.errors import UserError
from azr.plan.inputs import _FAMILIES
from tests.tiny_models import VARIANTS, tiny_config

ROOT = Path(__file__).parents[2]
LLAMA_3_1: dict[str, Any] = {
    "model_type": "llama",
    "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
}
QWEN_2_5: dict[str, Any] = {
    "model_type": "qwen2", "rope_theta": 1000000.0, "use_sliding_window": False, "sliding_window": 131072,
}  # fmt: skip


def test_shipped_models_and_all_that_a_plan_is_made_for_were_checked():
    base = json.loads((ROOT / "data/azr_14m_base/config.json").read_text())
    for config in (base, LLAMA_3_1, QWEN_2_5, {**QWEN_2_5, "rope_scaling": None}):
        check_architecture("a/model", config, unchecked=False)
    assert set(_FAMILIES) <= set(CHECKED)


@pytest.mark.parametrize("name", [*CHECKED, *VARIANTS])
def test_what_the_tests_check_passes(name: str):
    family, differences = VARIANTS.get(name, (name, {}))
    check_architecture("a/model", tiny_config(family, **differences).to_dict(), unchecked=False)


@pytest.mark.parametrize(
    "config, said",
    [
        ({"model_type": "phi3"}, "'a/model' is a 'phi3' model, which was not checked against vLLM (checked are qwen2,"),
        ({}, "a model whose config.json names no model_type"),
        ({"model_type": "llama", "rope_scaling": {"type": "dynamic"}}, "with rotary positions of the type 'dynamic'"),
        ({**QWEN_2_5, "use_sliding_window": True}, "is a 'qwen2' model with sliding windows, which"),
        ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "type 'yarn'"),
    ],
)
def test_what_was_never_checked_is_refused_unless_told_otherwise(config: dict[str, Any], said: str):
    with pytest.raises(UserError) as raised:
        check_architecture("a/model", config, unchecked=False)
    assert said in str(raised.value)
    assert str(raised.value).endswith("run azr check-model a/model, and set --model.unchecked if it agrees.")
    check_architecture("a/model", config, unchecked=True)


def test_what_is_known_to_fail_is_refused_in_any_case():
    for family in REFUSED:
        with pytest.raises(UserError, match=f"is a '{family}' model, which cannot be trained: "):
            check_architecture("a/model", {"model_type": family}, unchecked=True)
