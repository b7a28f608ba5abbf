"""The architectures that were compared with vLLM, `azr check-model`, and what was compared of each.

No torch here: `azr.prepare` reads this before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from azr.errors import UserError, nearest

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers of a layer of most architectures, by the last part of their names."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What of an architecture `tests/doctor/test_model_check.py` compares, on tiny random models in float32."""

    attention: str
    """For people: what its attention has beside grouped queries and rotary positions."""
    rope_types: frozenset[str] = frozenset({"default"})
    """Ways to stretch rotary positions, by transformers' names."""
    windows: bool = False
    """Whether sliding windows were checked. vLLM does not start with Qwen's, which only some layers have."""
    linear: tuple[str, ...] = LINEAR_LAYERS
    """Linear layers of a layer, as `LINEAR_LAYERS`."""
    qk_norm: Literal["none", "head", "all"] = "none"
    """Norms over queries and keys: over each head's, or over all heads' together."""
    norms: int = 2
    """Other norms of a layer."""
    biases: bool = False
    """Whether queries, keys and values have biases if config.json does not say it."""
    tied: bool = False
    """Whether embedding and output head are one matrix if config.json does not say it."""
    alike: bool = True
    """Whether the sizes in config.json hold for all layers; `azr plan` counts others one by one."""
    recurrent: str = ""
    """Class of the parts in which other layers than those with attention let tokens meet, see `run_by_sample`."""


CHECKED: dict[str, Checked] = {
    "qwen2": Checked(
        "biases of query, key and value; tied and separate output head", frozenset({"default", "yarn"}), biases=True
    ),
    "qwen3": Checked(
        "a norm over each head's query and key; tied and separate output head",
        frozenset({"default", "yarn"}),
        qk_norm="head",
    ),
    "llama": Checked("tied and separate output head", frozenset({"default", "llama3"})),
    "mistral": Checked("with and without a sliding window in every layer; separate output head", windows=True),
    "gemma3_text": Checked(
        "local and global layers with rotary positions of their own; a norm over each head's query and key; a scale of "
        "the scores other than the head size's; scaled embeddings; tied output head",
        frozenset({"default", "linear"}),
        windows=True,
        qk_norm="head",
        norms=4,
        tied=True,
    ),
    "smollm3": Checked("layers without rotary positions; tied output head", tied=True),
    "olmo2": Checked(
        "norms over all queries and all keys of a token, and after sublayers; separate output head", qk_norm="all"
    ),
    "olmo3": Checked(
        "as olmo2, with local and global layers", frozenset({"default", "yarn"}), windows=True, qk_norm="all"
    ),
    "phi3": Checked(
        "queries, keys and values in one matrix; rotary positions of a part of a head; tied and separate output head",
        frozenset({"default", "longrope"}),
        windows=True,
        linear=("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    ),
    "glm4": Checked(
        "norms before and after sublayers; interleaved rotary positions of a part of a head; with and without biases",
        linear=("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
        norms=4,
        biases=True,
    ),
    "exaone4": Checked(
        "norms after sublayers and over each head's query and key; global layers without rotary positions beside local "
        "ones, and global layers alone; tied and separate output head",
        frozenset({"default", "llama3"}),
        windows=True,
        qk_norm="head",
    ),
    "granite": Checked("scaled embeddings, residuals, scores and logits; tied and separate output head"),
    "ministral": Checked("local and global layers; separate output head", windows=True),
    "qwen3_5_text": Checked(
        "layers with a gated delta rule behind a convolution; elsewhere a norm over each head's query and key, rotary "
        "positions of a part of a head, and a gate on the output; tied and separate output head",
        linear=(*LINEAR_LAYERS, "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"),
        qk_norm="head",
        alike=False,
        recurrent="Qwen3_5GatedDeltaNet",
    ),
    "gemma4_text": Checked(
        "local and global layers with rotary positions and heads of their own; keys as values; keys and values of "
        "earlier layers; MLPs of two widths; an embedding for each layer; capped logits; tied output head",
        frozenset({"default", "proportional"}),
        windows=True,
        linear=(*LINEAR_LAYERS, "per_layer_input_gate", "per_layer_projection", "per_layer_model_projection"),
        qk_norm="head",
        norms=4,
        tied=True,
        alike=False,
    ),
    "ministral3": Checked("scaled positions; separate output head", frozenset({"yarn"})),
}
"""By `model_type`."""


def recurrent_part(family: str) -> str:
    """Return the class of the parts in which tokens meet by a convolution or a recurrent state; "" where none do."""
    return CHECKED[family].recurrent if family in CHECKED else ""


ALL_LINEAR = "all-linear"
"""Stands for all linear layers but the output head among the targets of adapters."""

READ_IMAGES = ("gemma3", "gemma4", "mistral3", "qwen3_5")
"""Architectures that hold a text model that can be trained, and more."""
REFUSED: dict[str, str] = {
    "qwen3_moe": "after a push, its experts in vLLM do not have the weights that were sent",
    "gemma2": "it caps its attention scores, which training does not compute",
    "apertus": "after a push, its activation in vLLM does not have the numbers that were sent",
    "gpt_oss": "its attention has sinks, which training does not compute",
    **dict.fromkeys(READ_IMAGES, "it reads images too; write its text model by azr export MODEL FOLDER, and take that"),
}
"""Architectures that are known not to work, by `model_type`, and why."""


_BY_LONGEST = frozenset({"dynamic", "longrope"})
"""Ways to stretch rotary positions that look at the longest text of a batch, and change nothing below a length."""
_BY_POSITION = "llama_4_scaling_beta"
"""Field of positions by which queries grow from a length on, which vLLM leaves out: a difference of 0.08 nats."""


def check_architecture(path: str, config: Mapping[str, Any], *, unchecked: bool, longest: int = 0) -> None:
    """Raises UserError for a model, by its config.json, of an architecture that was never checked, or is known to fail.

    `path`: the model's name, for the sentence. `unchecked`: let those pass that nothing is known of. `longest`: most
    tokens of a prompt and its response.
    """
    family = config.get("model_type")
    of_experts = "its experts were not compared with vLLM" if config.get("enable_moe_block") else None
    if why := of_experts or REFUSED.get(family or ""):
        raise UserError(f"model.path {path!r} is a {family!r} model, which cannot be trained: {why}.")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    original = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    original = original or config.get("max_position_embeddings") or longest
    if longest > original and (_rope_types(config) & _BY_LONGEST or _BY_POSITION in rope):
        why = "vLLM leaves that out" if _BY_POSITION in rope else "that depends on how samples are packed"
        raise UserError(
            f"model.path {path!r} computes texts of more than {original} tokens unlike shorter ones, and {why}: "
            f"lower rollout.max_prompt_tokens + rollout.max_response_tokens, which is {longest}."
        )
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
