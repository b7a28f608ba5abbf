import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Linear
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Gemma3Config,
    Gemma4Config,
    Mistral3Config,
    Qwen3_5Config,
)

from azr.algorithms.architectures import ALL_LINEAR, CHECKED, REFUSED, check_architecture
from azr.algorithms.kernels import COVERED
from azr.algorithms.models import check_head, check_layers
from azr.cli import export
from azr.errors import UserError
from azr.plan.inputs import shape_of
from tests.conftest import byte_tokenizer
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


@pytest.mark.parametrize("name", [*CHECKED, *VARIANTS])
def test_a_family_is_in_all_its_places(name: str, tmp_path: Path):
    """docs/extending.md names them; `tests/doctor/test_model_check.py` compares it with vLLM."""
    family, differences = VARIANTS.get(name, (name, {}))
    config = tiny_config(family, **differences)
    check_architecture("a/model", config.to_dict(), unchecked=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    check_head(model)
    check_layers(model)

    linear = {path: part for path, part in model.model.named_modules() if type(part) is Linear}
    names = {path.split(".")[-1] for path in linear}
    assert names == set(CHECKED[family].linear) or (differences and names < set(CHECKED[family].linear))
    config.save_pretrained(tmp_path)
    shape = shape_of(str(tmp_path))
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.linear == sum(part.weight.numel() for part in linear.values())
    assert shape.adapters(8, (ALL_LINEAR,)) == 8 * sum(sum(part.weight.shape) for part in linear.values())

    (row,) = (line for line in (ROOT / "docs/models.md").read_text().splitlines() if line.startswith(f"| `{family}` |"))
    assert row.split(" | ")[-1] == ("Liger |" if family in COVERED else "none |")


@pytest.mark.parametrize(
    "config, said",
    [
        ({"model_type": "olmo"}, "'a/model' is a 'olmo' model, which was not checked against vLLM (checked are qwen2,"),
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
    for family, more in [*((family, {}) for family in REFUSED), ("gemma4_text", {"enable_moe_block": True})]:
        with pytest.raises(UserError, match=f"is a '{family}' model, which cannot be trained: "):
            check_architecture("a/model", {"model_type": family, **more}, unchecked=True)


VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip


@pytest.mark.parametrize("whole, family", [
    (Gemma3Config, "gemma3_text"), (Gemma4Config, "gemma4_text"), (Mistral3Config, "ministral3"),
    (Qwen3_5Config, "qwen3_5_text"),
])  # fmt: skip
def test_the_text_model_of_one_that_reads_images_is_exported(whole, family, tmp_path: Path):
    tokenizer = byte_tokenizer()
    kind = {"ministral3": "pixtral", "gemma4_text": "gemma4_vision"}.get(family, "siglip_vision_model")
    text = tiny_config(family, vocab_size=320, pad_token_id=0, eos_token_id=1).to_dict()
    config = whole(text_config=text, vision_config={**VISION, "model_type": kind})
    source, target = tmp_path / "whole", tmp_path / "text"
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    with pytest.raises(UserError, match="write its text model by azr export MODEL FOLDER"):
        check_architecture(str(source), json.loads((source / "config.json").read_text()), unchecked=True)
    assert export.main([str(source), str(target)]) == 0
    ids = torch.arange(2, 42)[None]
    taken = AutoModelForCausalLM.from_pretrained(target)
    torch.testing.assert_close(taken(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-5, rtol=0)
    check_architecture(str(target), json.loads((target / "config.json").read_text()), unchecked=False)


@pytest.mark.parametrize("rope, longest", [
    ({"rope_type": "longrope", "original_max_position_embeddings": 4096}, 4096), ({"type": "dynamic"}, 131072),
    ({"rope_type": "yarn", "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16384}, 16384),
])  # fmt: skip
def test_positions_that_depend_on_the_longest_packed_sample_are_refused_beyond_their_length(rope, longest: int):
    config = {"model_type": "phi3", "rope_scaling": rope, "max_position_embeddings": 131072}
    check_architecture("a/model", config, unchecked=True, longest=longest)
    with pytest.raises(UserError, match=f"texts of more than {longest} tokens unlike shorter ones, and"):
        check_architecture("a/model", config, unchecked=True, longest=longest + 1)
