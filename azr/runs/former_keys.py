"""Adds the keys under which transformers 4 and its kin read a model's settings; transformers 5 writes others.

A reader that knows only the former keys takes defaults for the rest without a word: a rope theta of 10,000, unscaled
positions, float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from azr.runs.model_folder import read_object, write_object


def add_former_keys(folder: Path) -> None:
    """Edit config.json and tokenizer_config.json of a Hugging Face folder in place. All new keys stay."""
    if (folder / "config.json").is_file():
        config = read_object(folder / "config.json")
        write_object(folder / "config.json", config | _former_config(config))
    settings = read_object(folder / "tokenizer_config.json")
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # the same class in both versions
    # Version 4 wants names for these tokens, and reads a list of them here.
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    write_object(folder / "tokenizer_config.json", settings)


def _former_config(config: dict[str, Any]) -> dict[str, Any]:
    former = {"torch_dtype": config["dtype"]} if config.get("dtype") else {}
    rope = config.get("rope_parameters") or {}
    local = rope.get("sliding_attention") or {}
    if "rope_theta" in local:
        former["rope_local_base_freq"] = local["rope_theta"]
    return former | _former_rope(rope.get("full_attention") or rope)


def _former_rope(rope: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of rotary positions that stood apart: base and share of a head, then how they are scaled."""
    former: dict[str, Any] = {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    scaling = {key: value for key, value in rope.items() if key not in former}
    kind = scaling.pop("rope_type", "default")
    if kind == "longrope":  # Phi-3's config takes exactly three keys, and the length beside them.
        length = {key: scaling.pop(key) for key in ("original_max_position_embeddings",) if key in scaling}
        return former | length | {"rope_scaling": {"type": kind, **scaling}}
    if kind != "default":
        former["rope_scaling"] = {"rope_type": kind, "type": kind, **scaling}
    return former
