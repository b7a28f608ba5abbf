from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import KINDS
from tools.pretrain.loop import ShapeConfig, new_model
from tools.pretrain.tokenizer import save_tokenizer, train_tokenizer

PROMPT = "<|solve|><|deduction|><|program|>def f(x):\n    return x[::-1] + 'abc'<|input|>'rever', 123<|answer|>"


def save_beside_a_qwen2_model(tokenizer, folder):
    new_model(ShapeConfig(hidden_size=32, layers=1, heads=1, kv_heads=1), tokenizer, seed=0).config.save_pretrained(
        folder
    )
    save_tokenizer(tokenizer, folder)


def test_documents_round_trip(compact_tokenizer, documents):
    for document in documents[:300]:
        text = document.prompt + document.answer
        assert compact_tokenizer.decode(compact_tokenizer(text).input_ids) == text


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_round_trips(compact_tokenizer, text):
    assert compact_tokenizer.decode(compact_tokenizer(text).input_ids) == text


def test_tags_are_single_tokens(compact_tokenizer):
    for token in CompactFormat.special_tokens(list(KINDS)):
        assert len(compact_tokenizer(token).input_ids) == 1
    assert compact_tokenizer.eos_token == CompactFormat.end
    assert compact_tokenizer.pad_token_id == 0


def test_digits_and_letters_of_strings_are_single_tokens(compact_tokenizer):
    assert compact_tokenizer.tokenize("1234") == ["1", "2", "3", "4"]
    assert compact_tokenizer.tokenize("'reverse'") == ["'", *"reverse", "'"]
    vocabulary = compact_tokenizer.get_vocab()
    assert not [token for token in vocabulary if len(token) > 1 and any(c.isdigit() for c in token)]


def test_code_fragments_are_single_tokens(compact_tokenizer):
    assert len(compact_tokenizer.tokenize("def f(x):\n    return ")) == 1
    assert len(compact_tokenizer.tokenize(" for a in ")) == 1


@pytest.mark.parametrize("trust", [False, True])
def test_auto_tokenizer_beside_a_qwen2_model_reads_the_same_ids(compact_tokenizer, tmp_path, trust):
    save_beside_a_qwen2_model(compact_tokenizer, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=trust)
    assert loaded(PROMPT).input_ids == compact_tokenizer(PROMPT).input_ids
    assert loaded.decode(loaded(PROMPT).input_ids) == PROMPT
    assert (loaded.eos_token_id, loaded.pad_token_id) == (compact_tokenizer.eos_token_id, 0)


def test_a_copy_saved_by_a_checkpoint_reads_the_same_ids(compact_tokenizer, tmp_path):
    save_beside_a_qwen2_model(compact_tokenizer, tmp_path)
    AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)(PROMPT).input_ids == compact_tokenizer(PROMPT).input_ids


def test_too_small_a_vocabulary_is_refused():
    with pytest.raises(ValueError, match="between 300 and 1024"):
        train_tokenizer(["x"], list(KINDS), vocab_size=200)
