"""``<think>`` and ``</think>`` become text, and nothing else about the tokenizer changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from azr.errors import UserError
from azr.runs.exported_files import TAGS, remove_think_tokens

TEXT = "User: why?\nAssistant: <think>\nbecause 1 < 2\n</think>\n<answer>\n42\n</answer><|im_end|>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Qwen3 has its think tokens behind all others; models distilled from DeepSeek-R1 have others behind them.
LAST = ["<tool_call>", "</tool_call>", *TAGS]
AMID = ["<tool_call>", *TAGS, "</tool_call>"]


def qwen3_like(folder: Path, plain: list[str], where_else: dict[str, Any]) -> Tokenizer:
    """A byte-level tokenizer of 300 pieces in Qwen3's own file layout; ``plain``: added tokens that are not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["because I think so, the answer is what I think"] * 3, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in plain])
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.model.save(str(folder))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    decoder = {
        str(number): {"content": token.content, **flags, "special": token.content in SPECIAL}
        for number, token in sorted(tokenizer.get_added_tokens_decoder().items())
    }
    settings = {
        "added_tokens_decoder": decoder,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
        **where_else,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "added_tokens.json").write_text(json.dumps({entry["content"]: int(i) for i, entry in decoder.items()}))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return tokenizer


@pytest.mark.parametrize("plain", [LAST, AMID], ids=["last", "amid"])
@pytest.mark.parametrize(
    "where_else",
    [
        {},
        {"additional_special_tokens": ["<|im_start|>", *TAGS]},
        {"extra_special_tokens": {"think_token": "<think>"}},
    ],
    ids=["plain", "listed", "named"],
)
def test_the_tags_are_spelled_and_all_else_keeps_its_id(plain: list[str], where_else: dict, tmp_path: Path):
    before = qwen3_like(tmp_path, plain, where_else)
    assert all(len(before.encode(tag).ids) == 1 for tag in TAGS)
    remove_think_tokens(tmp_path)

    after, loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json")), AutoTokenizer.from_pretrained(tmp_path)
    for tag in TAGS:
        spelled = loaded.encode(tag, add_special_tokens=False)
        assert len(spelled) > 1 and spelled == after.encode(tag).ids
        assert loaded.decode(spelled) == tag
    assert loaded.decode(loaded.encode(TEXT, add_special_tokens=False)) == TEXT
    for vocabulary in (after.get_vocab(), loaded.get_vocab()):
        kept = {token: number for token, number in before.get_vocab().items() if token not in TAGS}
        assert kept.items() <= vocabulary.items() and not vocabulary.keys() & set(TAGS)
    assert loaded.eos_token == "<|im_end|>"
    unchanged = "no tags: <tool_call>x</tool_call><|im_end|>"
    assert loaded.encode(unchanged) == before.encode(unchanged).ids


def test_no_file_brings_the_tags_back(tmp_path: Path):
    qwen3_like(tmp_path, LAST, {"additional_special_tokens": list(TAGS)})
    remove_think_tokens(tmp_path)
    for path in tmp_path.glob("*.json"):
        assert not any(f'"{tag}"' in path.read_text() for tag in TAGS), path.name


def test_a_tokenizer_without_the_tags_is_refused(tmp_path: Path):
    qwen3_like(tmp_path, ["<tool_call>"], {})
    with pytest.raises(UserError, match="has no tokens <think> and </think>: leave out --think-tokens"):
        remove_think_tokens(tmp_path)
