"""The architectures that were compared with vLLM, `azr check-model`, and what was compared of each.

No torch here: `azr.prepare` reads this before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from azr.errors import UserError, nearest


@dataclass(frozen=True, slots=True)
class Checked:
    """What of an architecture `tests/evaluation/test_model_check.py` compares, on tiny random models in float32."""

    attention: str
    """For people: what its attention has beside grouped queries and rotary positions."""
    rope_types: frozenset[str] = frozenset({"default"})
    """Ways to stretch rotary positions, by transformers' names."""
    windows: bool = False
    """Whether sliding windows were checked. vLLM does not start with Qwen's, which only some layers have."""


CHECKED: dict[str, Checked] = {
    "qwen2": Checked("biases of query, key and value; tied and separate output head", frozenset({"default", "yarn"})),
    "qwen3": Checked(
        "a norm over each head's query and key; tied and separate output head", frozenset({"default", "yarn"})
    ),
    "llama": Checked("tied and separate output head", frozenset({"default", "llama3"})),
    "mistral": Checked("with and without a sliding window in every layer; separate output head", windows=True),
    "gemma3_text": Checked(
        "local and global layers with rotary positions of their own; a norm over each head's query and key; a scale of "
        "the scores other than the head size's; scaled embeddings; tied output head",
        frozenset({"default", "linear"}),
        windows=True,
    ),
}
"""By `model_type`."""

ALL_LINEAR = "all-linear"
"""Stands for all linear layers but the output head among the targets of adapters."""
LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Of a layer of each architecture in `CHECKED`, by the last part of their names."""

REFUSED: dict[str, str] = {
    "qwen3_moe": "after a push, its experts in vLLM do not have the weights that were sent",
    "gemma2": "it caps its attention scores and its logits, which training does not compute",
    "gpt_oss": "its attention has sinks, which training does not compute",
    "gemma3": "it reads images too; its text models of the type gemma3_text can be trained",
}
"""Architectures that are known not to work, by `model_type`, and why."""


def check_architecture(path: str, config: Mapping[str, Any], *, unchecked: bool) -> None:
    """Raises UserError for a model, by its config.json, of an architecture that was never checked, or is known to fail.

    `path`: the model's name, for the sentence. `unchecked`: let those pass that nothing is known of.
    """
    family = config.get("model_type")
    if family in REFUSED:
        raise UserError(f"model.path {path!r} is a {family!r} model, which cannot be trained: {REFUSED[family]}.")
    if unchecked:
        return
    has_windows = config.get("sliding_window") is not None and bool(config.get("use_sliding_window", True))
    if family not in CHECKED:
        what = f"a {family!r} model" if family else "a model whose config.json names no model_type"
        known = f"checked are {', '.join(CHECKED)}"
    elif strange := _rope_types(config) - CHECKED[family].rope_types:
        what = f"a {family!r} model with rotary positions of the type {min(strange)!r}"
        known = f"checked are {', '.join(sorted(CHECKED[family].rope_types))}"
    elif has_windows and not CHECKED[family].windows:
        what = f"a {family!r} model with sliding windows"
        known = "checked is one without"
    else:
        return
    raise UserError(
        f"model.path {path!r} is {what}, which was not checked against vLLM ({known}): run azr check-model {path}, "
        "and set --model.unchecked if it agrees."
    )


def check_targets(targets: Sequence[str], known: Sequence[str]) -> None:
    """Raises UserError for a target of adapters that is not among the names of the model's linear layers."""
    if tuple(targets) == (ALL_LINEAR,):
        return
    for target in targets or ("",):
        if target not in known:
            near = nearest(target, known)
            hint = f"did you mean {near}? It" if near else "it"
            raise UserError(
                f"train.lora.targets has {target!r}, but the model has no such linear layer; {hint} has "
                f"{', '.join(known)}, and {ALL_LINEAR} stands for all."
            )


def _rope_types(config: Mapping[str, Any]) -> set[str]:
    """Of all kinds of layers; older files have another field and another name in it."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    each = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    return {one.get("rope_type") or one.get("type") or "default" for one in each}
