import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import KINDS
from tools.pretrain.loop import ShapeConfig, new_model
from tools.pretrain.tokenizer import save_tokenizer, train_tokenizer

PROMPT = "<|solve|><|deduction|><|program|>def f(x):\n    return x[::-1] + 'abc'<|input|>'rever', 123<|answer|>"


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_round_trips(compact_tokenizer, text):
    assert compact_tokenizer.decode(compact_tokenizer(text).input_ids) == text


def test_tags_digits_letters_of_strings_and_fragments_of_code_are_single_tokens(compact_tokenizer):
    fragments = ["def f(x):\n    return ", " for a in "]
    assert all(len(compact_tokenizer.tokenize(each)) == 1 for each in fragments)
    assert all(len(compact_tokenizer(tag).input_ids) == 1 for tag in CompactFormat.special_tokens(list(KINDS)))
    assert compact_tokenizer.eos_token == CompactFormat.end and compact_tokenizer.pad_token_id == 0
    assert compact_tokenizer.tokenize("1234") == ["1", "2", "3", "4"]
    assert compact_tokenizer.tokenize("'reverse'") == ["'", *"reverse", "'"]
    vocabulary = compact_tokenizer.get_vocab()
    assert not [token for token in vocabulary if len(token) > 1 and any(c.isdigit() for c in token)]


def test_auto_tokenizer_beside_a_qwen2_model_and_a_copy_of_a_checkpoint_read_the_same_ids(compact_tokenizer, tmp_path):
    shape = ShapeConfig(hidden_size=32, layers=1, heads=1, kv_heads=1)
    new_model(shape, compact_tokenizer, seed=0).config.save_pretrained(tmp_path)
    save_tokenizer(compact_tokenizer, tmp_path)
    trusted = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    loaded.save_pretrained(tmp_path)
    for each in (trusted, loaded, AutoTokenizer.from_pretrained(tmp_path)):
        assert each(PROMPT).input_ids == compact_tokenizer(PROMPT).input_ids
        assert each.decode(each(PROMPT).input_ids) == PROMPT
        assert (each.eos_token_id, each.pad_token_id) == (compact_tokenizer.eos_token_id, 0)
    with pytest.raises(ValueError, match="between 300 and 1024"):
        train_tokenizer(["x"], list(KINDS), vocab_size=200)
