"""Shapes of decoder-only models: read from a ``config.json``, or known by their name on the hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azr.algorithms.architectures import ALL_LINEAR, LINEAR_LAYERS
from azr.errors import UserError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A Llama-like decoder: RMSNorm, rotary positions, grouped-query attention, gated MLP."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    """Rows of the embedding, padding included."""
    tied: bool
    """Output head and embedding are one matrix."""
    head_size: int
    qkv_bias: bool = False
    qk_norm: bool = False
    """A norm over each head's query and key."""

    @property
    def query(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def key(self) -> int:
        """Width of all key heads together; values are as wide."""
        return self.kv_heads * self.head_size

    @property
    def embedding(self) -> int:
        """Elements of the embedding, and of the output head."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        others = (self.query + 2 * self.key) * self.qkv_bias + 2 * self.head_size * self.qk_norm + 2 * self.hidden
        return self.layer_linear + others

    @property
    def layer_linear(self) -> int:
        """Weights of one layer's linear layers, without biases."""
        attention = 2 * self.hidden * self.query + 2 * self.hidden * self.key
        return attention + 3 * self.hidden * self.intermediate

    @property
    def backbone(self) -> int:
        """Parameters without the output head: embedding, layers, last norm."""
        return self.embedding + self.layers * self.layer + self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the language model; a tied matrix counts once."""
        return self.backbone + (0 if self.tied else self.embedding)

    @property
    def critic(self) -> int:
        """Parameters of a critic: the backbone and a scalar head with bias."""
        return self.backbone + self.critic_head

    @property
    def critic_head(self) -> int:
        return self.hidden + 1

    def adapters(self, rank: int, targets: Sequence[str]) -> int:
        """Parameters of the adapters of this rank; `targets` as in `train.lora.targets`."""
        sizes = {
            "q_proj": self.hidden + self.query,
            "k_proj": self.hidden + self.key,
            "v_proj": self.hidden + self.key,
            "o_proj": self.query + self.hidden,
            "gate_proj": self.hidden + self.intermediate,
            "up_proj": self.hidden + self.intermediate,
            "down_proj": self.intermediate + self.hidden,
        }
        assert sizes.keys() == set(LINEAR_LAYERS)
        return rank * self.layers * sum(size for name, size in sizes.items() if {name, ALL_LINEAR} & set(targets))


def _qwen2(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int) -> ModelShape:
    return ModelShape(
        hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, intermediate=intermediate, vocabulary=vocabulary,
        tied=vocabulary == 151936, head_size=hidden // heads, qkv_bias=True,
    )  # fmt: skip


_QWEN2 = {
    "0.5B": _qwen2(896, 24, 14, 2, 4864, 151936),
    "1.5B": _qwen2(1536, 28, 12, 2, 8960, 151936),
    "3B": _qwen2(2048, 36, 16, 2, 11008, 151936),
    "7B": _qwen2(3584, 28, 28, 4, 18944, 152064),
    "14B": _qwen2(5120, 48, 40, 8, 13824, 152064),
    "32B": _qwen2(5120, 64, 40, 8, 27648, 152064),
}
_LLAMA_8B = ModelShape(
    hidden=4096, layers=32, heads=32, kv_heads=8, intermediate=14336, vocabulary=128256, tied=False, head_size=128
)
_QWEN3_4B = ModelShape(
    hidden=2560, layers=36, heads=32, kv_heads=8, intermediate=9728, vocabulary=151936, tied=True, head_size=128,
    qk_norm=True,
)  # fmt: skip
KNOWN = {
    f"Qwen/Qwen2.5-{family}{size}{tuned}": shape
    for size, shape in _QWEN2.items()
    for family in ("", "Coder-")
    for tuned in ("", "-Instruct")
} | {
    "Elliott/Qwen2.5-Math-7B-16k-think": _QWEN2["7B"],
    "meta-llama/Llama-3.1-8B": _LLAMA_8B,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_8B,
    "Qwen/Qwen3-4B": _QWEN3_4B,
    "Qwen/Qwen3-4B-Base": _QWEN3_4B,
}
"""By hub name, from the models' published config.json."""
_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def shape_of(path: str, config_file: str | None = None) -> ModelShape:
    """The shape of the model at `path`, a local folder or hub name, or as the given config.json says.

    Raises UserError when neither is known, or for an architecture whose parameters cannot be counted here.
    """
    file = Path(config_file) if config_file is not None else Path(path) / "config.json"
    if config_file is not None or file.is_file():
        return _read(file)
    if path in KNOWN:
        return KNOWN[path]
    near = nearest(path, KNOWN, least=0.8)
    hint = f" (or did you mean {near}?)" if near else ""
    raise UserError(f"The shape of {path!r} is not known here; give its config.json with --model-config{hint}.")


def _read(file: Path) -> ModelShape:
    try:
        tree: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is no model's config.json: {error}") from error
    family = tree.get("model_type")
    if family not in _FAMILIES:
        raise UserError(f"{file} describes a {family!r} model; a plan can be made for {', '.join(_FAMILIES)}.")
    try:
        hidden, heads = tree["hidden_size"], tree["num_attention_heads"]
        return ModelShape(
            hidden=hidden,
            layers=tree["num_hidden_layers"],
            heads=heads,
            kv_heads=tree.get("num_key_value_heads", heads),
            intermediate=tree["intermediate_size"],
            vocabulary=tree["vocab_size"],
            tied=tree.get("tie_word_embeddings", False),
            head_size=tree.get("head_dim") or hidden // heads,
            qkv_bias=family == "qwen2",
            qk_norm=family == "qwen3",
        )
    except KeyError as error:
        raise UserError(f"{file} lacks {error}, without which no plan can be made.") from error
