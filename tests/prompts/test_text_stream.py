"""The text of tokens that come one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from azr.prompts.codec import PromptCodec
from azr.prompts.token_text import stream_text
from azr.tasks.prompts import CompactFormat
from tests.conftest import byte_tokenizer

ROOT = Path(__file__).parents[2]


def byte_fallback() -> PreTrainedTokenizerFast:
    """As those of SentencePiece: no table of bytes, a blank before each word, and U+FFFD for every odd byte."""
    words = {"</s>": 0, "▁a": 1, "▁b": 2, "<unk>": 3}
    bytes_ = {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=words | bytes_, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


CODECS = [PromptCodec(byte_tokenizer(), CompactFormat()), PromptCodec(byte_fallback(), CompactFormat())]


def told(codec: PromptCodec, ids: list[int], at_once: int) -> list[str]:
    stream = stream_text(codec.decode)
    next(stream)
    return [*(stream.send(ids[at : at + at_once]) for at in range(0, len(ids), at_once)), stream.send(None)]


@given(ids=st.lists(st.integers(0, 255), max_size=300), at_once=st.integers(1, 5))
def test_pieces_of_any_bytes_are_the_text(ids: list[int], at_once: int):
    assert "".join(told(CODECS[0], ids, at_once)) == CODECS[0].decode(ids)


@given(text=st.text("ab é€😀", max_size=120), at_once=st.integers(1, 5))
def test_pieces_are_the_text_where_odd_bytes_take_others_along(text: str, at_once: int):
    word = {"a": [1], "b": [2]}
    ids = [token for char in text for token in word.get(char, [4 + byte for byte in char.encode()])]
    assert "".join(told(CODECS[1], ids, at_once)) == CODECS[1].decode(ids)


@pytest.mark.parametrize("codec", CODECS, ids=["bytes", "fallback"])
def test_a_character_comes_whole_with_the_last_of_its_bytes(codec: PromptCodec):
    first = 0 if codec is CODECS[0] else 4
    ids = codec.encode("é😀") if first == 0 else [first + byte for byte in "é😀".encode()]
    assert told(codec, ids, 1) == ["", "é", "", "", "", "😀", ""]
    assert told(codec, ids[:4], 4) == ["é", codec.decode(ids[:4])[1:]]
