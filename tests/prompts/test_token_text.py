import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from azr.prompts.codec import PromptCodec
from azr.prompts.token_text import TokenArray, shared_head_encoder, table_decoder
from azr.tasks.prompts import CompactFormat
from tests.chat_tokenizers import chatml, llama
from tests.runs import factory

BASE = Path(__file__).parents[2] / "data" / "azr_14m_base"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CORPUS = (Path(__file__).parents[2] / "azr" / "tasks" / "prompts.py").read_text()


def trained(pre_tokenizer: object, *, normalizer: object = None) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [CORPUS], trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(["<|end|>", "<|im_start|>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def by_words() -> PreTrainedTokenizerFast:
    """As Qwen's."""
    split = pre_tokenizers.Split(Regex(QWEN), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return trained(pre_tokenizers.Sequence([split, level]), normalizer=normalizers.NFC())


TOKENIZERS = {
    "own": AutoTokenizer.from_pretrained(BASE), "gpt2": trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "prefix space": trained(pre_tokenizers.ByteLevel(add_prefix_space=True)), "qwen": by_words(),
    # Nothing says where two tokens meet.
    "across words": trained(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)), "bytes": chatml(),
    "bytes with bos": llama(),
}  # fmt: skip
CUT = {"own", "gpt2", "prefix space", "qwen"}
PIECES = [
    "def f(a):\n    return a", " ", "\n", "\n\n", "e", "e\u0301", "\u0301", "  \n ", "'s", "12", "```", "ü", "日本",
    "<|end|>",
]  # fmt: skip


def heads_of(tokenizer: PreTrainedTokenizerFast) -> tuple[Callable[[str, str], TokenArray], list[str]]:
    """And the texts that were encoded as the rest of one."""
    rests: list[str] = []

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    def rest(text: str) -> list[int]:
        rests.append(text)
        return encode(text)

    return shared_head_encoder(tokenizer, encode, rest), rests


@pytest.mark.parametrize("name", TOKENIZERS)
def test_prompts_are_encoded_as_a_whole_or_as_if_they_were(name: str) -> None:
    tokenizer, dice = TOKENIZERS[name], random.Random(name)
    encode, rests = heads_of(tokenizer)
    begins = {family: CORPUS[start : start + 900] for family, start in (("propose", 100), ("solve", 2000))}
    for index in range(120):
        family = dice.choice(list(begins))
        # One prompt in between has less in common with the others.
        begin = begins[family][: 500 if index == 60 else 900]
        text = begin + "".join(dice.choice(PIECES) for _ in range(dice.randrange(12)))
        assert encode(family, text).tolist() == list(tokenizer.encode(text, add_special_tokens=False)), text
    assert (len(rests) > 100) == (name in CUT)


def test_texts_with_nothing_in_common_are_encoded_all_the_same_and_tokens_that_are_no_bytes_have_no_table() -> None:
    other = chatml()
    other.backend_tokenizer.decoder = decoders.Metaspace()
    assert table_decoder(other) is None
    tokenizer = TOKENIZERS["qwen"]
    encode, _ = heads_of(tokenizer)
    for text in ("", "a", "", CORPUS[:400], CORPUS[:400], "b" + CORPUS[:400], CORPUS[:300]):
        assert encode("solve", text).tolist() == list(tokenizer.encode(text, add_special_tokens=False))


@settings(deadline=None)
@given(st.lists(st.integers(0, 1100), max_size=40), st.sampled_from(["own", "gpt2", "qwen", "bytes"]))
def test_the_table_decodes_as_the_tokenizer_does(ids: list[int], name: str) -> None:
    tokenizer = TOKENIZERS[name]
    decode = table_decoder(tokenizer)
    expected = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert decode(ids) == expected == decode(ids)


@settings(deadline=None)
@given(st.lists(st.integers(0, 1100), max_size=12), st.sampled_from(["own", "gpt2", "qwen", "bytes"]), st.data())
def test_the_engines_text_of_a_response_is_the_drivers(ids: list[int], name: str, data: st.DataObject) -> None:
    """Whatever its end token is, one of some bytes of a character included."""
    ends = data.draw(st.sets(st.sampled_from(ids), max_size=3)) if ids else ()
    codec = PromptCodec(TOKENIZERS[name], CompactFormat(), end_ids=ends)
    plain = factory.completion(ids, (1,))
    decoded = replace(plain, text=codec.decode(ids))
    assert codec.response_text(decoded) == codec.response_text(plain)
