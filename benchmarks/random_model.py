"""Folders with Qwen2-shaped models of random weights, for measuring where no model can be downloaded.

python -m benchmarks.random_model 1.5B OUT
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from azr.plan.inputs import KNOWN, ModelShape

TOKENIZER = Path("data/azr_14m_base")
"""Its tokenizer reads every text; placeholders fill it up to a real model's vocabulary."""
TINY = ModelShape(
    hidden=64, layers=2, heads=2, kv_heads=1, intermediate=128, vocabulary=2048, tied=True, head_size=32, qkv_bias=True
)  # fmt: skip
SIZES = {size: KNOWN[f"Qwen/Qwen2.5-{size}"] for size in ("0.5B", "1.5B", "3B", "7B")} | {"tiny": TINY}


def make(size: str, folder: Path, layers: int | None = None) -> Path:
    """Writes model and tokenizer into a new folder, in bfloat16, and returns it; on a GPU where there is one.

    `layers`: another number of them than the size has.
    """
    shape, old = (
        replace(SIZES[size], layers=layers or SIZES[size].layers),
        json.loads((TOKENIZER / "config.json").read_text()),
    )
    shutil.copytree(TOKENIZER, folder, ignore=shutil.ignore_patterns("*.safetensors", "README.md", "__pycache__"))
    _fill_vocabulary(folder / "tokenizer.json", shape.vocabulary)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        eos_token_id=old["eos_token_id"],
        pad_token_id=old["pad_token_id"],
        bos_token_id=None,
        dtype="bfloat16",
    )
    torch.manual_seed(1)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def _fill_vocabulary(file: Path, size: int) -> None:
    tree = json.loads(file.read_text())
    words = tree["model"]["vocab"]
    for index in range(max([*words.values(), *(token["id"] for token in tree["added_tokens"])]) + 1, size):
        words[f"<filler {index}>"] = index
    file.write_text(json.dumps(tree))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    print(make(options.size, options.out))


if __name__ == "__main__":
    main()
