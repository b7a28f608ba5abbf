"""Tiny random models of several families with a tokenizer, as folders that transformers and vLLM load; runs of them."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    ApertusConfig,
    AutoModelForCausalLM,
    Exaone4Config,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    Glm4Config,
    GraniteConfig,
    Lfm2Config,
    LlamaConfig,
    Ministral3Config,
    MinistralConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from azr.config import Config, ModelConfig, RunConfig
from azr.runs.run_dir import PromptForm, RunDirectory
from tests import chat_tokenizers

WINDOW = 24
"""Sliding window, in tokens, of the families that have one: shorter than any text of a check."""

_COMMON = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024, "bos_token_id": None, "dtype": "float32",
}  # fmt: skip
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0},
}
_GEMMA4_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10000.0},
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
_FULL_AND_LOCAL = (("sliding_attention", _ROPE), ("full_attention", _YARN))
_PART_ROPE = {**_ROPE, "partial_rotary_factor": 0.5}
_LONG_ROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
    "short_factor": [1 + i / 12 for i in range(12)], "long_factor": [2.0 + i for i in range(12)],
}  # fmt: skip
_MIXED: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_ALL_HEADS = {"hidden_size": 128}
"""For configs without a head size, which then is 32 as in the others."""
FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "qwen2": (Qwen2Config, {"hidden_size": 128, "rope_parameters": _ROPE, "tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, {"rope_parameters": _ROPE, "tie_word_embeddings": True}),
    "llama": (LlamaConfig, {"rope_parameters": _LLAMA3_ROPE, "tie_word_embeddings": False}),
    "mistral": (MistralConfig, {"rope_parameters": _ROPE, "sliding_window": WINDOW}),
    "gemma3_text": (Gemma3TextConfig, {
        "rope_parameters": _GEMMA3_ROPE, "sliding_window": WINDOW, "query_pre_attn_scalar": 20,
        "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": True,
    }),
    "gemma4_text": (Gemma4TextConfig, {
        "rope_parameters": _GEMMA4_ROPE, "sliding_window": WINDOW, "final_logit_softcapping": 2.0,
        "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True, "global_head_dim": 64, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 320,
    }),
    "smollm3": (SmolLM3Config, {"rope_parameters": _ROPE, "no_rope_layers": [1, 0], "tie_word_embeddings": True}),
    "olmo2": (Olmo2Config, {**_ALL_HEADS, "rope_parameters": _ROPE}),
    "olmo3": (Olmo3Config, {
        **_ALL_HEADS, **_MIXED,
        "rope_parameters": {kind: {**rope, "rope_theta": 500_000.0} for kind, rope in _FULL_AND_LOCAL},
    }),
    "phi3": (Phi3Config, {**_ALL_HEADS, "rope_parameters": {**_ROPE, "partial_rotary_factor": 1.0}}),
    "glm4": (Glm4Config, {"rope_parameters": _PART_ROPE, "attention_bias": True}),
    "exaone4": (Exaone4Config, {**_MIXED, "rope_parameters": _LLAMA3_ROPE, "sliding_window_pattern": 2}),
    "apertus": (ApertusConfig, {"rope_parameters": _LLAMA3_ROPE}),
    "ministral": (MinistralConfig, {**_MIXED, "rope_parameters": _ROPE}),
    "ministral3": (Ministral3Config, {
        "rope_parameters": {
            **_YARN, "original_max_position_embeddings": 1024, "mscale": 1.0, "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    }),
    "granite": (GraniteConfig, {
        "rope_parameters": _ROPE, "attention_multiplier": 0.1, "embedding_multiplier": 4.0, "residual_multiplier": 0.5,
        "logits_scaling": 6.0, "tie_word_embeddings": True,
    }),
    "gemma2": (Gemma2Config, {"sliding_window": WINDOW, "query_pre_attn_scalar": 20}),
    "qwen3_moe": (Qwen3MoeConfig, {
        "rope_parameters": _ROPE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    }),
    "qwen3_5_text": (Qwen3_5TextConfig, {
        "rope_parameters": _ROPE, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 1,
        "linear_num_value_heads": 2, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    }),
    "lfm2": (Lfm2Config, {"rope_parameters": _ROPE, "full_attn_idxs": [1], "block_multiple_of": 32}),
}  # fmt: skip
"""By ``model_type``: class of its config, and what a tiny one has beside the sizes that all share."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2-yarn-untied": ("qwen2", {"rope_parameters": _YARN, "tie_word_embeddings": False}),
    "qwen3-yarn-untied": ("qwen3", {"rope_parameters": _YARN, "tie_word_embeddings": False}),
    "llama-default-tied": ("llama", {"rope_parameters": _ROPE, "tie_word_embeddings": True}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "phi3-longrope-tied": ("phi3", {
        "rope_parameters": _LONG_ROPE, "original_max_position_embeddings": 1024, "tie_word_embeddings": True,
    }),
    "phi3-window": ("phi3", {"sliding_window": WINDOW}),
    "granite-untied": ("granite", {"tie_word_embeddings": False}),
    "glm4-no-bias": ("glm4", {"attention_bias": False}),
    "gemma4-own-values": ("gemma4_text", {"attention_k_eq_v": False}),
    "gemma4-all-own": ("gemma4_text", {
        "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "hidden_size_per_layer_input": 0,
    }),
    "exaone4-global-tied": ("exaone4", {
        "sliding_window": None, "sliding_window_pattern": None, "layer_types": ["full_attention"] * 2,
        "tie_word_embeddings": True,
    }),
}  # fmt: skip
"""What else was checked of the families: the type and the differences of its config."""


def tiny_config(family: str, **differences: Any) -> PreTrainedConfig:
    """Config of a tiny model; `differences` are fields that are to be otherwise."""
    kind, own = FAMILIES[family]
    return kind(**{**_COMMON, **own, **differences})


def tiny_of(family: str, tokenizer: PreTrainedTokenizerFast, **differences: Any) -> PreTrainedModel:
    """A float32 model of at most 0.3M parameters; weights, biases and norms are random and wide, so none is idle."""
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    vocabulary = -(-len(tokenizer) // 64) * 64
    config = tiny_config(family, **{**ids, "vocab_size": vocabulary, **differences})
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    # Gemma 2 and 3 multiply by one plus the weight of a norm.
    norm = 0.0 if family in ("gemma2", "gemma3_text") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(norm if "norm" in name else 0.0, 0.1, generator=generator)
    return model


def save_tiny(folder: Path, family: str, tokenizer: PreTrainedTokenizerFast, **differences: Any) -> Path:
    """Write model and tokenizer as one Hugging Face folder; `differences` are fields of its config."""
    tokenizer.save_pretrained(folder)
    tiny_of(family, tokenizer, **differences).save_pretrained(folder)
    return folder


def save_run(root: Path, *steps: int, form: PromptForm | None = None, **model: str) -> RunDirectory:
    """A run directory ``run`` with the policies of these steps, random ones that are asked in words; ``model`` changes
    what its config says of the model."""
    settings = ModelConfig(**{"path": str(root / "base")} | model)  # type: ignore[arg-type]
    run = RunDirectory(root / "run").create(Config(run=RunConfig(name="run", root=str(root)), model=settings))
    for step in steps:
        save_tiny(run.checkpoints / f"step_{step:06d}" / "policy", "qwen2", chat_tokenizers.chatml())
    if form is not None:
        form.keep(run.prompt_form)
    return run


def save_weights(folder: Path) -> None:
    """Write a file of weights that is whole, for folders of which only config and tokenizer matter."""
    save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")
