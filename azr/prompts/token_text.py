"""Encode shared beginnings of prompts once, and decode tokens by a table.

Both give exactly what the tokenizer gives, and leave a tokenizer to itself where that cannot be known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from os.path import commonprefix

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

TokenArray = npt.NDArray[np.int32]
_OVERLAP = 128
"""Characters at the end of the shared beginning that are encoded again with the rest, at least. No pattern by which
tokenizers split text looks so far ahead."""
_TRIES = 64


_Head = tuple[str, int, TokenArray]
"""Shared beginning of the prompts of one family, the position of a token boundary in it that no following text moves,
or 0 if none is known, and the ids of the text before that."""


def shared_head_encoder(
    tokenizer: PreTrainedTokenizerBase, whole: Callable[[str], list[int]], rest: Callable[[str], list[int]]
) -> Callable[[str, str], TokenArray]:
    """Return a function from family and text of a prompt to its ids, as a read-only array.

    Prompts of one family, such as the proposals of one kind, have the same beginning. ``whole`` encodes a prompt,
    ``rest`` a text inside a prompt.
    """
    cuts = _splits_text(tokenizer)
    first_of: dict[str, tuple[str, TokenArray]] = {}
    """First text of each family, and its ids."""
    heads: dict[str, _Head] = {}
    """Shared beginnings, known from the second text of a family on."""

    def array(ids: npt.ArrayLike) -> TokenArray:
        made = np.array(ids, np.int32)
        made.flags.writeable = False
        return made

    def head_of(text: str) -> _Head:
        ids = whole(text)
        for cut in range(len(text) - _OVERLAP, max(len(text) - _OVERLAP - _TRIES, 0), -1):
            before = whole(text[:cut])
            if before + rest(text[cut:]) == ids:
                return text, cut, array(before)
        return text, 0, array(ids)

    def encode(family: str, text: str) -> TokenArray:
        if not cuts:
            return array(whole(text))
        if family not in first_of:
            first_of[family] = text, array(whole(text))
        first, ids = first_of[family]
        if text == first:
            return ids
        shared = heads[family][0] if family in heads else first
        if family not in heads or not text.startswith(shared):
            heads[family] = head_of(commonprefix((shared, text)))  # noqa: RUF071  # of texts
        _, cut, before = heads[family]
        return array(np.concatenate([before, rest(text[cut:])]) if cut else whole(text))

    return encode


def _splits_text(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer first splits a text by a pattern into parts that it encodes separately."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.backend_tokenizer.pre_tokenizer is None:
        return False
    normalizer = tokenizer.backend_tokenizer.normalizer
    if normalizer is not None and type(normalizer).__name__ != "NFC":
        return False
    try:
        steps = json.loads(tokenizer.backend_tokenizer.pre_tokenizer.__getstate__())
    except (AttributeError, TypeError, ValueError):  # one that is written in Python
        return False
    parts = steps["pretokenizers"] if steps["type"] == "Sequence" else [steps]
    by_pattern = [
        (part["type"] == "ByteLevel" and part["use_regex"]) or (part["type"] == "Split" and "Regex" in part["pattern"])
        for part in parts
    ]
    return any(by_pattern) and all(part["type"] in ("ByteLevel", "Split", "Digits") for part in parts)


def table_decoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[int]], str] | None:
    """Return a function that decodes ids by a table of the tokens' bytes, which is filled in on demand.

    Bytes that are not UTF-8 become U+FFFD. Returns None for a tokenizer whose text is not the concatenation of its
    tokens' bytes.
    """
    is_plain = isinstance(tokenizer, PreTrainedTokenizerFast) and (
        type(tokenizer)._decode is PreTrainedTokenizerFast._decode
        and type(tokenizer).decode is PreTrainedTokenizerFast.decode
        and type(tokenizer.backend_tokenizer.decoder).__name__ == "ByteLevel"
    )
    if not is_plain:
        return None
    token_of = tokenizer.backend_tokenizer.id_to_token

    @cache
    def bytes_of(token_id: int) -> bytes:
        token = token_of(token_id) or ""
        # Control tokens may hold what stands for no byte; all of it is text then.
        is_bytes = all(char in _BYTE_OF for char in token)
        return bytes(_BYTE_OF[char] for char in token) if is_bytes else token.encode()

    return lambda token_ids: b"".join(map(bytes_of, token_ids)).decode("utf-8", "replace")


_BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}
"""Byte that each character stands for in tokens."""
